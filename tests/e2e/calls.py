"""Calls of a service at a constant rate, and the number of those that failed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import aiohttp

_RATE = 20
"""Calls per second."""


@dataclass
class Calls:
    """The calls so far."""

    total: int = 0
    failures: list[str] = field(default_factory=list[str])
    slowest: float = 0.0
    """Seconds of the slowest call."""

    async def call(self, session: aiohttp.ClientSession, url: str) -> None:
        """Call once, with a connection of its own."""
        self.total += 1
        number, began = self.total, monotonic()
        try:
            async with session.get(url) as response:
                text = await response.text()
                if response.status != 200:
                    self.failures.append(f"{number}: {response.status} {text[:80]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(f"{number}: {type(error).__name__} {error}")
        self.slowest = max(self.slowest, monotonic() - began)


@asynccontextmanager
async def called(url: str) -> AsyncGenerator[Calls]:
    """Call a URL 20 times per second until the end of the block."""
    calls = Calls()
    running: set[asyncio.Task[None]] = set()
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=10)

    async def repeat(session: aiohttp.ClientSession) -> None:
        due = monotonic()
        while True:
            task = asyncio.create_task(calls.call(session, url))
            running.add(task)
            task.add_done_callback(running.discard)
            due += 1 / _RATE
            await asyncio.sleep(max(0.0, due - monotonic()))

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        repeating = asyncio.create_task(repeat(session))
        try:
            yield calls
        finally:
            repeating.cancel()
            await asyncio.gather(repeating, *running, return_exceptions=True)
