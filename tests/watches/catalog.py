"""The results of the comparison of watches, and their table in the documents."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.support.result_tables import ResultTable

FOLDER: Final = Path(__file__).parent
RESULTS: Final = FOLDER / "results.json"
PAGE: Final = FOLDER.parents[1] / "docs/concepts/watches.md"
SHOWN: Final = ResultTable(PAGE, "python -m tests.watches")


@dataclass(frozen=True, slots=True)
class Played:
    """One seed, played against one manager."""

    seed: int
    restored: bool
    """The API server got an earlier state in this seed."""
    after_restore: bool
    """It got one since the process started, or in this seed."""
    outdated: tuple[str, ...]
    """The objects whose last reconcile was before a change, with its view."""
    ended: bool
    """The process has ended."""
    seconds: float
    """From the end of the failures until nothing is outdated."""


@dataclass(frozen=True, slots=True)
class Result:
    """All seeds of one manager."""

    seeds: int
    restored: int
    outdated: dict[str, int]
    """The number of outdated objects by seed, without an earlier state of the API server."""
    outdated_after_restore: dict[str, int]
    """The same, with an earlier state of the API server."""
    ended: list[int]
    """The seeds in which the process ended."""
    median: float
    longest: float

    @property
    def row(self) -> str:
        after = self.outdated_after_restore
        return (
            f"{self.seeds} | {self.restored} | {sum(self.outdated.values())} |"
            f" {sum(after.values())} in {len(after)} seeds |"
            f" {len(self.ended)} | {self.median:.1f} s | {self.longest:.1f} s"
        )


def result_of(played: Sequence[Played]) -> Result:
    """Add up seeds. Those with an outdated object have no time."""
    times = [it.seconds for it in played if not it.outdated and not it.ended]
    outdated, after_restore = (
        {
            str(it.seed): len(it.outdated)
            for it in played
            if it.outdated and it.after_restore is restored
        }
        for restored in (False, True)
    )
    return Result(
        seeds=len(played),
        restored=sum(it.restored for it in played),
        outdated=outdated,
        outdated_after_restore=after_restore,
        ended=[it.seed for it in played if it.ended],
        median=round(median(times), 2),
        longest=round(max(times), 2),
    )


def read_results() -> dict[str, Result]:
    """The results of the last run, by the manager with its version."""
    stored: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    return {name: Result(**fields) for name, fields in stored.items()}


def table(results: dict[str, Result]) -> str:
    """The results as a Markdown table."""
    head = (
        "| manager | seeds | with a restore | outdated without a restore |"
        " outdated after a restore | ends of the process | median time | longest time |"
    )
    rows = [f"| {name} | {result.row} |" for name, result in results.items()]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows, ""])


def store(results: dict[str, Result]) -> None:
    """Store the results, and replace the table in the documents."""
    stored = {name: asdict(result) for name, result in results.items()}
    RESULTS.write_text(json.dumps(stored, indent=2) + "\n")
    SHOWN.write(table(results))
