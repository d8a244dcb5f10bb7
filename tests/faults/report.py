"""Recoveries of a campaign: a journal and a report."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Recovery:
    """A fault and its recovery time."""

    lane: str
    fault: str
    number: int
    at: str
    seconds: float | None
    """None if the recovery exceeded the limit."""
    beside: list[str]
    """Faults of other lanes that were active or not recovered."""
    load_average: float


@dataclass
class Report:
    """The results of a campaign."""

    seed: int
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    problems: list[str] = field(default_factory=list[str])
    churned: int = 0
    changes: int = 0
    """Changes of the canary: one during each fault of the management cluster."""
    compared: int = 0
    """Acknowledged writes that the end of the campaign checks."""
    written: int = 0
    failed_requests: int = 0
    sent_requests: int = 0
    failed_api_requests: int = 0

    @property
    def recovered(self) -> int:
        return sum(recovery.seconds is not None for recovery in self.recoveries)

    def by_fault(self) -> dict[str, list[float]]:
        """Recovery times in seconds."""
        times: dict[str, list[float]] = {}
        for recovery in sorted(self.recoveries, key=lambda recovery: recovery.fault):
            if recovery.seconds is not None:
                times.setdefault(recovery.fault, []).append(recovery.seconds)
        return times

    def table(self) -> Table:
        """Recovery times per kind of fault."""
        made = Table("fault", "times", "median s", "p95 s", "longest s", title="recovery")
        for name, times in self.by_fault().items():
            figures = (statistics.median(times), percentile(times, 0.95), max(times))
            made.add_row(name, f"{len(times)}", *(f"{figure:.1f}" for figure in figures))
        return made


@dataclass
class Journal:
    """Writes every recovery at once, so that an interrupted campaign keeps its results."""

    console: Console
    report: Report
    file: TextIO | None = None
    in_force: dict[str, str] = field(default_factory=dict[str, str])

    def began(self, lane: str, fault: str) -> None:
        """Record a fault at its injection."""
        self.in_force[lane] = fault

    def ended(self, lane: str, number: int, seconds: float | None) -> None:
        """Record the recovery time of a fault."""
        fault = self.in_force.pop(lane)
        recovery = Recovery(
            lane=lane,
            fault=fault,
            number=number,
            at=f"{datetime.now(UTC):%H:%M:%S}",
            seconds=seconds and round(seconds, 2),
            beside=sorted(self.in_force.values()),
            load_average=round(os.getloadavg()[0], 1),
        )
        self.report.recoveries.append(recovery)
        took = "never" if seconds is None else f"{seconds:.1f} s"
        count = len(self.report.recoveries)
        self.console.print(f"{count} {recovery.at} {lane} {number} {fault}: {took}")
        self._write(asdict(recovery))

    def problem(self, text: str) -> None:
        """Record a broken promise."""
        self.report.problems.append(text)
        self.console.print(f"[red]{text}[/]")
        self._write({"problem": text})

    def _write(self, line: dict[str, object]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def percentile(times: Sequence[float], share: float) -> float:
    """The time that this share of all times does not exceed."""
    ordered = sorted(times)
    return ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)]
