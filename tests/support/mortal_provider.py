"""A provider that is killed before or after one of its changes, again and again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class End:
    """The end of one life of the provider."""

    status: int
    """The negative number of a signal, or an exit code."""
    change: str
    """The change that it died at, such as `after PATCH /api/v1/...`. Empty if the time ended it."""


@dataclass
class Mortal:
    """The provider in sequential lives."""

    ancestor: asyncio.subprocess.Process
    arguments: list[str]
    lives: list[str] = field(default_factory=list[str])
    kills: int = 0

    async def live(
        self, changes: int, seconds: float, done: Callable[[], Awaitable[bool]] | None = None
    ) -> End:
        """Kill it after this many changes or seconds, or when there is nothing more to do."""
        async with self._life(changes) as life:
            try:
                async with asyncio.timeout(seconds):
                    while not life.done() and not (done is not None and await done()):
                        await asyncio.wait({life}, timeout=_LOOK_SECONDS)
            except TimeoutError:
                pass
        end = life.result()
        self.lives.append(f"{changes} changes, {seconds:.2f} s: {end.status} {end.change}")
        assert end.status == -signal.SIGKILL, self.lives
        self.kills += 1
        return end

    @asynccontextmanager
    async def undisturbed(self) -> AsyncGenerator[None]:
        """Let it run for some time."""
        async with self._life(10**9):
            yield

    @asynccontextmanager
    async def _life(self, changes: int) -> AsyncGenerator[asyncio.Task[End]]:
        """Start it, and kill it at the end of the context."""
        order = json.dumps({"changes": changes, "arguments": self.arguments})
        assert self.ancestor.stdin is not None
        self.ancestor.stdin.write(f"{order}\n".encode())
        pid = int(await self._line())
        life = asyncio.create_task(self._end())
        try:
            yield life
        finally:
            if not life.done():
                # It may have just died.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await life

    async def _end(self) -> End:
        return End(**json.loads(await self._line()))

    async def _line(self) -> bytes:
        assert self.ancestor.stdout is not None
        return await self.ancestor.stdout.readline()


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
