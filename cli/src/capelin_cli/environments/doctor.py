"""Checks this machine for everything that environments need."""

import asyncio
import os
import resource
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from capelin.api.capi import ExtensionConfig
from capelin.client import ClientError
from capelin_embedded.addresses import address_of
from capelin_embedded.binaries import (
    DEFAULT_KUBERNETES,
    Binaries,
    installed_go,
    is_new_enough,
    newest_needed_go,
    parse_component,
)
from capelin_embedded.folders import state_folder
from capelin_embedded.management import (
    all_environments,
    current_status,
    required_programs,
)
from rich.console import Console
from rich.text import Text

from capelin_cli.environments.connection import client_of

Verdict = Literal["good", "poor", "bad"]

_GIGABYTE: Final = 1_000_000_000
_MARKS: Final[dict[Verdict, tuple[str, str]]] = {
    "good": ("✔", "green"),
    "poor": ("!", "yellow"),
    "bad": ("✘", "red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Only `bad` keeps `up` from working."""

    verdict: Verdict
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that findings depend on."""

    system: str
    memory_bytes: int
    free_bytes: int
    fullest: Path
    """The folder of programs or environments whose file system has the least space."""
    writable: bool
    loopback: bool
    open_files: int
    watches: int
    missing_programs: int
    go: str | None
    """Go's version, such as `1.26.8`. None if it is not on PATH or cannot run."""
    needed_go: str
    """The oldest Go that builds every program without fetching a newer Go first."""


async def check_machine(console: Console | None = None) -> bool:
    """Print the findings. Returns whether `capelin up` can work here."""
    console = console or Console()
    findings = judge(await asyncio.to_thread(this_machine))
    findings += [
        Finding(
            "poor",
            f"Cluster API's core would not start again: it cannot discover {extension}",
            "Start the extension, or remove its ExtensionConfig before core restarts.",
        )
        for extension in await undiscovered_extensions()
    ]
    for finding in findings:
        mark, style = _MARKS[finding.verdict]
        console.print(Text.assemble((mark, style), f" {finding.what}"))
        if finding.hint:
            console.print(Text(f"  {finding.hint}", "dim"))
    return all(finding.verdict != "bad" for finding in findings)


async def undiscovered_extensions() -> list[str]:
    """ExtensionConfigs of running environments that Cluster API could not discover, with why.

    Its core does not start again while there is one.
    """
    found: list[str] = []
    for environment in all_environments():
        if current_status(environment) is None:
            continue
        with suppress(ClientError):
            async with client_of(environment) as client:
                found += [
                    f"{config.name} of environment {environment.name}: {condition.message}"
                    for config in (await client.list(ExtensionConfig)).items
                    for condition in config.status.conditions
                    if condition.type == "Discovered" and condition.status == "False"
                ]
    return found


def judge(machine: MachineFacts) -> list[Finding]:
    """The findings about a machine."""
    if machine.system != "linux":
        hint = "Use a Linux machine, or Linux in a virtual machine."
        return [Finding("bad", f"Environments run on Linux only, this is {machine.system}.", hint)]
    return [
        Finding("good", "Linux"),
        _programs(machine),
        _go(machine),
        _enough(
            machine.memory_bytes >= 2 * _GIGABYTE,
            f"{machine.memory_bytes / _GIGABYTE:.1f} GB of memory",
            "A management cluster takes about 1 GB: stop other programs.",
        ),
        _enough(
            machine.free_bytes >= 3 * _GIGABYTE,
            f"{machine.free_bytes / _GIGABYTE:.1f} GB of disk are free for {machine.fullest}",
            "Up to 3 GB are needed: make room, or set XDG_CACHE_HOME or XDG_STATE_HOME.",
        ),
        _enough(
            machine.open_files >= 4096,
            f"{machine.open_files} files may be open in a process",
            "Raise it with ulimit -n 65536.",
        ),
        _enough(
            machine.watches >= 128,
            f"{machine.watches} inotify instances a user",
            "Raise it with sysctl fs.inotify.max_user_instances=1024.",
        ),
        _needed(
            machine.writable,
            f"the folder for environments {_can(machine.writable)} be written",
            "Set XDG_STATE_HOME to a folder that can be written.",
        ),
        _needed(
            machine.loopback,
            f"loopback addresses {_can(machine.loopback)} be listened on",
            "Bring up the loopback interface: ip link set lo up.",
        ),
    ]


def this_machine() -> MachineFacts:
    """The machine that this runs on."""
    entries = {f"{entry.component}@{entry.version}" for entry in Binaries().cache.entries()}
    asked = [parse_component(name) for name in required_programs(DEFAULT_KUBERNETES, [])]
    missing = [
        program for program in asked if f"{program.component.name}@{program.version}" not in entries
    ]
    folder = _existing(state_folder())
    # Programs and environments may be on different file systems.
    free = {
        path: shutil.disk_usage(_existing(path)).free
        for path in (Binaries().cache.root, state_folder())
    }
    fullest = min(free, key=lambda path: free[path])
    return MachineFacts(
        system=sys.platform,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        free_bytes=free[fullest],
        fullest=fullest,
        writable=os.access(folder, os.W_OK),
        loopback=_can_listen(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        watches=_number(Path("/proc/sys/fs/inotify/max_user_instances")),
        missing_programs=len(missing),
        go=installed_go(os.environ),
        needed_go=newest_needed_go(),
    )


def _programs(machine: MachineFacts) -> Finding:
    if not machine.missing_programs:
        return Finding("good", "all programs are in the cache")
    count = f"{machine.missing_programs} programs are not in the cache"
    if machine.go:
        return Finding("good", f"{count}, and Go can build them")
    hint = (
        "Capelin pulls them from registries that it can reach. Otherwise install Go "
        "(https://go.dev/dl), or name a folder that has them in CAPELIN_BINARIES."
    )
    return Finding("poor", f"{count}, and Go is not available to build them", hint)


def _go(machine: MachineFacts) -> Finding:
    if machine.go is None:
        hint = (
            "Without it only programs in the cache, in CAPELIN_BINARIES and from registries that "
            f"can be reached work. Install Go {machine.needed_go} or later: https://go.dev/dl."
        )
        return Finding("poor", "no Go, which builds programs that cannot be pulled", hint)
    if not is_new_enough(machine.go, machine.needed_go):
        hint = (
            "Go 1.21 and later fetch it themselves, unless GOTOOLCHAIN=local. Else install it: "
            "https://go.dev/dl."
        )
        what = f"Go {machine.go}, but some programs need Go {machine.needed_go}"
        return Finding("poor", what, hint)
    return Finding("good", f"Go {machine.go}, which builds programs that cannot be pulled")


def _enough(enough: bool, what: str, hint: str) -> Finding:  # noqa: FBT001
    return Finding("good", what) if enough else Finding("poor", f"only {what}", hint)


def _needed(there: bool, what: str, hint: str) -> Finding:  # noqa: FBT001
    return Finding("good", what) if there else Finding("bad", what, hint)


def _can(possible: bool) -> str:  # noqa: FBT001
    return "can" if possible else "cannot"


def _can_listen() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address_of("doctor"), 0))
        except OSError:
            return False
    return True


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
