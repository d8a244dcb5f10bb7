"""The other tasks of a reconciler. Their failures are visible, and they start again."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from capelin.controller.logs import explained

log = logging.getLogger(__name__)

_PAUSE: Final = 10.0
_WORKS: Final = 60.0
"""Seconds without a failure after which a task is healthy again."""


class Background:
    """Starts a task again after an exception, which is logged, and which /healthz reports."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def health(self) -> str | None:
        """The failures of the last minute, or `None`."""
        return "; ".join(f"{name} failed: {why}" for name, why in self._problems.items()) or None

    @asynccontextmanager
    async def running(self, **work: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
        """Run these functions during a block, each under its name."""
        tasks = [asyncio.create_task(self._keep(*item), name=item[0]) for item in work.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for name in work:
                self._problems.pop(name, None)

    async def _keep(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            loop = asyncio.get_running_loop()
            healthy = loop.call_later(_WORKS, self._problems.pop, name, None)
            try:
                await work()
            except Exception as error:
                log.exception("The task %s failed and starts again", name)
                self._problems[name] = f"{type(error).__name__}: {explained(error)}"
            else:
                self._problems.pop(name, None)
                return
            finally:
                healthy.cancel()
            await asyncio.sleep(_PAUSE)
