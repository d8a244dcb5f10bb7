"""A cluster of our own providers, through Cluster API's core and nothing else."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from capelin.api.views.capi import Cluster, ClusterClass, Machine
from capelin.api.views.core import Namespace, Node
from capelin.client import Client, WorkloadClients
from capelin.embedded.binaries import KNOWN_KUBERNETES
from capelin_infra.clusters import DEMO_CLASS, Counts, Shape, new_cluster, scaling, upgrade
from capelin_infra.demo import demo_manifests
from capelin_infra.lifecycle import until_ready

pytestmark = pytest.mark.timeout(900)

NAME = "ours"
OLD, NEW = KNOWN_KUBERNETES[0], KNOWN_KUBERNETES[-1]


@pytest.fixture
async def namespace(management: Client) -> AsyncGenerator[str]:
    """A namespace with the ClusterClass in it; with the cluster in it, it is gone afterwards."""
    await management.apply(Namespace.of(NAME))
    for manifest in demo_manifests():
        manifest["metadata"]["namespace"] = NAME
        await management.apply(manifest)
    yield NAME
    await management.delete(Cluster, NAME, NAME)
    while True:
        if await management.find(Cluster, NAME, NAME) is None:
            break
        await asyncio.sleep(0.2)
    await management.delete(Namespace, NAME)


async def nodes(management: Client) -> list[Node]:
    async with WorkloadClients(management).client(NAME, NAME) as workload:
        return (await workload.list(Node)).items


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


async def change(management: Client, operations: list[dict[str, object]]) -> None:
    await management.patch(Cluster, NAME, NAME, operations, type="json")
    await until_ready(management, NAME, NAME, 600, lambda _: None)


async def scale(management: Client, workers: int) -> None:
    cluster = await management.get(Cluster, NAME, NAME)
    await change(management, scaling(cluster, Counts(workers, None, None)))


async def test_a_cluster_of_ours_is_made_scaled_and_upgraded(
    management: Client, namespace: str
) -> None:
    shape = Shape(NAME, namespace, DEMO_CLASS, OLD, 1, 2)
    cluster_class = await management.get(ClusterClass, DEMO_CLASS, namespace)
    await management.create(new_cluster(shape, OLD, cluster_class))
    await until_ready(management, NAME, namespace, 600, lambda _: None)
    assert [is_ready(node) for node in await nodes(management)] == [True, True]

    for workers in (3, 1, 0, 2):
        await scale(management, workers)
        assert len(await nodes(management)) == workers
        machines = (await management.list(Machine, namespace)).items
        assert len(machines) == workers

    await change(management, upgrade(NEW))
    versions = {node.status.node_info.kubelet_version for node in await nodes(management)}
    assert versions == {NEW}
