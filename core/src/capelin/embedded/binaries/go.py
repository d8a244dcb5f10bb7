"""The `go` command of this machine: finding it, judging its age, and running it.

Nothing that the user has set for their own Go work may change what comes out, so flags, work
files, target platform and cgo are fixed here. Where modules come from (GOPROXY, GOPRIVATE,
GOMODCACHE, GOCACHE and so on) stays the user's choice; go.sum decides whether they are right.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.binaries.catalogue import Platform
from capelin.embedded.binaries.errors import WayFailedError

_GRACE = 5.0
_LINE_LIMIT = 2**20
# What `go build -v` and downloads print when all goes well.
_CHATTER = re.compile(r"[\w./~+-]+|go: downloading .*")


@dataclass(frozen=True, slots=True)
class Go:
    """A Go command with the environment to run it in."""

    command: str
    version: str
    environment: Mapping[str, str]

    async def run(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        keep_open: tuple[int, ...] = (),
        said: Callable[[str], None] | None = None,
    ) -> str:
        """Its standard output; what it says meanwhile goes to `said`, line by line."""
        return await _run(
            self.command,
            *arguments,
            env={**self.environment, **(environment or {})},
            folder=folder,
            keep_open=keep_open,
            said=said,
        )


async def find_go(
    module_files: Path,
    *,
    what: str,
    environment: Mapping[str, str],
    platform: Platform,
    noted: Callable[[str], None],
) -> Go:
    """The Go command, if it is new enough for these module files or may make itself so."""
    needed = needed_go(module_files)
    command = shutil.which("go", path=environment.get("PATH"))
    if command is None:
        raise WayFailedError("there is no go command on PATH")
    settings = {
        **environment,
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        # An empty value would let a `go env -w GOFLAGS=...` of the user's through.
        "GOFLAGS": "-mod=readonly",
        "GOOS": platform.system,
        "GOARCH": platform.architecture,
        "GOWORK": "off",
    }
    local = {**settings, "GOTOOLCHAIN": "local"}
    told = await _run(command, "env", "GOVERSION", env=local, folder=Path("/"))
    version = told.strip().removeprefix("go")
    if _parts(version) >= _parts(needed):
        return Go(command, version, local)
    choice = await _run(command, "env", "GOTOOLCHAIN", env=settings, folder=Path("/"))
    if not choice.strip().endswith(("auto", "path")) or _parts(version) < (1, 21):
        raise WayFailedError(
            f"{command} is Go {version}, and {what} needs Go {needed} or later"
            " (GOTOOLCHAIN=auto would let Go 1.21 and later fetch that itself)"
        )
    noted(f"{command} is Go {version}; it fetches the Go {needed} that {what} needs")
    return Go(command, needed, settings)


def needed_go(module_files: Path) -> str:
    """The oldest Go that can build what these module files pin."""
    found = re.search(r"^go (\S+)$", (module_files / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{module_files}/go.mod does not say which Go it needs")
    return found[1]


async def _run(
    *command: str,
    env: Mapping[str, str],
    folder: Path,
    keep_open: tuple[int, ...] = (),
    said: Callable[[str], None] | None = None,
) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT,
        pass_fds=keep_open,
        # Its own group, so that its compilers can be ended with it.
        process_group=0,
    )
    try:
        output, complaints = await asyncio.gather(
            _all_of(process.stdout), _complaints(process.stderr, said)
        )
        status = await process.wait()
    finally:
        await _end(process)
    if status != 0:
        reason = "\n    ".join(complaints[-8:]) or f"exit status {status}"
        raise WayFailedError(f"`go {command[1]}` failed: {reason}")
    return output.decode()


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream else b""


async def _complaints(
    stream: asyncio.StreamReader | None, said: Callable[[str], None] | None
) -> list[str]:
    complaints: list[str] = []
    if stream is None:
        return complaints
    async for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if said is not None:
            said(line)
        if line and not _CHATTER.fullmatch(line):
            complaints.append(line)
    return complaints


async def _end(process: asyncio.subprocess.Process) -> None:
    # SIGINT lets go remove its temporary files; it may have been started with it ignored.
    for number, patience in ((signal.SIGINT, _GRACE), (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            await asyncio.wait_for(process.wait(), patience)
        except TimeoutError:
            continue


def _parts(version: str) -> tuple[int, ...]:
    # go1.26rc1 and "go1.26.8 X:nodwarf5" count as the release they belong to.
    return tuple(int(part) for part in re.findall(r"\d+", version.split(maxsplit=1)[0])[:3])
