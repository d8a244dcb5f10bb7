"""A pool of a ClusterClass: the topology controller and the providers do not write in turn."""

from collections.abc import AsyncGenerator

import pytest
from capelin.api.capi import (
    Cluster,
    ClusterClass,
    MachineDeployment,
    MachineHealthCheck,
    MachinePool,
)
from capelin.api.core import Namespace
from capelin.client import ApiError, Client, Config
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.testing.management import ManagementCluster
from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachinePool

from .pools import VERSION

pytestmark = pytest.mark.timeout(600)

NAME = "resynced"
OURS = (CapelinCluster, CapelinControlPlane, CapelinMachinePool, CapelinMachine)


@pytest.fixture(scope="module")
async def topology(management_cluster: ManagementCluster) -> AsyncGenerator[Client]:
    """A cluster of the demo ClusterClass, which has a pool of two machines."""
    async with Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management:
        await management.apply(Namespace.of(NAME))
        for manifest in demo_manifests():
            manifest["metadata"]["namespace"] = NAME
            await management.apply(manifest)
        cluster_class = await management.get(ClusterClass, DEMO_CLASS, NAME)
        options = ClusterOptions(DEMO_CLASS, VERSION, 1, 2)

        async def is_created() -> bool:
            try:
                await management.create(new_cluster(NAME, NAME, VERSION, options, cluster_class))
            except ApiError:
                # Core must reconcile the ClusterClass first.
                return False
            return True

        await until(is_created)
        messages: list[str] = []
        await wait_until_ready(management, NAME, NAME, 300, messages.append)
        yield management
        await management.delete(Cluster, NAME, NAME)

        async def is_gone() -> bool:
            return await management.find(Cluster, NAME, NAME) is None

        await until(is_gone)
        await management.delete(Namespace, NAME)


async def versions(client: Client) -> dict[tuple[str, str], str]:
    """The resourceVersions of all objects of Capelin's kinds."""
    return {
        (kind.resource.kind, obj.name): obj.metadata.resource_version
        for kind in OURS
        for obj in (await client.list(kind, NAME)).items
    }


async def resync(client: Client, seconds: int) -> None:
    """Let the topology controller reconcile all objects, and wait until it reaches the last.

    It applies our objects before the MachinePool, which is the only one that has this field.
    """
    cluster = await client.get(Cluster, NAME, NAME)
    (pool,) = (await client.list(MachinePool, NAME)).items
    path = "/spec/topology/workers/machinePools/0/deletion"
    timeout = {"nodeDrainTimeoutSeconds": seconds}
    patch = [{"op": "add", "path": path, "value": timeout}]
    await client.patch(Cluster, cluster.name, NAME, patch, type="json")

    async def has_arrived() -> bool:
        manifest = await client.get(MachinePool.resource, pool.name, NAME)
        deletion = manifest["spec"]["template"]["spec"].get("deletion", {})
        return deletion.get("nodeDrainTimeoutSeconds") == seconds

    await until(has_arrived)


async def test_a_resync_of_the_topology_controller_writes_nothing(topology: Client) -> None:
    async def is_settled() -> bool:
        before = await versions(topology)
        await resync(topology, 1)
        await resync(topology, 2)
        return before == await versions(topology)

    await until(is_settled)
    settled = await versions(topology)
    assert {kind for kind, _ in settled} == {kind.resource.kind for kind in OURS}
    for seconds in (10, 11, 12, 13):
        await resync(topology, seconds)
        assert await versions(topology) == settled


async def test_a_machine_deployment_of_the_class_has_a_health_check(topology: Client) -> None:
    path = "/spec/topology/workers/machineDeployments"
    deployments = [{"class": "default-worker", "name": "deployed", "replicas": 1}]
    patch = [{"op": "add", "path": path, "value": deployments}]
    await topology.patch(Cluster, NAME, NAME, patch, type="json")

    async def is_available() -> bool:
        found = (await topology.list(MachineDeployment, NAME)).items
        return [deployment.status.available_replicas for deployment in found] == [1]

    await until(is_available)
    (check,) = (await topology.list(MachineHealthCheck, NAME)).items
    (deployment,) = (await topology.list(MachineDeployment, NAME)).items
    assert check.name == deployment.name
