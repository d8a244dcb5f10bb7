"""Machines with the faults of `spec.simulated`, in a cluster with the real core."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster

from .pools import VERSION, Whole, condition, pool_manifests, whole_cluster

pytestmark = pytest.mark.timeout(600)

LONG_ENOUGH = 8.0
"""Seconds that are more than enough for a machine to become a node."""


@pytest.fixture(scope="module")
async def whole(management_cluster: ManagementCluster) -> AsyncGenerator[Whole]:
    """A cluster that the tests of this module share."""
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management,
        whole_cluster(management, "faults") as whole,
    ):
        yield whole


async def test_machines_that_never_boot_do_not_block_the_pool(whole: Whole) -> None:
    faulty: dict[str, Any] = {
        "simulated": {
            "startupSeconds": 0,
            "startupJitterSeconds": 0,
            "faults": {"neverBoots": 100},
        }
    }
    for manifest in pool_manifests(whole.name, whole.namespace, replicas=2, spec=faulty):
        await whole.management.apply(manifest)

    async def are_there() -> bool:
        return len(await whole.machines()) == 2

    await until(are_there)
    await asyncio.sleep(LONG_ENOUGH)
    assert await whole.nodes() == []
    assert (await whole.infrastructure()).spec.provider_id_list == []
    await whole.change_pool({"simulated": {"faults": {"neverBoots": 0}}})
    await until(lambda: whole.is_whole(2, VERSION))
    await whole.remove_pool()


async def test_machines_that_the_cluster_rejects_report_the_reason(whole: Whole) -> None:
    taint = {"key": "not a key", "effect": "NoSchedule"}
    spec: dict[str, Any] = {"simulated": {"taints": [taint], "startupSeconds": 0}}
    for manifest in pool_manifests(whole.name, whole.namespace, replicas=1, spec=spec):
        await whole.management.apply(manifest)

    async def say_why() -> bool:
        conditions = [
            one
            for machine in await whole.instances()
            for one in (machine.status.conditions if machine.status else [])
        ]
        return any(
            one.reason == "InvalidConfiguration" and "not a key" in one.message
            for one in conditions
        )

    await until(say_why)
    await whole.remove_pool()


async def test_a_flapping_machine_becomes_silent_and_recovers(whole: Whole) -> None:
    flapping: dict[str, Any] = {
        "simulated": {
            "startupSeconds": 0,
            "startupJitterSeconds": 0,
            "faults": {"flaps": 100, "afterSeconds": 5},
        }
    }
    for manifest in pool_manifests(whole.name, whole.namespace, replicas=1, spec=flapping):
        await whole.management.apply(manifest)
    await until(lambda: whole.is_whole(1, VERSION))
    (before,) = await whole.nodes()

    async def is_silent() -> bool:
        (node,), (machine,) = await whole.nodes(), await whole.machines()
        return condition(node, "Ready") == condition(machine, "NodeReady") == "Unknown"

    # A machine is silent or alive for about a minute. Kubernetes needs another to notice.
    await until(is_silent, within=240)
    await until(lambda: whole.is_whole(1, VERSION), within=240)
    (after,) = await whole.nodes()
    assert after.uid == before.uid
    await whole.remove_pool()
