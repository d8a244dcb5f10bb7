"""How a process is found to be ready, and later to hang."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from capelin.embedded.processes.command import Liveness, Probe
from capelin.embedded.processes.decisions import poll_pause


async def until_ready(ready: Probe, tell: Callable[[str], None]) -> None:
    """Ask until it is ready: often at first, seldom when it takes long. Tells what is missing."""
    began = time.monotonic()
    async with aclosing(ready()) as answers:
        async for missing in answers:
            if not missing:
                return
            tell(missing)
            await asyncio.sleep(poll_pause(time.monotonic() - began))


async def until_hung(alive: Liveness) -> str:
    """Ask now and then, and at once again where the answer is bad; what the last bad one was."""
    bad = 0
    await asyncio.sleep(alive.every)
    async with aclosing(alive.probe()) as answers:
        async for missing in answers:
            bad = bad + 1 if missing else 0
            if bad >= alive.patience:
                return missing
            await asyncio.sleep(alive.pause if bad else alive.every)
    raise RuntimeError("a probe goes on as long as somebody asks")
