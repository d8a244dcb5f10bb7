"""Live lines for people who watch a terminal."""

import sys

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from capelin.embedded.binaries.progress import PlainProgress, Progress, amount


class LiveProgress:
    """A line that moves for everything under way, and plain lines above for what has happened."""

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

    def started(self, what: str, way: str) -> None:
        """Begin a line."""
        # No total yet: the bar pulses.
        self._tasks[what, way] = self._bars.add_task(f"{what}: {way}", total=None, amount="")
        self._bars.start()

    def advanced(self, what: str, way: str, done: int, total: int | None, unit: str) -> None:
        """Move the line's bar."""
        self._bars.update(
            self._tasks[what, way], completed=done, total=total, amount=amount(done, total, unit)
        )

    def noted(self, what: str, way: str, message: str) -> None:
        """Say it above the lines."""
        self._say(f"{what}: {way}: {message}")

    def finished(self, what: str, way: str) -> None:
        """End the line."""
        self._end(what, way)
        self._say(f"{what}: {way}: done")

    def failed(self, what: str, way: str, reason: str) -> None:
        """End the line and say why."""
        self._end(what, way)
        self._say(f"{what}: {way}: failed: {reason}")

    def _end(self, what: str, way: str) -> None:
        self._bars.remove_task(self._tasks.pop((what, way)))
        if not self._tasks:
            # A display that still runs when the process ends would leave no cursor.
            self._bars.stop()

    def _say(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_here() -> Progress:
    """Live lines if standard error is a terminal, plain ones if not."""
    return LiveProgress(Console(stderr=True)) if sys.stderr.isatty() else PlainProgress()
