"""A cluster of Cluster API's own providers and templates, with a pool of Capelin."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Namespace
from capelin.client import Client, Config, WorkloadClients
from capelin.testing.waiting import until
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_embedded.testing.management import ManagementCluster

from .hooked_cluster import PROGRAMS
from .pools import POOL, Whole, condition, pool_manifests

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs(*PROGRAMS)]

NAME = "in-memory"
VERSION = "v1.34.0"
TEMPLATES = "infrastructure/docker/templates"
VARIABLES = {
    "CLUSTER_NAME": NAME,
    "NAMESPACE": NAME,
    "KUBERNETES_VERSION": VERSION,
    "CONTROL_PLANE_MACHINE_COUNT": "1",
    "WORKER_MACHINE_COUNT": "2",
}


@pytest.fixture(scope="module")
async def whole(management_cluster: ManagementCluster) -> AsyncGenerator[Whole]:
    """The cluster of the templates, which is removed after the module."""
    await management_cluster.require("kubeadm", "dev")
    async with Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management:
        await management.apply(Namespace.of(NAME))
        for file in ("clusterclass-in-memory.yaml", "cluster-template-in-memory.yaml"):
            for manifest in render_template(await template(file), VARIABLES):
                manifest["metadata"]["namespace"] = NAME
                await management.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(management, NAME, NAME, 600, progress.append)
        assert progress, "no progress was reported"
        clients = WorkloadClients(management)
        async with clients.client(NAME, NAME) as workload:
            yield Whole(management, workload, NAME, NAME)
        await clients.close()
        await management.delete(Cluster, NAME, NAME)

        async def gone() -> bool:
            return await management.find(Cluster, NAME, NAME) is None

        await until(gone)
        await management.delete(Namespace, NAME)


async def template(name: str) -> str:
    folder = await Binaries().module_dir("cluster-api/test")
    return await asyncio.to_thread((folder / TEMPLATES / name).read_text)


async def test_a_kubeadm_cluster_without_containers_becomes_available(
    whole: Whole,
    management_cluster: ManagementCluster,
    run_program: Callable[..., Awaitable[str]],
) -> None:
    machines = (await whole.management.list(Machine, NAME)).items
    assert [machine.status.phase for machine in machines] == ["Running"] * 3

    kubeconfig: Path = management_cluster.kubeconfig
    described = await run_program(kubeconfig, "clusterctl", "describe", "cluster", NAME, "-n", NAME)
    assert "KubeadmControlPlane" in described
    assert "MachineDeployment" in described
    listed = await run_program(kubeconfig, "kubectl", "get", "machines", "-n", NAME)
    assert listed.count("Running") == 3
    inventory = await run_program(kubeconfig, "kubectl", "get", "providers", "-A", "-o", "name")
    assert {
        "cluster-api",
        "bootstrap-kubeadm",
        "control-plane-kubeadm",
        "infrastructure-docker",
    } <= {line.rpartition("/")[2] for line in inventory.split()}


async def test_a_capelin_pool_works_with_a_kubeadm_control_plane(whole: Whole) -> None:
    """The API server in memory has no leases, and no controller needs them."""
    others = {one.name for one in await whole.machines()}

    async def has(count: int, version: str) -> bool:
        pool, infrastructure = await whole.pool(), await whole.infrastructure()
        instances, nodes = await whole.instances(), await whole.nodes()
        machines = [one for one in await whole.machines() if one.name not in others]
        names = {one.name for one in instances}
        mine = [node for node in nodes if node.name.startswith(POOL)]
        return (
            len(names) == count == pool.status.ready_replicas == len(pool.status.node_refs)
            and names == {one.name for one in machines} == {one.name for one in mine}
            and all(condition(one, "Ready") == "True" for one in machines)
            and all(one.status.node_info.kubelet_version == version for one in mine)
            and infrastructure.spec.provider_id_list
            == sorted(one.spec.provider_id or "" for one in mine)
        )

    for manifest in pool_manifests(whole.name, whole.namespace, replicas=2, version=VERSION):
        await whole.management.apply(manifest)
    for replicas in (2, 3, 1):
        await whole.scale(replicas)
        await until(lambda replicas=replicas: has(replicas, VERSION))
    before = {one.name for one in await whole.instances()}
    await whole.upgrade("v1.34.1")
    await until(lambda: has(1, "v1.34.1"))
    assert before.isdisjoint({one.name for one in await whole.instances()})
    assert await whole.is_available()
    assert others <= {one.name for one in await whole.machines()}
