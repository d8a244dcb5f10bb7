"""A list of steps that is crossed off while people watch: live on a terminal, else line by line."""

import os
import termios
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from capelin_cli.terminal.tables import Column, table_of
from capelin_cli.terminal.text import as_invoked, printable

_MARKS: Final = {"done": ("✔", "green"), "failed": ("✘", "red"), "waiting": ("·", "dim")}
_SHORTEST_WAIT = 0.05


@dataclass(slots=True)
class Line:
    """One step."""

    title: str
    state: str = "waiting"
    seconds: float | None = None
    detail: str = ""
    began: float = field(default=0.0)
    printed: float = field(default=0.0)
    """When it last printed a line, if no terminal shows it all the time."""
    waits: dict[str, float] = field(default_factory=dict[str, float])
    """The reasons why it took time, in their order, each with its seconds."""
    reason: str = ""
    """The last one of them, as long as it lasts."""
    reason_since: float = 0.0


class Checklist:
    """Steps in their order, with what each is doing and how long it took."""

    def __init__(
        self, console: Console, every: float = 15.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console
        self._clock = clock
        self._every = every
        """Seconds between lines about a step that takes long, without a terminal."""
        self.lines: list[Line] = []
        self._live: Live | None = None
        self._spinners: dict[str, Spinner] = {}

    @contextmanager
    def shown(self) -> Generator["Checklist"]:
        """Show the list until the end of the block, and leave its last state standing."""
        if not self.console.is_terminal:
            yield self
            return
        with (
            _without_echo_of_control_characters(self.console),
            Live(get_renderable=self.render, console=self.console, refresh_per_second=8) as live,
        ):
            self._live = live
            yield self

    def begin(self, title: str) -> Line:
        """A step begins."""
        now = self._clock()
        line = Line(title, "running", began=now, printed=now)
        self.lines.append(line)
        return line

    def update(self, line: Line, detail: str, *, reason: str | None = None) -> None:
        """Show the progress of a step: at once on a terminal, else now and then.

        Timings count it under `reason`, if the detail changes all the time.
        """
        line.detail = detail = printable(detail)
        now = self._clock()
        _wait(line, detail if reason is None else reason, now)
        if self._live is None and now - line.printed >= self._every:
            line.printed = now
            mark, style = _MARKS["waiting"]
            text = f" {line.title}  {now - line.began:.0f} s  {detail}"
            self.console.print(Text.assemble((mark, style), text), soft_wrap=True)

    def showing(self, line: Line) -> Callable[[str], None]:
        """A function that updates a step."""
        return lambda detail: self.update(line, detail)

    def note(self, line: Line, detail: str, *, reason: str | None = None) -> None:
        """Print an event of a long step that is worth a line of its own in a log."""
        line.detail = detail = printable(detail)
        _wait(line, detail if reason is None else reason, self._clock())
        if self._live is None:
            mark, style = _MARKS["waiting"]
            self.console.print(Text.assemble((mark, style), f" {detail}"), soft_wrap=True)

    def say(self, text: str) -> None:
        """Print something that stays above the list."""
        self.console.print(as_invoked(text), highlight=False, markup=False, soft_wrap=True)

    def end(self, line: Line, *, seconds: float | None = None, detail: str = "") -> None:
        """A step is done."""
        self._close(line, "done", seconds, detail)

    def fail(self, line: Line, detail: str) -> None:
        """A step did not work."""
        self._close(line, "failed", None, detail)

    @contextmanager
    def step(self, title: str) -> Generator[Line]:
        """A step that is done at the end of the block."""
        line = self.begin(title)
        try:
            yield line
        except BaseException:
            self.fail(line, line.detail)
            raise
        self.end(line, detail=line.detail)

    def render(self) -> RenderableType:
        """The list as it is now."""
        table = Table.grid(padding=(0, 1))
        for line in self.lines:
            # Long words fold instead of being cut: they may be part of a command to copy.
            detail = Text(line.detail, "dim", overflow="fold")
            table.add_row(self._mark(line), line.title, self._took(line), detail)
        return Group(table)

    def _mark(self, line: Line) -> RenderableType:
        if line.state == "running":
            return self._spinners.setdefault(line.title, Spinner("dots", style="cyan"))
        mark, style = _MARKS[line.state]
        return Text(mark, style)

    def _took(self, line: Line) -> Text:
        running = self._clock() - line.began if line.state == "running" else None
        seconds = running if line.seconds is None else line.seconds
        return Text("" if seconds is None else f"{seconds:.1f} s", "dim", justify="right")

    def _close(self, line: Line, state: str, seconds: float | None, detail: str) -> None:
        line.state, line.detail = state, printable(detail)
        now = self._clock()
        _wait(line, "", now)
        line.seconds = now - line.began if seconds is None else seconds
        # Another process may have measured it, and begun earlier.
        line.began = now - line.seconds
        if self._live is None:
            shown = f"  {line.detail}" if detail else ""
            text = Text.assemble(
                _MARKS[state], f" {line.title}  ", self._took(line), (shown, "dim")
            )
            self.console.print(text, soft_wrap=True)


@contextmanager
def _without_echo_of_control_characters(console: Console) -> Generator[None]:
    """Keep ^C off the screen: after a full line it would move the cursor, and leave that line."""
    try:
        terminal = console.file.fileno()
        before = termios.tcgetattr(terminal)
        is_foreground = os.tcgetpgrp(terminal) == os.getpgrp()
    except (OSError, ValueError, termios.error):
        is_foreground, terminal, before = False, -1, []
    if not is_foreground:
        # The system would stop a background process that changes the terminal.
        yield
        return
    quiet = [*before]
    quiet[3] = cast("int", before[3]) & ~termios.ECHOCTL
    # At once: a terminal that nothing reads would never be drained.
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def _wait(line: Line, reason: str, now: float) -> None:
    """Count the time that the last reason took, and begin another."""
    if line.reason:
        line.waits[line.reason] += now - line.reason_since
    if reason:
        line.waits.setdefault(reason, 0.0)
    line.reason, line.reason_since = reason, now


def timings_table(lines: Sequence[Line]) -> Table:
    """A row for each step: its start, its duration, and its reasons to wait."""
    first = min((line.began for line in lines), default=0.0)
    columns = (
        Column[Line]("STAGE", lambda line: line.title),
        Column[Line]("BEGAN", lambda line: f"{line.began - first:.1f} s", right=True),
        Column[Line]("TOOK", lambda line: _seconds(line.seconds), right=True),
        Column[Line]("WAITED FOR", _waits),
    )
    return table_of(lines, columns)


def timings_data(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The same for programs."""
    first = min((line.began for line in lines), default=0.0)
    return [
        {
            "stage": line.title,
            "state": line.state,
            "began": round(line.began - first, 2),
            "seconds": None if line.seconds is None else round(line.seconds, 2),
            "waitedFor": [
                {"reason": reason, "seconds": round(seconds, 2)}
                for reason, seconds in line.waits.items()
            ],
        }
        for line in lines
    ]


def _waits(line: Line) -> str:
    return "\n".join(
        f"{seconds:.1f} s {reason}"
        for reason, seconds in line.waits.items()
        if seconds >= _SHORTEST_WAIT
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
