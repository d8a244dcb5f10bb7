"""Sources of binaries that the cache lacks: local folders, official images, `go build`."""

import asyncio
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from capelin.programs import run_program

from capelin_embedded.binaries import go, images
from capelin_embedded.binaries.cache import BuildDir, Cache
from capelin_embedded.binaries.catalog import ComponentVersion, Platform
from capelin_embedded.binaries.download import UnreachableError, Web, open_web
from capelin_embedded.binaries.errors import BinariesError, SourceFailedError
from capelin_embedded.binaries.images import GoneError, Reference
from capelin_embedded.binaries.progress import Progress, ProgressEvent

FOLDER = "folder"
FOLDERS_VARIABLE = "CAPELIN_BINARIES"
ENVTEST_VARIABLE = "KUBEBUILDER_ASSETS"

_VERSION_SECONDS = 10.0
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


@dataclass(frozen=True, slots=True)
class Obtained:
    """A binary's file in a build folder, and its source."""

    file: Path
    source: str


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary that is ready to run."""

    component: str
    version: str | None
    """Its version. None if it comes from a folder, unchecked or unable to print its version."""
    path: Path


class WrongVersionError(SourceFailedError):
    """The folder has the binary in another version."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Reports each attempt as progress, and collects failures for the final error."""

    progress: Progress
    failures: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add_failure(self, source: str, reason: str) -> None:
        """Record why a source failed, once."""
        if (source, reason) not in self.failures:
            self.failures.append((source, reason))

    @contextmanager
    def attempt(self, what: str, source: str) -> Generator[None, None, None]:
        """Record the failure of a source, so that the caller can try the next one."""
        self.progress(ProgressEvent("started", what, source))
        try:
            yield
        except SourceFailedError as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename or 'the cache'}: {error.strerror}"
        except BaseException:
            self.progress(ProgressEvent("failed", what, source, "stopped"))
            raise
        else:
            self.progress(ProgressEvent("finished", what, source))
            return
        self.progress(ProgressEvent("failed", what, source, reason))
        self.add_failure(source, reason)


def title(group: Sequence[ComponentVersion]) -> str:
    """For example `etcd, etcdctl v3.6.8`."""
    names = ", ".join(request.component.name for request in group)
    return f"{names} {group[0].version}"


def local_folders(folders: Sequence[Path], environment: Mapping[str, str]) -> list[Path]:
    """The folders to search, in order: `folders`, then those of the environment."""
    named = [Path(text) for text in environment.get(FOLDERS_VARIABLE, "").split(os.pathsep) if text]
    for folder in (*folders, *named):
        if not folder.is_dir():
            by = "" if folder in folders else f" (from {FOLDERS_VARIABLE})"
            raise BinariesError(f"{folder} is not a folder with binaries{by}. Correct the path")
    # Other tools set this variable and may not update it, so a missing folder is not an error.
    envtest = [Path(text) for text in (environment.get(ENVTEST_VARIABLE),) if text]
    return [folder.absolute() for folder in (*folders, *named, *envtest)]


async def find_local(
    folders: Sequence[Path], request: ComponentVersion, environment: Mapping[str, str]
) -> Binary:
    """The first binary of that name in the requested version.

    Raises:
        WrongVersionError: The folders have only other versions.
        SourceFailedError: The folders do not have the binary, or it does not run.
    """
    if not folders:
        raise SourceFailedError(
            f"none is set ({FOLDERS_VARIABLE} and {ENVTEST_VARIABLE} are not set)"
        )
    reasons: list[str] = []
    failure = SourceFailedError
    for folder in folders:
        file = folder / request.component.name
        if not file.is_file() or not os.access(file, os.X_OK):
            reasons.append(f"{folder} has no binary {request.component.name}")
            continue
        try:
            version = (
                await _printed_version(file, request, environment) if request.explicit else None
            )
        except SourceFailedError as error:
            reasons.append(str(error))
            continue
        if version is None or version == request.version:
            return Binary(request.component.name, version, file)
        reasons.append(f"{file} is {version}")
        failure = WrongVersionError
    raise failure("; ".join(reasons))


async def _printed_version(
    file: Path, request: ComponentVersion, environment: Mapping[str, str]
) -> str | None:
    arguments = request.component.version_arguments
    if arguments is None:
        return None
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            # clusterctl checks for newer releases on the internet before it prints its own version.
            settings = {**environment, "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"}
            ended = await run_program(file, *arguments, env=settings)
    except TimeoutError as error:
        raise SourceFailedError(
            f"{file} does not print its version in {_VERSION_SECONDS:g} s"
        ) from error
    except OSError as error:
        raise SourceFailedError(f"{file} cannot be run ({error.strerror})") from error
    if ended.code != 0:
        raise SourceFailedError(f"{file} does not run (exit status {ended.code})")
    match = _VERSION.search(ended.output.decode(errors="replace"))
    return f"v{match[1]}" if match else None


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The official images. A host that does not answer is tried only once."""

    cache: Cache
    platform: Platform
    mirrors: Mapping[str, str]
    environment: Mapping[str, str]
    unreachable: set[str] = field(default_factory=set[str])

    async def obtain(
        self, group: Sequence[ComponentVersion], build_dir: BuildDir, attempts: Attempts
    ) -> dict[ComponentVersion, Obtained]:
        """Pull the binaries of the group for which images are available."""
        obtained: dict[ComponentVersion, Obtained] = {}
        async with open_web(self.environment) as web:
            for reference, files in _by_image(group, attempts).items():
                if reference.host in self.unreachable:
                    continue
                with attempts.attempt(title([*files.values()]), f"image {reference}"):
                    obtained |= await self._pull(web, reference, files, build_dir, attempts)
        return obtained

    async def _pull(
        self,
        web: Web,
        reference: Reference,
        files: Mapping[str, ComponentVersion],
        build_dir: BuildDir,
        attempts: Attempts,
    ) -> dict[ComponentVersion, Obtained]:
        group = [*files.values()]
        name = str(reference)
        what, source = title(group), f"image {name}"
        project = group[0].component.project
        recorded = self.cache.recorded_digest(name)

        def report(done: int, total: int) -> None:
            attempts.progress(
                ProgressEvent("advanced", what, source, done=done, total=total, unit="bytes")
            )

        try:
            digest, pulled = await images.pull(
                web,
                reference,
                files,
                base=self.mirrors.get(reference.host, f"https://{reference.host}"),
                digest=project.image_digests(group[0].version).get(name) or recorded,
                platform=self.platform,
                build_dir=build_dir,
                report=report,
            )
        except UnreachableError:
            self.unreachable.add(reference.host)
            raise
        except GoneError as error:
            if recorded is None:
                raise
            raise SourceFailedError(
                f"{error}. The digest was recorded at the first pull of the image, so the image"
                f" has been replaced. To trust the new one, remove {self.cache.digest_file(name)}"
            ) from error
        self.cache.record_digest(name, digest)
        return {
            request: Obtained(pulled[file], f"{name}@{digest}") for file, request in files.items()
        }


async def build_with_go(
    group: Sequence[ComponentVersion],
    build_dir: BuildDir,
    attempts: Attempts,
    *,
    environment: Mapping[str, str],
    platform: Platform,
    background: bool = False,
) -> dict[ComponentVersion, Obtained]:
    """Build all binaries of a group, which are of one project and version, or none.

    This package pins the module files.
    """
    what = title(group)
    project, version = group[0].component.project, group[0].version

    def note(message: str) -> None:
        attempts.progress(ProgressEvent("noted", what, go.BUILD, message))

    def report(progress: go.BuildProgress) -> None:
        attempts.progress(
            ProgressEvent(
                "advanced",
                what,
                go.BUILD,
                done=progress.done,
                total=progress.total,
                unit=progress.unit,
            )
        )

    with attempts.attempt(what, go.BUILD):
        toolchain = await go.find_go(
            project.module_files(version),
            what=f"{project.title} {version}",
            environment=environment,
            platform=platform,
            note=note,
            background=background,
        )
        built = await go.build(toolchain, group, build_dir, report)
        return {
            request: Obtained(file, f"{request.component.package}, Go {toolchain.version}")
            for request, file in built.items()
        }
    return {}


def _by_image(
    group: Sequence[ComponentVersion], attempts: Attempts
) -> dict[Reference, dict[str, ComponentVersion]]:
    """Binaries by their image, and then by their file in it."""
    by_image: dict[Reference, dict[str, ComponentVersion]] = {}
    for request in group:
        image = request.component.image
        if image is None:
            attempts.add_failure("image", f"no official image contains {request.component.name}")
        else:
            reference = Reference.parse(image.reference_of(request.version))
            by_image.setdefault(reference, {})[image.file] = request
    return by_image
