"""Figures of a campaign with a hostile tenant, with limits and tables."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.rows import percentile
from tests.faults.attacker import Evidence

P99_SECONDS: Final = 5.0
MEMORY_LIMIT_MIB: Final = 512
"""The memory limit of the charts."""
LONGEST_PAUSE: Final = 180.0
"""Seconds in which each kind of attack must occur."""
_SHOWN_TEXTS: Final = 3


@dataclass
class TenantReport:
    """The figures of a campaign."""

    seed: int
    minutes: float
    evidence: Evidence
    is_attacked: bool = False
    calm: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from a change to its reconcile, by kind, before the attacks."""
    attacked: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The same during the attacks."""
    shares: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Parts of the times during the attacks, such as the API server's own."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Requests of honest tenants that failed."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """Requests that arrived at hostile servers, by server and client."""
    logged: Counter[str] = field(default_factory=Counter[str])
    memory: dict[str, float] = field(default_factory=dict[str, float])
    """The maximum MiB of each manager with its helper processes."""
    processor: dict[str, float] = field(default_factory=dict[str, float])
    """CPU seconds of each process of the environment during the attacks."""
    checks: Counter[str] = field(default_factory=Counter[str])
    """Number of checks by name."""
    problems: list[str] = field(default_factory=list[str])

    def reconciled(self, kind: str, seconds: float) -> None:
        """Record the time from a change to its reconcile."""
        times = self.attacked if self.is_attacked else self.calm
        times.setdefault(kind, []).append(max(0.0, seconds))

    def took(self, share: str, seconds: float) -> None:
        """Record a part of a time."""
        if self.is_attacked:
            self.shares.setdefault(share, []).append(max(0.0, seconds))

    def problem(self, text: str) -> None:
        """Record a problem once."""
        if text not in self.problems:
            self.problems.append(text)

    def json(self) -> dict[str, Any]:
        figures = {name: vars(figure) for name, figure in self.evidence.figures.items()}
        texts = {
            name: {**values, "stopped": sorted(values["stopped"])}
            for name, values in figures.items()
        }
        own = {name: value for name, value in vars(self).items() if name != "evidence"}
        return {**own, "attacks": texts}


def broken_limits(report: TenantReport) -> list[str]:
    """Figures that are beyond their limits, and attacks that did not reach one."""
    figures = report.evidence.figures
    rare = [
        f"{name} did not occur for {figure.longest_pause:.0f} s"
        for name, figure in figures.items()
        if figure.longest_pause > LONGEST_PAUSE
    ]
    return [
        *(
            f"{name} used {mib:.0f} MiB, more than {MEMORY_LIMIT_MIB}"
            for name, mib in report.memory.items()
            if mib > MEMORY_LIMIT_MIB
        ),
        *(
            f"changes of {name}: p99 above {P99_SECONDS:g} s"
            for name, times in report.attacked.items()
            if percentile(times, 0.99) > P99_SECONDS
        ),
        *([] if report.attacked else ["no change of an honest tenant was measured"]),
        *(f"{name} did not occur" for name, figure in figures.items() if not figure.times),
        *rare,
        *(
            f"{name} never reached a limit"
            for name, figure in figures.items()
            if figure.times and not figure.stopped
        ),
    ]


def print_report(report: TenantReport, console: Console) -> None:
    """Print the tables of a campaign and its verdict."""
    console.print(_latencies(report))
    console.print(_attacks(report))
    console.print(_safety(report))
    for text in _other_texts(report):
        console.print(text, markup=False)
    for problem in report.problems:
        console.print(problem, style="red", markup=False)
    count = len(report.problems)
    verdict = "PASSED: all figures are within limits" if not count else f"FAILED: {count} problems"
    console.print(
        f"{verdict} (seed {report.seed}, {report.minutes:g} minutes)",
        style="bold red" if count else "bold green",
    )


def _latencies(report: TenantReport) -> Table:
    title = "Seconds from a change of an honest tenant to its reconcile"
    table = Table("change of", "", "times", "p50", "p99", "longest", "limit", title=title)
    limit = f"p99 at most {P99_SECONDS:g}"
    for when, times, limits in (
        ("calm", report.calm, ""),
        ("attacked", report.attacked, limit),
        ("part", report.shares, ""),
    ):
        for name, seconds in sorted(times.items()):
            figures = (percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds))
            cells = (f"{figure:.2f}" for figure in figures)
            table.add_row(name, when, f"{len(seconds)}", *cells, limits)
    return table


def _attacks(report: TenantReport) -> Table:
    table = Table(
        "attack", "times", "accepted", "refused", "stopped", "by", title="Attacks of the tenant"
    )
    for name, figure in report.evidence.figures.items():
        counts = (figure.times, figure.accepted, figure.refused, len(figure.stopped))
        style = None if figure.stopped else "red"
        limits = report.evidence.limits_of(name)
        table.add_row(name, *map(str, counts), limits, style=style)
    return table


def _safety(report: TenantReport) -> Table:
    table = Table("figure", "value", "limit", title="Safety")
    for name, mib in sorted(report.memory.items()):
        table.add_row(f"memory of {name}", f"{mib:.0f} MiB", f"at most {MEMORY_LIMIT_MIB} MiB")
    for name, number in sorted(report.checks.items()):
        table.add_row(name, f"{number}", "0" if name.endswith("restarts") else "")
    for name, used in report.processor.items():
        table.add_row(f"CPU time of {name}", f"{used:.0f} s", "")
    for counter in (report.failures, report.requests, report.logged):
        for name, number in sorted(counter.items()):
            table.add_row(name, f"{number}", "")
    return table


def _other_texts(report: TenantReport) -> list[str]:
    """Other answers to attacks that did not reach a limit."""
    return [
        f"{name}: {count} times: {text}"
        for name, figure in report.evidence.figures.items()
        if not figure.stopped
        for text, count in figure.texts.most_common(_SHOWN_TEXTS)
    ]
