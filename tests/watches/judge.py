"""Plays seeds against managers of Capelin and of controller-runtime, with the same watches.

Both have the pauses that their users have: the reflectors of controller-runtime wait 0.8 s to 30 s
after failures, without a setting, and so do Capelin's watches.
"""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from capelin.api.core import ConfigMap, Secret, Service
from capelin.testing.waiting import until

from core.tests.controller.chaos_world import DEPENDENTS, Buoys, World, holds, managed
from tests.watches.catalog import Played

PACE: Final = 20.0
"""The changes of a seed take a few seconds, so that failures hit watches that start again."""
LIMIT: Final = 90.0
"""Seconds after which an object without a reconcile counts as outdated."""
START: Final = 30.0
"""Seconds in which a new manager reconciles every object, also on a busy machine."""

HasEnded = Callable[[], bool]
Start = Callable[[World], AbstractAsyncContextManager[HasEnded]]


@asynccontextmanager
async def capelin(world: World) -> AsyncGenerator[HasEnded]:
    """A manager of Capelin."""
    async with managed(world.chaos.address, Buoys(world)) as task:
        yield task.done


def controller_runtime(program: Path) -> Start:
    """Start a manager of controller-runtime in a process."""

    @asynccontextmanager
    async def start(world: World) -> AsyncGenerator[HasEnded]:
        process = await asyncio.create_subprocess_exec(
            program,
            world.chaos.address,
            stdout=asyncio.subprocess.PIPE,
            # The server of the test does not send lists as watches.
            env={**os.environ, "KUBE_FEATURE_WatchListClient": "false"},
        )
        assert process.stdout is not None
        reading = asyncio.create_task(_record(process.stdout, world))
        try:
            yield lambda: process.returncode is not None
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading

    return start


async def _record(lines: asyncio.StreamReader, world: World) -> None:
    async for line in lines:
        report = json.loads(line)
        view = tuple((uid, version, name) for uid, version, name in report["view"])
        world.recorded.add(report["name"], view)


def world_for(program: Path | None) -> World:
    """The objects for a manager. Programs have no watches of kinds that are installed late."""
    return World(DEPENDENTS if program is None else (ConfigMap, Secret, Service))


async def play(
    world: World, start: Start, seeds: Iterable[int], *, pace: float = PACE, limit: float = LIMIT
) -> list[Played]:
    """Play seeds. A manager that misses a change or ends is replaced."""
    played: list[Played] = []
    waiting = deque(seeds)
    # No state of a real API server has the version 0, also not one that is restored.
    await world.client.create(ConfigMap.of("first", "other"))
    async with world.chaos.serving():
        while waiting:
            world.recorded.views.clear()
            async with start(world) as has_ended:
                await until(world.is_quiet, within=max(START, limit))
                after_restore, is_sound = False, True
                while waiting and is_sound:
                    seed = waiting.popleft()
                    restored = await world.play(seed, pace=pace)
                    after_restore |= restored
                    outdated, seconds = await _outdated(world, has_ended, limit)
                    ended = has_ended()
                    played.append(Played(seed, restored, after_restore, outdated, ended, seconds))
                    is_sound = not (outdated or ended)
    return played


async def _outdated(
    world: World, has_ended: HasEnded, limit: float
) -> tuple[tuple[str, ...], float]:
    """The outdated objects, and the time until there are none."""
    began = time.monotonic()

    async def is_over() -> bool:
        return has_ended() or await world.is_quiet()

    is_quiet = await holds(is_over, limit)
    seconds = time.monotonic() - began
    return () if is_quiet else tuple(await world.outdated()), seconds


def play_lane(program: Path | None, seeds: Iterable[int]) -> list[Played]:
    """Play seeds one after the other against a program, or against Capelin's manager."""
    start = capelin if program is None else controller_runtime(program)
    return asyncio.run(play(world_for(program), start, seeds))
