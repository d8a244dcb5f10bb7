"""Cluster API's own sequence for machine pools, on its real core."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachinePool

from .pools import OLDER, VERSION, Whole, pool_manifests, whole_cluster

pytestmark = pytest.mark.timeout(600)

KINDS = (Cluster, MachinePool, Machine, CapelinCluster, CapelinMachinePool, CapelinMachine)
SETTLED_WITHIN = 60.0
QUIET_SECONDS = 120.0


@pytest.fixture
async def whole(management: Client) -> AsyncGenerator[Whole]:
    async with whole_cluster(management, "sequence") as whole:
        yield whole


async def versions(whole: Whole) -> dict[tuple[str, str], str]:
    """The resourceVersions of all objects of Cluster API and Capelin and of all Nodes."""
    objects = [
        one for kind in KINDS for one in (await whole.management.list(kind, whole.namespace)).items
    ]
    return {
        (one.resource.kind, one.name): one.metadata.resource_version
        for one in [*objects, *await whole.nodes()]
    }


@pytest.mark.representative
async def test_a_pool_passes_cluster_apis_sequence_of_scaling_and_upgrades(whole: Whole) -> None:
    for manifest in pool_manifests(whole.name, whole.namespace, replicas=2, version=OLDER):
        await whole.management.apply(manifest)
    for replicas in (2, 3, 1, 0, 2):
        await whole.scale(replicas)
        await until(lambda replicas=replicas: whole.is_whole(replicas, OLDER))
        await until(whole.is_available)
    before = {one.name for one in await whole.instances()}
    await whole.upgrade(VERSION)
    await until(lambda: whole.is_whole(2, VERSION))
    await until(whole.is_available)
    assert before.isdisjoint({one.name for one in await whole.instances()})

    async def is_settled() -> bool:
        """Wait until nothing changes for some time, like Cluster API's tests."""
        before = await versions(whole)
        await asyncio.sleep(15)
        return before == await versions(whole)

    await until(is_settled, within=SETTLED_WITHIN)
    settled = await versions(whole)
    await asyncio.sleep(QUIET_SECONDS)
    assert await versions(whole) == settled
