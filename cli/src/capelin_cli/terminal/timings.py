"""How long the steps of a checklist took, and why: for people and for programs."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from capelin_cli.terminal.checklist import Line
from capelin_cli.terminal.tables import Column, table_of

_SHORTEST_WAIT = 0.05


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
