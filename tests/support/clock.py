"""A clock that only the test advances."""

from datetime import UTC, datetime, timedelta


class MonotonicClock:
    """Stands for `time.monotonic`. Calling it gives the seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def time_of_day(self) -> datetime:
        """The same moment with a date."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)
