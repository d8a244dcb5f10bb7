"""Profiles show where threads and tasks wait, and what allocates memory."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import aiohttp
import pytest
from capelin.controller import Address
from capelin.controller.diagnostics import Probes
from capelin.testing.waiting import until
from prometheus_client import CollectorRegistry


@pytest.fixture
async def probes() -> AsyncGenerator[Probes]:
    def fine() -> None: ...

    async with Probes(
        health=fine, ready=fine, metrics=CollectorRegistry(), webhooks=fine
    ) as probes:
        await probes.listen(health=None, metrics=Address("127.0.0.1", 0))
        yield probes


async def get(probes: Probes, page: str) -> tuple[int, str]:
    url = f"http://{probes.bound['--metrics-address']}/debug/{page}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


def times(stacks: str) -> dict[str, int]:
    """The milliseconds of each stack."""
    lines = (line.rpartition(" ") for line in stacks.splitlines())
    return {stack: int(millis) for stack, _, millis in lines}


async def outer(event: asyncio.Event) -> None:
    await inner(event)


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_profile_contains_the_stacks_of_threads_and_tasks(probes: Probes) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="slow;backend")
    thread.start()
    event = asyncio.Event()
    task = asyncio.create_task(outer(event))
    try:
        status, text = await get(probes, "profile?seconds=1")
    finally:
        release.set()
        thread.join()
        event.set()
        await task
    assert status == 200
    module = __name__
    waiting = f"tasks;{module}.outer;{module}.inner;asyncio.locks.Event.wait"
    found = times(text)
    assert 300 <= found[waiting] <= 1200
    (blocked,) = (stack for stack in found if stack.startswith("thread slow,backend;threading."))
    assert blocked.endswith("threading.Condition.wait")
    assert found[blocked] <= 1200
    assert any(stack.startswith("thread MainThread;") for stack in found)


async def test_a_memory_profile_names_the_lines_that_allocate(probes: Probes) -> None:
    kept: list[bytes] = []
    profile = asyncio.create_task(get(probes, "memory?seconds=1"))
    while not profile.done():
        kept.append(bytes(10_000))
        await asyncio.sleep(0.001)
    status, text = await profile
    assert status == 200
    size, blocks, place = text.splitlines()[0].split(" ")
    assert int(size) > 10_000
    assert int(blocks) > 1
    assert place.startswith(f"{__file__}:")


@pytest.mark.parametrize("seconds", ["0", "61", "-1", "1.5", "ten", "", "1000"])
@pytest.mark.parametrize("page", ["profile", "memory"])
async def test_seconds_have_limits(probes: Probes, page: str, seconds: str) -> None:
    status, text = await get(probes, f"{page}?seconds={seconds}")
    assert (status, text) == (400, "seconds is a number from 1 to 60\n")


async def test_one_profile_runs_at_a_time_and_ends_with_the_manager(probes: Probes) -> None:
    first = asyncio.create_task(get(probes, "profile?seconds=60"))
    await until(lambda: any("_sample_tasks" in repr(task) for task in asyncio.all_tasks()))
    assert await get(probes, "memory?seconds=1") == (429, "another profile is being taken\n")
    assert not first.done()
    async with asyncio.timeout(30):
        await probes.__aexit__()
        status, _ = await first
    assert status == 200
