"""The source folder of a Go module, with its manifests and templates.

With Go it is the folder in the user's module cache. Without Go, this downloads the module from a
module proxy. In both cases the pinned go.sum verifies it.
"""

import base64
import hashlib
import json
import lzma
import shutil
import zipfile
import zlib
from asyncio import to_thread
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capelin_embedded.binaries.cache import BuildDir, Cache
from capelin_embedded.binaries.catalog import PROJECTS, Platform, Project, check_version
from capelin_embedded.binaries.download import open_web
from capelin_embedded.binaries.errors import (
    NotObtainableError,
    SourceFailedError,
    UnknownComponentError,
)
from capelin_embedded.binaries.go import Go, find_go, needed_go
from capelin_embedded.binaries.progress import Progress, ProgressEvent
from capelin_embedded.binaries.sources import Attempts

GO = "go mod download"
PROXY = "module proxy"
_MAX_ARCHIVE_BYTES = 2**28
_MAX_UNPACKED_BYTES = 500 * 2**20  # The limit of Go itself.


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module in the version that some module files pin."""

    path: str
    version: str
    files: Path

    def __str__(self) -> str:
        """For example `k8s.io/kubernetes@v1.36.3`, which is also Go's name for its folder."""
        return f"{self.path}@{self.version}"

    def verify(self, actual: str) -> None:
        """Raise SourceFailedError for content whose hash differs from go.sum."""
        if actual != self.pinned:
            raise SourceFailedError(
                f"{self} is damaged or forged: its hash is {actual}, and go.sum has {self.pinned}"
            )

    @property
    def pinned(self) -> str:
        """The hash of the module's content in go.sum."""
        for line in (self.files / "go.sum").read_text().splitlines():
            if line.startswith(f"{self.path} {self.version} "):
                return line.rpartition(" ")[2]
        raise ValueError(f"{self.files}/go.sum has no hash for {self}")


async def module_dir(
    name: str | Project,
    version: str | None,
    *,
    cache: Cache,
    environment: Mapping[str, str],
    platform: Platform,
    progress: Progress,
) -> Path:
    """The source folder of a module, by its name in the catalog, or of a project's own module."""
    if isinstance(name, Project):
        project, name = name, name.name
    else:
        project = PROJECTS.get(name.partition("/")[0])
    if project is None or name not in project.sources:
        known = ", ".join(source for project in PROJECTS.values() for source in project.sources)
        raise UnknownComponentError(f"Capelin has no sources {name!r} (known: {known})")
    version = version or project.default_version
    check_version(project, version)
    module = Module(project.sources[name], version, project.module_files(version))
    attempts = Attempts(progress)
    async with cache.building(f"{project.name}-{version}-sources") as build_dir:
        try:
            go = await find_go(
                module.files,
                what=f"{project.title} {version}",
                environment=environment,
                platform=platform,
                note=lambda message: progress(ProgressEvent("noted", str(module), GO, message)),
            )
            return await _download_with_go(go, module, build_dir)
        except SourceFailedError as error:
            attempts.add_failure(GO, str(error))
        cached = cache.source(str(module))
        if await to_thread(folder_hash, cached, module) == module.pinned:
            return cached
        with attempts.attempt(str(module), PROXY):
            fresh = await _download_from_proxy(environment, module, build_dir)
            return cache.add_source(fresh, str(module))
    raise NotObtainableError(
        f"The source of {module}",
        attempts.failures,
        f"Install Go {needed_go(module.files)} or later (https://go.dev/dl), or allow access to"
        " a Go module proxy (GOPROXY can name another than proxy.golang.org)",
    )


async def _download_with_go(go: Go, module: Module, build_dir: BuildDir) -> Path:
    """Download the module with Go, or find it in Go's module cache."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(module.files / name, build_dir.folder)
    answer = await go.run("mod", "download", "-json", str(module), folder=build_dir.folder)
    result = json.loads(answer)
    module.verify(result["Sum"])
    return Path(result["Dir"])


async def _download_from_proxy(
    environment: Mapping[str, str], module: Module, build_dir: BuildDir
) -> Path:
    proxy = first_proxy(environment.get("GOPROXY", ""))
    archive = build_dir.folder / "module.zip"
    url = f"{proxy}/{module.path}/@v/{module.version}.zip"
    async with open_web(environment) as web, web.get(url, {}) as response:
        if response.status != 200:
            raise SourceFailedError(f"{proxy} answers {response.status} for {module}")
        with archive.open("wb") as file:
            async for chunk in response.content.iter_chunked(2**18):
                file.write(chunk)
                if file.tell() > _MAX_ARCHIVE_BYTES:
                    raise SourceFailedError(f"{proxy} sends far more than {module} can be")
    return await to_thread(unpack, archive, module, build_dir.folder)


def first_proxy(setting: str) -> str:
    """The first proxy in a GOPROXY setting."""
    for entry in setting.replace("|", ",").split(","):
        if entry.startswith(("https://", "http://")):
            return entry.rstrip("/")
    if setting:
        raise SourceFailedError(f"GOPROXY={setting} does not contain a module proxy")
    return "https://proxy.golang.org"


def unpack(archive: Path, module: Module, folder: Path) -> Path:
    """Unpack a module's zip file, if its hash matches go.sum."""
    try:
        with zipfile.ZipFile(archive) as content:
            if sum(entry.file_size for entry in content.infolist()) > _MAX_UNPACKED_BYTES:
                raise SourceFailedError(
                    f"{module} unpacks to more than {_MAX_UNPACKED_BYTES} bytes"
                )
            names = content.namelist()
            if any(not name.startswith(f"{module}/") or ".." in name.split("/") for name in names):
                raise SourceFailedError(f"{module} has files outside of its folder")
            module.verify(tree_hash((name, content.read(name)) for name in names))
            content.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError) as error:
        raise SourceFailedError(f"{module} is damaged: the download is not a zip file") from error
    return folder / str(module)


def folder_hash(folder: Path, module: Module) -> str:
    """Go's hash of a module's unpacked files."""
    return tree_hash(
        (f"{module}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    )


def tree_hash(files: Iterable[tuple[str, bytes]]) -> str:
    """Go's `h1:` hash of a file tree."""
    lines = sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files)
    text = "".join(f"{digest}  {name}\n" for name, digest in lines)
    return "h1:" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
