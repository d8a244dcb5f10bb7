"""What the processes of an environment said: their last lines, and the next ones as they come."""

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Final, TextIO

from capelin.embedded.management import Environment
from capelin.errors import MissingError

from capelin_infra.connection import find_environment

_LOOK_SECONDS: Final = 0.2


async def print_logs(
    name: str, component: str | None, *, lines: int, follow: bool, out: TextIO | None = None
) -> None:
    """Print the last lines of one process or of all, and go on until Ctrl-C if told so.

    Raises:
        MissingError: if there is no such environment or process.
    """
    stream = out or sys.stdout
    files = _files(find_environment(name), component)
    tails = [Tail(path, named=len(files) > 1) for path in files]
    for tail in tails:
        tail.print_last(lines, stream)
    while follow:
        for tail in tails:
            tail.print_new(stream)
        stream.flush()
        await asyncio.sleep(_LOOK_SECONDS)


class Tail:
    """The end of one log."""

    def __init__(self, path: Path, *, named: bool) -> None:
        self._path = path
        self._prefix = f"{path.stem}: " if named else ""
        self._read = 0

    def print_last(self, lines: int, out: TextIO) -> None:
        """Print the last lines that there are now."""
        with self._path.open(errors="replace") as file:
            self._print(deque(file, maxlen=lines), out)
            self._read = file.tell()

    def print_new(self, out: TextIO) -> None:
        """Print what has come since."""
        # A log that has become shorter was rotated.
        if self._path.stat().st_size < self._read:
            self._read = 0
        with self._path.open(errors="replace") as file:
            file.seek(self._read)
            self._print(file, out)
            self._read = file.tell()

    def _print(self, lines: "deque[str] | TextIO", out: TextIO) -> None:
        out.writelines(f"{self._prefix}{line.rstrip()}\n" for line in lines)


def _files(environment: Environment, component: str | None) -> list[Path]:
    folders = (environment.supervisor, environment.processes)
    logs = {path.stem: path for folder in folders for path in sorted(folder.glob("*.log"))}
    if component is None:
        return list(logs.values())
    if component not in logs:
        raise MissingError(
            f"Environment {environment.name} has no process {component}.",
            reason=f"Those that there are: {', '.join(logs) or 'none'}.",
            hint="Name one of them.",
        )
    return [logs[component]]
