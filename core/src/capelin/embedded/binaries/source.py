"""The source folder of a Go module, for the manifests and templates that lie in it.

With Go it is the folder in the user's own module cache; without, the same module is taken from a
module proxy. In both cases the pinned go.sum says whether it is right.
"""

import base64
import hashlib
import json
import shutil
import zipfile
from asyncio import to_thread
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.binaries import web
from capelin.embedded.binaries.cache import Cache, Workplace
from capelin.embedded.binaries.catalogue import PROJECTS, Platform, check_version
from capelin.embedded.binaries.errors import (
    NotObtainableError,
    UnknownProgramError,
    WayFailedError,
)
from capelin.embedded.binaries.go import Go, find_go, needed_go
from capelin.embedded.binaries.progress import Progress
from capelin.embedded.binaries.ways import Journal

GO = "go mod download"
PROXY = "module proxy"
_LARGEST = 2**28


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module in the version that some module files pin."""

    path: str
    version: str
    files: Path

    def __str__(self) -> str:
        """As in `k8s.io/kubernetes@v1.34.4`, which is also how Go names its folder."""
        return f"{self.path}@{self.version}"

    def check(self, found: str) -> None:
        """Refuse content whose hash is not the one in go.sum."""
        if found != self.pinned:
            raise WayFailedError(
                f"{self} is damaged or forged: its hash is {found}, and go.sum has {self.pinned}"
            )

    @property
    def pinned(self) -> str:
        """The hash that go.sum has for the module's content."""
        for line in (self.files / "go.sum").read_text().splitlines():
            if line.startswith(f"{self.path} {self.version} "):
                return line.rpartition(" ")[2]
        raise ValueError(f"{self.files}/go.sum has no hash for {self}")


async def module_dir(
    name: str,
    version: str | None,
    *,
    cache: Cache,
    environment: Mapping[str, str],
    platform: Platform,
    progress: Progress,
) -> Path:
    """The source folder of a module, by the name that the catalogue has for it."""
    project = PROJECTS.get(name.partition("/")[0])
    if project is None or name not in project.sources:
        known = ", ".join(each for project in PROJECTS.values() for each in project.sources)
        raise UnknownProgramError(f"Capelin knows no sources called {name!r}; known: {known}")
    version = version or project.versions[-1]
    check_version(project, version)
    module = Module(project.sources[name], version, project.module_files(version))
    journal = Journal(progress)
    async with cache.building(f"{project.name}-{version}-sources") as place:
        try:
            go = await find_go(
                module.files,
                what=f"{project.title} {version}",
                environment=environment,
                platform=platform,
                noted=lambda message: progress.noted(str(module), GO, message),
            )
            return await from_go(go, module, place)
        except WayFailedError as error:
            journal.add(GO, str(error))
        kept = cache.source(str(module))
        if await to_thread(folder_hash, kept, module) == module.pinned:
            return kept
        with journal.trying(str(module), PROXY):
            fresh = await from_proxy(environment, module, place)
            return cache.add_source(fresh, str(module))
    raise NotObtainableError(
        f"The source of {module}",
        journal.failures,
        f"Install Go {needed_go(module.files)} or later (https://go.dev/dl), or allow access to"
        " a Go module proxy (GOPROXY can name another than proxy.golang.org)",
    )


async def from_go(go: Go, module: Module, place: Workplace) -> Path:
    """Have Go download a module, or find that it did so before."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(module.files / name, place.folder)
    answer = await go.run("mod", "download", "-json", str(module), folder=place.folder)
    told = json.loads(answer)
    module.check(told["Sum"])
    return Path(told["Dir"])


async def from_proxy(environment: Mapping[str, str], module: Module, place: Workplace) -> Path:
    """Download a module from a proxy and unpack it."""
    proxy = first_proxy(environment.get("GOPROXY", ""))
    archive = place.folder / "module.zip"
    url = f"{proxy}/{module.path}/@v/{module.version}.zip"
    async with web.connected(environment) as internet, internet.get(url, {}) as response:
        if response.status != 200:
            raise WayFailedError(f"{proxy} answers {response.status} for {module}")
        with archive.open("wb") as file:
            async for chunk in response.content.iter_chunked(2**18):
                file.write(chunk)
                if file.tell() > _LARGEST:
                    raise WayFailedError(f"{proxy} sends far more than {module} can be")
    return await to_thread(unpack, archive, module, place.folder)


def first_proxy(setting: str) -> str:
    """The first proxy that a GOPROXY setting names."""
    for each in setting.replace("|", ",").split(","):
        if each.startswith(("https://", "http://")):
            return each.rstrip("/")
    if setting:
        raise WayFailedError(f"GOPROXY={setting} names no module proxy")
    return "https://proxy.golang.org"


def unpack(archive: Path, module: Module, folder: Path) -> Path:
    """Unpack a module's zip file if it is the one that go.sum pins."""
    try:
        with zipfile.ZipFile(archive) as content:
            module.check(tree_hash((name, content.read(name)) for name in content.namelist()))
            content.extractall(folder)
    except zipfile.BadZipFile as error:
        raise WayFailedError(f"{module} is damaged: what came is no zip file") from error
    return folder / str(module)


def folder_hash(folder: Path, module: Module) -> str:
    """Go's hash of a module that lies unpacked in a folder."""
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
