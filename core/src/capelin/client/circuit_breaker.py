"""Pauses requests to servers that do not answer."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from capelin.backoff import exponential_delay

Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long requests pause after a failure: twice as long each time."""

    first_seconds: float = 0.5
    longest_seconds: float = 60.0

    def seconds(self, failures: int) -> float:
        return exponential_delay(failures, first=self.first_seconds, longest=self.longest_seconds)


@dataclass(slots=True)
class _Pause(Generic[T]):
    until: float
    failures: int
    error: T


class CircuitBreaker(Generic[T]):
    """Pauses requests to targets that failed, and remembers their last error."""

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff, self._clock = backoff, clock
        self._pauses: dict[Hashable, _Pause[T]] = {}

    def error(self, target: Hashable) -> T | None:
        """The last error, while requests are paused."""
        pause = self._pauses.get(target)
        return pause.error if pause is not None and self._clock() < pause.until else None

    def last_error(self, target: Hashable) -> T | None:
        """The error that the next request may show to be over; also after the pause."""
        pause = self._pauses.get(target)
        return None if pause is None else pause.error

    def remaining(self, target: Hashable) -> float:
        """The seconds that are left of a pause."""
        pause = self._pauses.get(target)
        return 0.0 if pause is None else max(0.0, pause.until - self._clock())

    def failed(self, target: Hashable, error: T) -> None:
        """Pause requests. Requests that failed at the same time count once."""
        now = self._clock()
        pause = self._pauses.get(target)
        if pause is not None and now < pause.until:
            return
        failures = 1 if pause is None else pause.failures + 1
        self._pauses[target] = _Pause(now + self._backoff.seconds(failures), failures, error)

    def succeeded(self, *targets: Hashable) -> None:
        for target in targets:
            self._pauses.pop(target, None)
