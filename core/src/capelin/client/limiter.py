"""A token bucket: how fast this client may ask."""

import asyncio
import time
from collections.abc import Callable


class Limiter:
    """Lets `burst` requests through at once and `qps` a second from then on, in order."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def reserve(self) -> float:
        """Take the next token and say how many seconds from now it may be used."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    async def wait(self) -> None:
        """Wait for one's turn."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)
