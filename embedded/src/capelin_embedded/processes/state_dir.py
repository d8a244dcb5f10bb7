"""Files of a state folder: a record for each started process, and its log."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from capelin_embedded.processes import cgroups
from capelin_embedded.processes.proc import Identity

_SUFFIX = ".process"
_TAIL_BYTES = 16 * 1024
_KLOG = re.compile(r"(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ [\w.-]+:\d+\] (?P<text>.*)")
_PYTHON = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z? +(?P<level>[A-Z]+) +(?P<text>.*)",
)
_FATAL = re.compile(r"(panic|fatal)\b", re.IGNORECASE)
_LOUD = re.compile(r"(error|err)\b", re.IGNORECASE)
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Record:
    """A started process, with enough data to find it again and to stop it in order."""

    name: str
    identity: Identity
    hash: str
    log_start: int
    after: tuple[str, ...]
    grace: float
    groups: tuple[str, ...] = ()
    """The folders of its control groups."""
    restarts: int = 0
    """How often earlier processes of this name ended by themselves and were restarted."""
    last_end: str = ""
    """The reason of its predecessor's end."""


def private_folder(path: Path) -> Path:
    """Ensure that a folder exists and is private to its owner. Returns its absolute path."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to another user, who could read the keys in it. Choose another folder"
        )
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path.resolve()


def write_private(path: Path, content: bytes, *, lasting: bool = False) -> None:
    """Replace a file atomically. Only its owner can read it.

    With `lasting` it survives a power failure complete. That takes longer.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def write_record(folder: Path, record: Record) -> None:
    write_private(folder / f"{record.name}{_SUFFIX}", json.dumps(asdict(record)).encode())


def remove_record(folder: Path, name: str) -> None:
    record = read_record(folder, name)
    for group in () if record is None else record.groups:
        cgroups.remove(Path(group))
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def read_record(folder: Path, name: str) -> Record | None:
    """The record of a process.

    None if the record is missing or unreadable. The marker in its environment still identifies such
    a process.
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
            restarts=data.get("restarts", 0),
            last_end=data.get("last_end", ""),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def recorded_names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        if not path.name.startswith("."):
            yield path.name.removesuffix(_SUFFIX)


def log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def open_log(path: Path) -> int:
    """Open a log for appending, so that it can be truncated while a process writes to it."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def rotate_log(path: Path, longest: int) -> bool:
    """Move a log's content to `<name>.1` if it is longer than `longest` bytes.

    The writer keeps its descriptor. Lines that it writes between copying and truncating disappear.
    """
    if not path.exists() or path.stat().st_size <= longest:
        return False
    temporary = path.with_name(f".{path.name}.1")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as copy, path.open("rb") as source:
            shutil.copyfileobj(source, copy, 1024 * 1024)
    except OSError:
        # On a full disk, half a copy would take the space that others need.
        temporary.unlink(missing_ok=True)
        raise
    os.truncate(path, 0)
    temporary.replace(path.with_name(f"{path.name}.1"))
    return True


def log_tail(path: Path, start: int) -> list[str]:
    """The last lines that were written at or after `start`."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # After a rotation, everything in the file is newer than `start`.
            first = start if start <= end else 0
            skips_into_line = end - first > _TAIL_BYTES
            file.seek(max(first, end - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if skips_into_line else lines


def exit_reason(lines: Sequence[str], *, only_fatal: bool = False) -> str:
    """The line that best explains why a process ended, without parts that differ in each run.

    With `only_fatal`, only a line counts after which every process ends: others may concern
    anything.
    """
    parsed = [(level, text) for level, text in map(_parse_line, lines) if text]
    for lowest in (4,) if only_fatal else (3, 2, 1):
        for level, text in reversed(parsed):
            if level >= lowest:
                return _in_full(text, parsed)[:_LONGEST_REASON]
    return ""


def _in_full(text: str, parsed: Sequence[tuple[int, str]]) -> str:
    """The same message with its cause, if the program logged that before it panicked."""
    start = f"{text.removeprefix('panic: ')}: "
    return next((other for _, other in reversed(parsed) if other.startswith(start)), text)


def _parse_line(line: str) -> tuple[int, str]:
    """The severity of a line and its message.

    4 is fatal, 3 and 2 are errors, 1 is anything else, 0 is noise.
    """
    klog = _KLOG.match(line)
    if klog:
        return {"F": 4, "E": 2}.get(klog["level"], 0), klog["text"].strip()
    if python := _PYTHON.match(line):
        return {"CRITICAL": 4, "ERROR": 2}.get(python["level"], 0), python["text"].strip()
    if line.startswith("{"):
        return _parse_json(line)
    text = line.strip()
    if text.startswith(("goroutine ", "Usage:", "-", "/")):
        return 0, text
    if _FATAL.match(text):
        return 4, text
    return (3 if _LOUD.match(text) else 1), text


def _parse_json(line: str) -> tuple[int, str]:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return 1, line
    fields = cast("dict[str, Any]", entry)
    level = {"fatal": 4, "panic": 4, "error": 2}.get(str(fields.get("level", "")), 0)
    texts = [str(fields[key]) for key in ("msg", "error") if fields.get(key)]
    return level, ": ".join(texts)
