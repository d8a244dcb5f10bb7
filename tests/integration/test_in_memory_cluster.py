"""A cluster of Cluster API's own providers, from its own templates, in the shared environment."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from capelin.api.views.capi import Cluster, Machine
from capelin.api.views.core import Namespace
from capelin.client import Client
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.components import parse
from capelin.testing.management import ManagementCluster
from capelin_infra.lifecycle import until_ready

pytestmark = pytest.mark.timeout(900)

NAME = "in-memory"
TEMPLATES = "infrastructure/docker/templates"
VARIABLES = {
    "CLUSTER_NAME": NAME,
    "NAMESPACE": NAME,
    "KUBERNETES_VERSION": "v1.34.0",
    "CONTROL_PLANE_MACHINE_COUNT": "1",
    "WORKER_MACHINE_COUNT": "2",
}


@pytest.fixture
async def namespace(management: Client) -> AsyncGenerator[str]:
    """The templates' own namespace; with the cluster in it, it is gone after the test."""
    await management.apply(Namespace.of(NAME))
    yield NAME
    await management.delete(Cluster, NAME, NAME)
    while True:
        if await management.find(Cluster, NAME, NAME) is None:
            break
        await asyncio.sleep(0.2)
    await management.delete(Namespace, NAME)


async def template(name: str) -> str:
    folder = await Binaries().module_dir("cluster-api/test")
    return await asyncio.to_thread((folder / TEMPLATES / name).read_text)


async def test_a_kubeadm_cluster_without_containers_becomes_available(
    management: Client,
    management_cluster: ManagementCluster,
    namespace: str,
    run_program: Callable[..., Awaitable[str]],
) -> None:
    for file in ("clusterclass-in-memory.yaml", "cluster-template-in-memory.yaml"):
        for manifest in parse(await template(file), VARIABLES):
            manifest["metadata"]["namespace"] = namespace
            await management.apply(manifest)
    said: list[str] = []
    await until_ready(management, NAME, namespace, 600, said.append)

    machines = (await management.list(Machine, namespace)).items
    assert [each.status.phase for each in machines] == ["Running"] * 3
    assert said, "a cluster takes a while, and the way there is told"

    kubeconfig: Path = management_cluster.kubeconfig
    described = await run_program(
        kubeconfig, "clusterctl", "describe", "cluster", NAME, "-n", namespace
    )
    assert "KubeadmControlPlane" in described
    assert "MachineDeployment" in described
    listed = await run_program(kubeconfig, "kubectl", "get", "machines", "-n", namespace)
    assert listed.count("Running") == 3
    inventory = await run_program(kubeconfig, "kubectl", "get", "providers", "-A", "-o", "name")
    assert {
        "cluster-api",
        "bootstrap-kubeadm",
        "control-plane-kubeadm",
        "infrastructure-docker",
    } <= {line.rpartition("/")[2] for line in inventory.split()}
