"""A manager with an API server that fails by a seed: no change is missed.

`CAPELIN_CHAOS_SEEDS=FIRST:COUNT` plays other seeds.
"""

import os
from typing import Any

import pytest
from capelin.api.core import Lease
from capelin.client import ClientOptions
from capelin.testing.waiting import until

from core.tests.controller.chaos_world import Buoy, Buoys, World, managed
from tests.watches.judge import capelin, play

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
    async with world.chaos.serving(), managed(world.chaos.address, Buoys(world), **times) as task:
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
    played = await play(World(), capelin, range(FIRST, FIRST + COUNT), pace=1, limit=10)
    failures = [it for it in played if it.outdated or it.ended]
    assert len(played) == COUNT
    assert not failures
