"""Reports how the download or build of programs goes: as lines of a log or live in a terminal."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

_ENOUGH_SHARE: Final = 0.25
_ENOUGH_SECONDS: Final = 10.0
"""With less than that, an estimate would be a guess: the first packages are small."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Something that happened on the way to a program, or to programs that come together."""

    kind: Literal["started", "advanced", "noted", "finished", "failed"]
    what: str
    """The programs, as in `etcd, etcdctl v3.6.5`."""
    source: str
    """Where they come from, as in `go build`."""
    message: str = ""
    """Why it failed, or what explains that it takes long."""
    done: int = 0
    total: int | None = None
    unit: str = ""
    """What `done` and `total` count: `bytes`, `modules` or `packages`."""
    seconds_left: float | None = None
    """An estimate; None as long as there is too little to go by."""

    @property
    def amount(self) -> str:
        """As in `310 of 1210 packages, about 8 min left`."""
        text = amount(self.done, self.total, self.unit)
        if self.unit == "packages" and self.done == self.total:
            return f"{text}, linking"
        return text if self.seconds_left is None else f"{text}, {time_left(self.seconds_left)}"

    def __str__(self) -> str:
        words = {
            "started": "",
            "advanced": self.amount,
            "noted": self.message,
            "finished": "done",
            "failed": f"failed: {self.message}",
        }[self.kind]
        return f"{self.what}: {self.source}" + (f": {words}" if words else "")


Progress = Callable[[ProgressEvent], None]
"""Receives each event."""


class PlainProgress:
    """Lines of text for logs: one for every event, amounts only every few seconds."""

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

    def __call__(self, event: ProgressEvent) -> None:
        """Write a line, unless the last one about this is recent."""
        now = self._clock()
        task = (event.what, event.source)
        if event.kind == "advanced" and now - self._last.get(task, now) < self._every:
            return
        if event.kind in {"started", "advanced"}:
            self._last[task] = now
        stream = self._stream or sys.stderr
        stream.write(f"{event}\n")
        stream.flush()


class LiveProgress:
    """A live bar for each task, and above them plain lines for what has happened."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __call__(self, event: ProgressEvent) -> None:
        """Begin, move or end the bar of the event's task."""
        task = (event.what, event.source)
        match event.kind:
            case "started":
                # No total yet: the bar pulses.
                self._tasks[task] = self._bars.add_task(str(event), total=None, amount="")
                self._bars.start()
            case "advanced":
                self._bars.update(
                    self._tasks[task], completed=event.done, total=event.total, amount=event.amount
                )
            case "noted":
                self._print(event)
            case "finished" | "failed":
                self._end(task)
                self._print(event)

    def _end(self, task: tuple[str, str]) -> None:
        self._bars.remove_task(self._tasks.pop(task))
        if not self._tasks:
            # A display that still runs when the process ends would leave the cursor hidden.
            self._bars.stop()

    def _print(self, event: ProgressEvent) -> None:
        self._bars.console.print(str(event), markup=False, highlight=False, soft_wrap=True)


def default_progress() -> Progress:
    """Live bars if standard error is a terminal, plain lines if not."""
    return LiveProgress(Console(stderr=True)) if sys.stderr.isatty() else PlainProgress()


def amount(done: int, total: int | None, unit: str) -> str:
    """As in `12 of 40 MB` or `310 packages`."""
    if unit == "bytes":
        done, unit = round(done / 1e6), "MB"
        total = None if total is None else round(total / 1e6)
    return f"{done} {unit}" if total is None else f"{done} of {total} {unit}"


def estimate_seconds_left(share: float | None, elapsed: float) -> float | None:
    """How long the rest takes at the pace so far; None if there is too little to go by."""
    if share is None or share < _ENOUGH_SHARE or elapsed < _ENOUGH_SECONDS:
        return None
    return elapsed * (1 - share) / share


def time_left(seconds: float) -> str:
    """As in `about 8 min left`: an estimate is not exact to the second."""
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes > 1 else "about a minute left"
