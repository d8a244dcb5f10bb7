"""Hard limits by cgroups, version 1 or 2, if this user may create one."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from capelin_embedded.processes.spec import Limits

ROOT = Path("/sys/fs/cgroup")

_PERIOD_MICROSECONDS = 100_000


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup to create: its folder and the content of its files."""

    folder: Path
    settings: Mapping[str, str]

    @property
    def limits_cpus(self) -> bool:
        return any(file.startswith("cpu.") for file in self.settings)


def groups(limits: Limits, name: str, own: Mapping[str, str], root: Path = ROOT) -> Iterator[Group]:
    """The cgroups that enforce limits. Empty without hard limits or without permission.

    `own` maps controllers to the cgroup of this process, like `/proc/self/cgroup`. The empty
    controller means version 2.
    """
    if (root / "cgroup.controllers").exists():
        yield from _version_2(limits, name, root, own.get("", "/"))
    else:
        yield from _version_1(limits, name, root, own)


def own_groups() -> dict[str, str]:
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    return own


def group_name(folder: Path, name: str) -> str:
    """A name for the cgroup of a process, different in each state folder."""
    digest = hashlib.sha256(f"{folder}/{name}".encode()).hexdigest()
    return f"capelin-{digest[:16]}"


def confine(pid: int, group: Group) -> bool:
    """Move a process into its cgroup. False if the kernel rejects it."""
    try:
        group.folder.mkdir(exist_ok=True)
        for file, value in group.settings.items():
            (group.folder / file).write_text(value)
        (group.folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        remove(group.folder)
        return False
    return True


def ran_out_of_memory(folder: Path) -> bool:
    """Whether the kernel killed a process of this cgroup for its memory limit."""
    for file in ("memory.events", "memory.oom_control"):
        with suppress(OSError):
            for line in (folder / file).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return count != "0"
    return False


def remove(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _version_2(limits: Limits, name: str, root: Path, own: str) -> Iterator[Group]:
    settings: dict[str, str] = {}
    if limits.memory_bytes is not None:
        settings["memory.max"] = str(limits.memory_bytes)
    if limits.cpus is not None:
        settings["cpu.max"] = f"{_quota(limits.cpus)} {_PERIOD_MICROSECONDS}"
    if not settings:
        return
    needed = {file.partition(".")[0] for file in settings}
    own_folder = root / own.lstrip("/")
    # A cgroup with processes cannot delegate controllers: create ours next to, or above, our own.
    for parent in (own_folder, *own_folder.parents):
        delegated = parent / "cgroup.subtree_control"
        if delegated.exists() and needed <= {*delegated.read_text().split()}:
            if os.access(parent, os.W_OK):
                yield Group(parent / name, settings)
            return


def _version_1(limits: Limits, name: str, root: Path, own: Mapping[str, str]) -> Iterator[Group]:
    by_controller: dict[str, dict[str, str]] = {}
    if limits.memory_bytes is not None:
        by_controller["memory"] = {"memory.limit_in_bytes": str(limits.memory_bytes)}
    if limits.cpus is not None:
        by_controller["cpu"] = {
            "cpu.cfs_period_us": str(_PERIOD_MICROSECONDS),
            "cpu.cfs_quota_us": str(_quota(limits.cpus)),
        }
    for controller, settings in by_controller.items():
        parent = root / controller / own.get(controller, "/").lstrip("/")
        if os.access(parent, os.W_OK):
            yield Group(parent / name, settings)


def _quota(cpus: float) -> int:
    return max(1000, int(cpus * _PERIOD_MICROSECONDS))
