"""A provider that is killed before or after one of its writes, again and again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Mortal:
    """The provider in sequential lives."""

    ancestor: asyncio.subprocess.Process
    arguments: list[str]
    lives: list[str] = field(default_factory=list[str])
    kills: int = 0

    async def live(self, changes: int, seconds: float) -> None:
        """Kill it after this many changes or seconds."""
        pid = await self._begin(changes)
        try:
            async with asyncio.timeout(seconds):
                ended = await self._ended()
        except TimeoutError:
            # It may have just died.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            ended = await self._ended()
        self.lives.append(f"{changes} changes, {seconds:.2f} s: {ended}")
        assert ended == -signal.SIGKILL, self.lives
        self.kills += 1

    @asynccontextmanager
    async def undisturbed(self) -> AsyncGenerator[None]:
        """Let it run for some time."""
        pid = await self._begin(10**9)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            await self._ended()

    async def _begin(self, changes: int) -> int:
        order = json.dumps({"changes": changes, "arguments": self.arguments})
        assert self.ancestor.stdin is not None
        self.ancestor.stdin.write(f"{order}\n".encode())
        return await self._said()

    async def _ended(self) -> int:
        return await self._said()

    async def _said(self) -> int:
        assert self.ancestor.stdout is not None
        return int(await self.ancestor.stdout.readline())


@asynccontextmanager
async def mortal_provider(arguments: list[str], log: Path) -> AsyncGenerator[Mortal]:
    """A provider with these arguments, which does not live yet."""
    with log.open("wb") as file:
        ancestor = await asyncio.create_subprocess_exec(
            sys.executable,
            Path(__file__).with_name("killed_provider.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
        )
    try:
        yield Mortal(ancestor, arguments)
    finally:
        ancestor.kill()
        await ancestor.wait()
