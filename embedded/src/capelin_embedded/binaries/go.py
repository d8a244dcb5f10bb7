"""The `go` command: finds one that is new enough, runs it, and builds binaries with it.

The user's settings for their own Go work must not change the result, so this sets flags, work
files, target platform and cgo. The user still chooses the sources of modules (GOPROXY, GOPRIVATE,
GOMODCACHE, GOCACHE and so on): go.sum verifies their content.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capelin.programs import default_signals

from capelin_embedded.binaries.cache import BuildDir
from capelin_embedded.binaries.catalog import (
    MODULES,
    Component,
    ComponentVersion,
    Platform,
    Project,
)
from capelin_embedded.binaries.errors import SourceFailedError

BUILD = "go build"

_GRACE_SECONDS = 5.0
_VERSION_SECONDS = 10.0
_LOWEST_PRIORITY = ("nice", "-n", "19")
_LINE_LIMIT = 2**20
# The normal output of `go build -v` and of downloads.
_ROUTINE = re.compile(r"[\w./~+-]+|go: downloading .*")
_DOWNLOADING = "go: downloading "
# A program is linked again each time, even if all of its packages are in Go's build cache.
_TO_COMPILE = (
    '{{if and .Stale (ne .StaleReason "not installed but available in build cache")}}'
    "{{.ImportPath}}{{end}}"
)


@dataclass(frozen=True, slots=True)
class BuildProgress:
    done: int
    total: int | None
    """The number of packages to compile, or None if unknown."""
    unit: Literal["modules", "packages"] = "packages"


@dataclass(frozen=True, slots=True)
class Go:
    """A Go command with the environment to run it in."""

    command: str
    version: str
    environment: Mapping[str, str]
    background: bool = False
    """Whether to leave the processors to all other processes."""

    async def run(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        keep_open: tuple[int, ...] = (),
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run it. Returns its standard output and passes each line of its errors to `on_line`."""
        return await _run(
            self.command,
            *arguments,
            env={**self.environment, **(environment or {})},
            folder=folder,
            keep_open=keep_open,
            on_line=on_line,
            background=self.background,
        )


async def find_go(
    module_files: Path,
    *,
    what: str,
    environment: Mapping[str, str],
    platform: Platform,
    note: Callable[[str], None],
    background: bool = False,
) -> Go:
    """The Go command, if it is new enough for these module files or may fetch a newer one."""
    needed = needed_go(module_files)
    command = shutil.which("go", path=environment.get("PATH"))
    if command is None:
        raise SourceFailedError("PATH has no go command")
    settings = {
        **environment,
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        # An empty value would allow the user's `go env -w GOFLAGS=...`.
        "GOFLAGS": f"-mod=readonly{' -p=1' if background else ''}",
        "GOOS": platform.system,
        "GOARCH": platform.architecture,
        "GOWORK": "off",
    }
    local = {**settings, "GOTOOLCHAIN": "local"}
    output = await _run(command, "env", "GOVERSION", env=local, folder=Path("/"))
    version = output.strip().removeprefix("go")
    if is_new_enough(version, needed):
        return Go(command, version, local, background)
    choice = await _run(command, "env", "GOTOOLCHAIN", env=settings, folder=Path("/"))
    if not choice.strip().endswith(("auto", "path")) or _parts(version) < (1, 21):
        raise SourceFailedError(
            f"{command} is Go {version}, and {what} needs Go {needed} or later"
            " (GOTOOLCHAIN=auto would let Go 1.21 and later fetch that itself)"
        )
    note(f"{command} is Go {version} and fetches Go {needed}, which {what} needs")
    return Go(command, needed, settings, background)


def installed_go(environment: Mapping[str, str]) -> str | None:
    """The version of the `go` command on PATH, or None without a working one."""
    command = shutil.which("go", path=environment.get("PATH"))
    if command is None:
        return None
    try:
        found = subprocess.run(
            [command, "env", "GOVERSION"],
            env={**environment, "GOTOOLCHAIN": "local"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip().removeprefix("go")


def newest_needed_go() -> str:
    """The oldest Go that builds every known binary."""
    return max((needed_go(file.parent) for file in MODULES.glob("*/v*/go.mod")), key=_parts)


def is_new_enough(version: str, needed: str) -> bool:
    """Whether a Go of this version builds sources that need the other."""
    return _parts(version) >= _parts(needed)


def needed_go(module_files: Path) -> str:
    """The oldest Go that can build the versions in these module files."""
    match = re.search(r"^go (\S+)$", (module_files / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise ValueError(f"{module_files}/go.mod has no line `go VERSION`")
    return match[1]


async def build(
    go: Go,
    group: Sequence[ComponentVersion],
    build_dir: BuildDir,
    report: Callable[[BuildProgress], None],
) -> dict[ComponentVersion, Path]:
    """Build binaries of one project and version, which share most packages."""
    project, version = group[0].component.project, group[0].version
    for name in ("go.mod", "go.sum"):
        shutil.copy(project.module_files(version) / name, build_dir.folder)
    scratch = build_dir.folder / "go-tmp"
    scratch.mkdir()
    built: dict[ComponentVersion, Path] = {}
    batches = split_batches(group)
    total = await _packages_to_compile(go, group, build_dir, report)
    begun = 0

    def count(line: str) -> None:
        nonlocal begun
        if line and ":" not in line:
            begun += 1
            report(BuildProgress(begun, total if total and begun <= total else None))

    for number, batch in enumerate(batches):
        out = build_dir.folder / f"out-{number}"
        await go.run(
            *build_arguments(project, version, [request.component for request in batch], out),
            folder=build_dir.folder,
            # The next build removes this folder, so a killed one leaves nothing behind.
            environment={"GOTMPDIR": str(scratch)},
            # A compiler that outlives this process still holds the lock on this build. Not in the
            # background, where nothing would end it for the sake of a process that waits.
            keep_open=() if go.background else (build_dir.lock,),
            on_line=count,
        )
        built |= {request: out / executable(request.component) for request in batch}
    missing = [str(request) for request, file in built.items() if not file.is_file()]
    if missing:
        raise SourceFailedError(f"`go build` succeeded without creating {', '.join(missing)}")
    return built


async def _packages_to_compile(
    go: Go,
    group: Sequence[ComponentVersion],
    build_dir: BuildDir,
    report: Callable[[BuildProgress], None],
) -> int:
    """The number of packages that Go's build cache lacks, or 0 if it is unknown."""
    project, version = group[0].component.project, group[0].version
    modules = 0

    def count(line: str) -> None:
        nonlocal modules
        if line.startswith(_DOWNLOADING):
            modules += 1
            report(BuildProgress(modules, None, "modules"))

    output = ""
    # `go build` reports any problem here, and works without the number.
    with suppress(SourceFailedError):
        output = await go.run(
            "list",
            "-deps",
            "-f",
            _TO_COMPILE,
            *_build_flags(project, version),
            *(request.component.package for request in group),
            folder=build_dir.folder,
            keep_open=(build_dir.lock,),
            on_line=count,
        )
    return sum(map(bool, output.splitlines()))


def split_batches(group: Sequence[ComponentVersion]) -> list[list[ComponentVersion]]:
    """Separate binaries with the same file name: Cluster API has two packages `kubeadm`."""
    batches: list[list[ComponentVersion]] = []
    for request in group:
        name = executable(request.component)
        for batch in batches:
            if all(executable(other.component) != name for other in batch):
                batch.append(request)
                break
        else:
            batches.append([request])
    return batches


def build_arguments(
    project: Project, version: str, components: Sequence[Component], out: Path
) -> list[str]:
    return [
        "build",
        "-v",
        *_build_flags(project, version),
        "-o",
        f"{out}/",
        *(component.package for component in components),
    ]


def _build_flags(project: Project, version: str) -> list[str]:
    """The flags that determine the packages to compile."""
    return [
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        # The linker drops this debug information anyway. Stack traces and profiles do not need it.
        "-ldflags",
        project.linker_flags(version),
        *([f"-tags={','.join(project.tags)}"] if project.tags else []),
    ]


def executable(component: Component) -> str:
    """The name that `go build` gives a binary: its package's last part that is not a version."""
    *_, parent, last = component.package.split("/")
    return parent if last.startswith("v") and last[1:].isdigit() else last


async def _run(
    *command: str,
    env: Mapping[str, str],
    folder: Path,
    keep_open: tuple[int, ...] = (),
    on_line: Callable[[str], None] | None = None,
    background: bool = False,
) -> str:
    process = await asyncio.create_subprocess_exec(
        *(_LOWEST_PRIORITY if background else ()),
        *command,
        env=env,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT,
        pass_fds=keep_open,
        # A separate process group, so that its compilers can be killed with it.
        process_group=None if background else 0,
        start_new_session=background,
        preexec_fn=default_signals(),
    )
    if background:
        # Where the kernel schedules sessions instead of processes, this is the session's priority.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text("19")  # noqa: ASYNC240
    try:
        stdout, errors = await asyncio.gather(
            _read_all(process.stdout), _read_errors(process.stderr, on_line)
        )
        status = await process.wait()
    finally:
        await _end(process)
    if status != 0:
        reason = "\n    ".join(errors[-8:]) or f"exit status {status}"
        raise SourceFailedError(f"`go {command[1]}` failed: {reason}")
    return stdout.decode()


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream else b""


async def _read_errors(
    stream: asyncio.StreamReader | None, on_line: Callable[[str], None] | None
) -> list[str]:
    errors: list[str] = []
    if stream is None:
        return errors
    async for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if on_line is not None:
            on_line(line)
        if line and not _ROUTINE.fullmatch(line):
            errors.append(line)
    return errors


async def _end(process: asyncio.subprocess.Process) -> None:
    # On SIGINT, go removes its temporary files. It may ignore SIGINT, so kill it in the end.
    for number, seconds in ((signal.SIGINT, _GRACE_SECONDS), (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            continue


def _parts(version: str) -> tuple[int, ...]:
    # go1.26rc1 and "go1.26.8 X:nodwarf5" count as the release they belong to: no semantic versions.
    numbers = re.match(r"\D*(\d+(?:\.\d+)*)", version)
    parts = [int(part) for part in numbers[1].split(".")] if numbers else []
    # go1.24 is go1.24.0.
    return tuple([*parts, 0, 0, 0][:3])
