"""Reports the progress of downloads and builds: as lines of a log or live in a terminal."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """An event in the download or build of one binary, or of several together."""

    kind: Literal["started", "advanced", "noted", "finished", "failed"]
    what: str
    """The binaries, such as `etcd, etcdctl v3.6.8`."""
    source: str
    """Their source, such as `go build`."""
    message: str = ""
    """The reason of a failure or a delay."""
    done: int = 0
    total: int | None = None
    unit: str = ""
    """The unit of `done` and `total`: `bytes`, `modules` or `packages`."""

    @property
    def amount(self) -> str:
        """For example `310 of 1210 packages`."""
        text = amount(self.done, self.total, self.unit)
        if self.unit == "packages" and self.done == self.total:
            return f"{text}, linking"
        return text

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
        """Write a line, unless a recent line covers the same task."""
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
    """A live bar for each task, and plain lines for finished events above them."""

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
    """For example `12 of 40 MB` or `310 packages`."""
    if unit == "bytes":
        done, unit = round(done / 1e6), "MB"
        total = None if total is None else round(total / 1e6)
    return f"{done} {unit}" if total is None else f"{done} of {total} {unit}"
