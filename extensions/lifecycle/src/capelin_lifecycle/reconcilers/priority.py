"""Lets hooks go first: one process answers them and runs the reconcilers."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

_LONGEST_WAIT: Final = 0.05
"""So reconcilers start at least 20 steps in a second, even under constant hook calls."""


class HookPriority:
    """Counts the hooks that are being answered, and has reconcilers wait for them."""

    def __init__(self) -> None:
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._next = asyncio.Lock()

    @contextmanager
    def answering(self) -> Generator[None]:
        """A hook is answered within this block."""
        self._answering += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    async def turn(self) -> None:
        """Wait until a step may start: at once without hooks, or else one step after the other."""
        async with self._next:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_WAIT):
                    await self._idle.wait()
