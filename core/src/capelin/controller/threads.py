"""Threads for plain functions. asyncio's own threads resolve names, and must not wait for them."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def until_done(thread: asyncio.Future[Any]) -> None:
    """Wait for the end of a thread, however often this is cancelled: a thread cannot be."""
    while not thread.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({thread})


class Threads:
    """At most `size` threads for one purpose."""

    def __init__(self, name: str, size: int = 1) -> None:
        self._executor = ThreadPoolExecutor(size, name)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread. If cancelled, this ends when the function ends."""
        context, loop = contextvars.copy_context(), asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, lambda: context.run(function, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await until_done(running)
            raise

    def close(self) -> None:
        """End idle threads, and the others after their function."""
        self._executor.shutdown(wait=False)
