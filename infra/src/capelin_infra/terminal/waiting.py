"""Waiting for a cluster, and what people see meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

from capelin.client import Client
from capelin.errors import WaitTimeoutError

from capelin_infra.status.readiness import not_ready_reason, observe_cluster

_POLL_SECONDS: Final = 0.25

Show = Callable[[str], None]
"""Shows what is waited for."""


class Deadline:
    """How long to wait, counted from its making: several waits may share one."""

    def __init__(self, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.within = within
        self._clock = clock
        self._end = clock() + within

    @property
    def left(self) -> float:
        """The seconds that are left; never less than none."""
        return max(0.0, self._end - self._clock())

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave out the time of a block: a build takes as long as the machine needs."""
        began = self._clock()
        try:
            yield
        finally:
            self._end += self._clock() - began


async def wait_until_ready(
    client: Client, name: str, namespace: str, within: float, show: Show
) -> None:
    """Wait until a Cluster is as it was asked to be, its control plane and workers included.

    Raises:
        WaitTimeoutError: if time runs out, with what is missing.
    """

    async def reason() -> str | None:
        return not_ready_reason(await observe_cluster(client, name, namespace))

    await wait_for(f"cluster {name}", reason, within, show)


async def wait_for(
    title: str,
    reason: Callable[[], Awaitable[str | None]],
    within: float,
    show: Show,
    hint: str = "Cluster API continues: see capelin status --watch.",
) -> None:
    """Wait until there is no reason left to wait.

    Raises:
        WaitTimeoutError: if time runs out, with the last reason.
    """
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
