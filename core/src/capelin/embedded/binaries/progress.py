"""How the getting of a program tells what it is doing."""

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Progress(Protocol):
    """Is told what happens; `what` names the program, or the programs that come together."""

    def started(self, what: str, way: str) -> None:
        """A way to a program is being tried."""
        ...

    def advanced(self, what: str, way: str, done: int, total: int | None, unit: str) -> None:
        """So many bytes have come, or so many packages been compiled."""
        ...

    def noted(self, what: str, way: str, message: str) -> None:
        """Something that explains why it takes long, or why it goes another way."""
        ...

    def finished(self, what: str, way: str) -> None:
        """The program is in the cache."""
        ...

    def failed(self, what: str, way: str, reason: str) -> None:
        """This way did not lead there."""
        ...


class PlainProgress:
    """Lines of text, for logs: one when something happens, and one now and then in between."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._last: dict[tuple[str, str], float] = {}

    def started(self, what: str, way: str) -> None:
        """Say that a way is being tried."""
        self._last[what, way] = self._clock()
        self._say(f"{what}: {way}")

    def advanced(self, what: str, way: str, done: int, total: int | None, unit: str) -> None:
        """Say how far it is, unless that was said a moment ago."""
        now = self._clock()
        if now - self._last.get((what, way), now) < self._every:
            return
        self._last[what, way] = now
        self._say(f"{what}: {way}: {amount(done, total, unit)}")

    def noted(self, what: str, way: str, message: str) -> None:
        """Say it."""
        self._say(f"{what}: {way}: {message}")

    def finished(self, what: str, way: str) -> None:
        """Say that the program is there."""
        self._say(f"{what}: {way}: done")

    def failed(self, what: str, way: str, reason: str) -> None:
        """Say why this way did not lead there."""
        self._say(f"{what}: {way}: failed: {reason}")

    def _say(self, line: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(line + "\n")
        stream.flush()


def amount(done: int, total: int | None, unit: str) -> str:
    """As in `12 of 40 MB` or `310 packages`."""
    if unit == "bytes":
        done, unit = round(done / 1e6), "MB"
        total = None if total is None else round(total / 1e6)
    return f"{done} {unit}" if total is None else f"{done} of {total} {unit}"
