"""What a reconcile is about, and how it can end."""

from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import NamedTuple


class ObjectKey(NamedTuple):
    """An object by name. What belongs to the whole cluster has an empty namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do until something changes, or the next periodic resync."""


@dataclass(frozen=True, slots=True)
class After:
    """Look again after so many seconds, even if nothing changes."""

    seconds: float

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"After({self.seconds}) is not a time to wait; give seconds above 0")


Result = Done | After
"""How a reconcile ends that did not fail. A failure is an exception."""


def patience(waited: timedelta, *, least: float = 1.0, most: float = 60.0) -> After:
    """When to look again at something that tells nobody when it is ready.

    A tenth of the time already waited: quick while the answer may come any moment, sparing when
    it clearly takes longer. Take `waited` from a condition's transition time, so that it outlives
    the process.
    """
    return After(min(max(waited.total_seconds() / 10, least), most))
