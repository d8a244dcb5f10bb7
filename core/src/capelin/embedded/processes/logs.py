"""The log files of processes: size-capped without a pump, and what they say at the end."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

_TAIL_BYTES = 16 * 1024
_KLOG = re.compile(r"(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ [\w.-]+:\d+\] (?P<text>.*)")
_LOUD = re.compile(r"(panic|fatal|error|err)\b", re.IGNORECASE)
_LONGEST_REASON = 300


def open_log(path: Path) -> int:
    """A descriptor to append to, so that the file can be cut short under the writer."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def rotate(path: Path, longest: int) -> bool:
    """Move what a log holds to `<name>.1` once it is longer than `longest` bytes.

    The writer keeps its descriptor. What it writes between the copy and the cut is lost: a few
    lines at most, which a development log can spare.
    """
    if not path.exists() or path.stat().st_size <= longest:
        return False
    fresh = path.with_name(f".{path.name}.1")
    with (
        path.open("rb") as source,
        os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy,
    ):
        shutil.copyfileobj(source, copy, 1024 * 1024)
    os.truncate(path, 0)
    fresh.replace(path.with_name(f"{path.name}.1"))
    return True


def tail(path: Path, start: int) -> list[str]:
    """The last lines that were written at or after `start`."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # A log that was cut short holds nothing older than the cut.
            first = start if start <= end else 0
            skips_into_line = end - first > _TAIL_BYTES
            file.seek(max(first, end - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[1:] if skips_into_line else lines


def complaint(lines: Sequence[str]) -> str:
    """The line that says best why a process ended, without what differs from run to run."""
    read = [line for line in (_read(line) for line in lines) if line[1]]
    for wanted in (3, 2, 1):
        for level, text in reversed(read):
            if level >= wanted:
                return text[:_LONGEST_REASON]
    return ""


def _read(line: str) -> tuple[int, str]:
    """How loud a line is (3 fatal, 2 error, 1 anything) and what it says."""
    klog = _KLOG.match(line)
    if klog:
        return {"F": 3, "E": 2}.get(klog["level"], 0), klog["text"].strip()
    if line.startswith("{"):
        return _read_json(line)
    text = line.strip()
    if text.startswith(("goroutine ", "Usage:", "-", "/")):
        return 0, text
    return (3 if _LOUD.match(text) else 1), text


def _read_json(line: str) -> tuple[int, str]:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return 1, line
    fields = cast("dict[str, Any]", entry)
    level = {"fatal": 3, "panic": 3, "error": 2}.get(str(fields.get("level", "")), 0)
    said = [str(fields[key]) for key in ("msg", "error") if fields.get(key)]
    return level, ": ".join(said)
