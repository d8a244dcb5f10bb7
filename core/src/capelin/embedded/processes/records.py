"""The state folder: what was started, remembered beyond the process that started it."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capelin.embedded.processes import cgroups
from capelin.embedded.processes.kernel import Identity

_SUFFIX = ".process"


@dataclass(frozen=True, slots=True)
class Record:
    """One process that was started: enough to find it again, and to stop it in order."""

    name: str
    identity: Identity
    hash: str
    log_start: int
    after: tuple[str, ...]
    grace: float
    groups: tuple[str, ...] = ()
    """The folders of its control groups."""


def private_folder(path: Path) -> Path:
    """Make sure that a folder exists and only its owner can look into it; its absolute path."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to another user, who could read the keys in it; choose another folder"
        )
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path.resolve()


def write_private(path: Path, content: bytes, *, lasting: bool = False) -> None:
    """Replace a file in one step, readable by its owner only.

    A lasting one is never found half written, even if the machine loses power. It takes longer.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)


def write(folder: Path, record: Record) -> None:
    """Remember a process."""
    write_private(folder / f"{record.name}{_SUFFIX}", json.dumps(asdict(record)).encode())


def forget(folder: Path, name: str) -> None:
    """Remember a process no more, now that it is gone."""
    record = read(folder, name)
    for group in () if record is None else record.groups:
        cgroups.remove(Path(group))
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def read(folder: Path, name: str) -> Record | None:
    """What is remembered of a process.

    None where nothing is, or nothing that can be read: the marker in the environment of a process
    still gives it away.
    """
    try:
        data: dict[str, Any] = json.loads((folder / f"{name}{_SUFFIX}").read_bytes())
        return Record(
            name=name,
            identity=Identity(**data["identity"]),
            hash=data["hash"],
            log_start=data["log_start"],
            after=tuple(data["after"]),
            grace=data["grace"],
            groups=tuple(data["groups"]),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def names(folder: Path) -> Iterator[str]:
    """The names of all remembered processes."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        if not path.name.startswith("."):
            yield path.name.removesuffix(_SUFFIX)
