"""Pulumi resources whose machines are containers, without Pulumi's engine."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from capelin.api.core import Node
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import apply_cluster_class
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import required_programs, workload_programs
from capelin_infra.plugin.environment_handler import EnvironmentHandler
from capelin_infra.plugin.resource import Operation
from capelin_infra.plugin.workload_cluster_handler import WorkloadClusterHandler
from capelin_infra.resource_types import (
    EnvironmentInputs,
    EnvironmentState,
    WorkloadClusterInputs,
)

from .kind_cluster import IMAGE
from .machines import docker, node_is_ready

VERSION = TESTED_KUBERNETES[-1]
OPERATION = Operation("urn:pulumi:test", 600, print)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs(
        *required_programs(VERSION, ("kubeadm-bootstrap",)), *workload_programs(VERSION)
    ),
]


@pytest.fixture
async def environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[EnvironmentState]:
    """An environment for machines that are containers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    handler, inputs = (
        EnvironmentHandler(),
        EnvironmentInputs(
            name="pulumi",
            kubernetes_version=VERSION,
            providers=["kubeadm-bootstrap"],
            machine_images=[IMAGE],
        ),
    )
    id_, state = await handler.create(inputs, OPERATION)
    yield state
    await handler.delete(id_, state, OPERATION)


async def test_a_cluster_of_a_resource_has_containers(environment: EnvironmentState) -> None:
    async with Client(Config.from_kubeconfig(environment.kubeconfig.encode())) as client:
        await apply_cluster_class(client)
    handler = WorkloadClusterHandler()
    inputs = WorkloadClusterInputs(
        kubeconfig=environment.kubeconfig,
        name="demo",
        kubernetes_version=VERSION,
        workers=1,
        machine_images=[IMAGE],
    )
    id_, cluster = await handler.create(inputs, OPERATION)
    assert await ready_nodes(cluster.workload_kubeconfig, 1)
    larger = inputs.model_copy(update={"workers": 2})
    updated = await handler.update(id_, cluster, larger, OPERATION)
    assert updated.endpoint == cluster.endpoint
    nodes = await ready_nodes(updated.workload_kubeconfig, 2)
    assert await handler.read(id_, updated) == updated
    await handler.delete(id_, updated, OPERATION)
    running = (await docker("ps", "--all", "--format={{.Names}}")).split()
    assert not {node.name for node in nodes} & {*running}


async def ready_nodes(kubeconfig: str, count: int) -> list[Node]:
    """The Nodes of a cluster when they are ready."""
    async with Client(Config.from_kubeconfig(kubeconfig.encode())) as workload:

        async def ready() -> list[Node]:
            return [node for node in (await workload.list(Node)).items if node_is_ready(node)]

        return await until(ready, lambda nodes: len(nodes) == count, within=240)
