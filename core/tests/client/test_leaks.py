"""Requests leave no descriptors or tasks behind."""

import asyncio
import gc
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.client import AlreadyExists, Client, ClientOptions, Config
from capelin.testing.waiting import until

WORKERS = 5


def descriptors() -> dict[str, str]:
    """Target of each open descriptor."""
    targets: dict[str, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        # The descriptor that reads this folder is closed by now.
        with suppress(FileNotFoundError):
            targets[link.name] = str(link.readlink())
    return targets


def left_since(before: dict[str, str]) -> dict[str, str]:
    """Descriptors that were opened since and are still open."""
    return {number: to for number, to in descriptors().items() if before.get(number) != to}


async def twenty(client: Client, namespace: str) -> None:
    """Successful, failing, rejected and canceled requests, and a watch."""
    for _ in range(6):
        await client.get(ConfigMap, "a", namespace)
        await client.find(ConfigMap, "nothing", namespace)
    for _ in range(5):
        with suppress(AlreadyExists):
            await client.create(ConfigMap.of("a", namespace))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.0005):
            await client.list(ConfigMap, namespace)
    async with aclosing(client.watch(ConfigMap, namespace)) as events:
        await anext(events)


async def worker(client: Client, namespace: str, requests: int) -> None:
    for _ in range(requests // 20):
        await twenty(client, namespace)


@pytest.mark.repetitive
@pytest.mark.parametrize("requests", [2_000, pytest.param(10_000, marks=pytest.mark.integration)])
async def test_requests_leave_nothing_open(kubeconfig: Path, namespace: str, requests: int) -> None:
    tasks_before = asyncio.all_tasks()
    descriptors_before = descriptors()
    config = Config.from_kubeconfig(kubeconfig)
    async with Client(config, options=ClientOptions(qps=0)) as client:
        await client.create(ConfigMap.of("a", namespace))
        await asyncio.gather(*(worker(client, namespace, 200) for _ in range(WORKERS)))
        tasks_then, descriptors_then = len(asyncio.all_tasks()), len(descriptors())
        remaining = requests // WORKERS - 200
        await asyncio.gather(*(worker(client, namespace, remaining) for _ in range(WORKERS)))
        assert len(asyncio.all_tasks()) <= tasks_then + WORKERS
        assert len(descriptors()) <= descriptors_then + WORKERS
    gc.collect()
    # The event loop releases a closed connection some iterations later.
    await until(lambda: left_since(descriptors_before), lambda remaining: not remaining, within=30)
    assert asyncio.all_tasks() == tasks_before
