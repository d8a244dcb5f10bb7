"""Figures of a benchmark, each with its limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    measured: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    comparison: str = ""
    """A value for comparison, measured in the same run."""

    @property
    def ok(self) -> bool:
        """Whether the figure is within its limits, if any."""
        return (self.at_most is None or self.measured <= self.at_most) and (
            self.at_least is None or self.measured >= self.at_least
        )

    @property
    def limit(self) -> str:
        parts = {"at most": self.at_most, "at least": self.at_least}
        return ", ".join(f"{word} {value:g}" for word, value in parts.items() if value is not None)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
