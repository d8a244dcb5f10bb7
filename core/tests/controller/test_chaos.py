"""A manager with an API server that fails by a seed: no change is missed.

`CAPELIN_CHAOS_SEEDS=FIRST:COUNT` plays other seeds.
"""

import os
from typing import Any

import pytest
from capelin.api.core import ConfigMap, Lease
from capelin.client import ClientOptions
from capelin.testing.waiting import until

from core.tests.controller.chaos_world import Buoy, World, holds, managed

FIRST, COUNT = map(int, os.environ.get("CAPELIN_CHAOS_SEEDS", "0:12").split(":"))


async def test_manager_renews_its_lease_while_other_requests_wait() -> None:
    world = World()
    for number in range(150):
        buoy = Buoy.of(f"b{number}", "sea", spec={})
        buoy.metadata.labels = {"kept": "yes"}
        await world.client.create(buoy)
    times: dict[str, Any] = {
        "leader_elect": True,
        "leader_elect_retry_period": 0.1,
        "concurrency": 150,
        "sync_period": 1.0,
    }
    async with world.chaos.serving(), managed(world, **times) as task:
        await until(lambda: world.recorded.reconciles >= 150)
        world.chaos.calm.clear()
        # As many as one client sends at once.
        await until(lambda: world.chaos.waiting >= ClientOptions().connections)
        renewals: set[object] = set()

        async def is_renewed() -> bool:
            lease = await world.client.get(Lease, "chaos", "default")
            renewals.add(lease.spec.renew_time)
            return len(renewals) > 10 or task.done()

        await until(is_renewed)
        world.chaos.calm.set()
        assert not task.done(), task.exception()


@pytest.mark.usefixtures("fast")
@pytest.mark.timeout(3600)
async def test_no_change_is_missed() -> None:
    world, failures = World(), dict[int, str]()
    # No state of a real API server has the version 0, also not one that is restored.
    await world.client.create(ConfigMap.of("first", "other"))
    seeds = iter(range(FIRST, FIRST + COUNT))
    async with world.chaos.serving():
        while (seed := next(seeds, None)) is not None:
            async with managed(world) as task:
                await until(world.is_quiet, within=30)
                while seed is not None and not task.done():
                    await world.play(seed)
                    if not await holds(world.is_quiet, 10):
                        failures[seed] = f"{world.recorded.views} is not {await world.expected()}"
                        break
                    seed = next(seeds, None)
                if task.done() and seed is not None:
                    failures[seed] = f"the manager ended: {task.exception()!r}"
    assert not failures, f"{len(failures)} of {COUNT} seeds: {failures}"
