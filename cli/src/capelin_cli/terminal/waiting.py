"""Waiting with a deadline, and the reason that people see meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

from capelin.errors import WaitTimeoutError

_POLL_SECONDS: Final = 0.25

Show = Callable[[str], None]
"""Shows the reason to wait."""


class Deadline:
    """How long to wait, counted from its creation. Several waits may share one."""

    def __init__(self, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.within = within
        self._clock = clock
        self._end = clock() + within

    @property
    def left(self) -> float:
        """The remaining seconds, never negative."""
        return max(0.0, self._end - self._clock())

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave out the time of a block: a build takes as long as the machine needs."""
        began = self._clock()
        try:
            yield
        finally:
            self._end += self._clock() - began


async def wait_for(
    title: str,
    reason: Callable[[], Awaitable[str | None]],
    within: float,
    show: Show,
    hint: str = "Cluster API continues: see capelin status --watch.",
) -> None:
    """Wait until no reason to wait remains."""
    last = "nothing is known yet"
    try:
        async with asyncio.timeout(within):
            while (current := await reason()) is not None:
                last = " ".join(current.split())
                show(last)
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Waiting for {title} took longer than {within:.0f} s.",
            reason=f"The last reason: {last}.",
            hint=hint,
        ) from None
