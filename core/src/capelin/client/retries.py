"""Decides when to send a request: the rate limit, and the pauses between attempts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from capelin.backoff import exponential_delay

_CONNECT_ATTEMPTS = 5
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.4
_RETRY_AFTER_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered, perhaps with the pause that it requests in `retry_after`."""

    status: int
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection failed, before or after the request may have reached the server."""

    sent: bool


def retry_delay(
    outcome: Answered | ConnectionLost, *, repeatable: bool, attempt: int, jitter: float
) -> float | None:
    """Seconds until the next attempt, or `None` if another attempt is unsafe or useless.

    Args:
        outcome: The result of the last attempt.
        repeatable: Whether doing it twice has the same effect as doing it once.
        attempt: The number of the last attempt, counted from 1.
        jitter: A random number from 0 to 1, so that many clients do not retry together.
    """
    match outcome:
        case ConnectionLost(sent=sent) if attempt < _CONNECT_ATTEMPTS and (repeatable or not sent):
            delay = exponential_delay(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            return delay * (1 + jitter)
        # 429 and 503 with Retry-After come from filters in front: the server has done nothing yet.
        case Answered(status=status, retry_after=seconds) if attempt < _RETRY_AFTER_ATTEMPTS and (
            status in {429, 503} or (repeatable and status in {500, 502, 504})
        ):
            return None if seconds is None else seconds * (1 + jitter / 10)
        case _:
            return None


class RateLimiter:
    """A token bucket: `burst` requests at once, then `qps` per second, in order."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._updated = clock()

    def reserve(self) -> float:
        """Take the next token. Returns the seconds until it is valid."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._qps)
        self._updated = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    async def wait(self) -> None:
        """Take the next token and wait until it is valid."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)
