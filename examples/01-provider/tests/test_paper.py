"""The smallest provider: what it declares, and a machine that becomes a Node."""

import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Node
from capelin.client import Client
from capelin.contract import reference_to
from capelin.controller import After, Context

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper import PaperCluster, PaperClusters, PaperMachine, PaperMachines, provider


class Nobody:
    """Keeps no events."""

    def record(self, _: object) -> None:
        """Forget it."""


class SameCluster:
    """The management cluster as its own workload cluster."""

    def __init__(self, client: Client) -> None:
        self.same = client

    @asynccontextmanager
    async def client(self, *_: str, **__: object) -> AsyncGenerator[Client]:
        yield self.same


def test_it_is_fewer_than_60_lines() -> None:
    text = Path(__file__).parents[1].joinpath("paper.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 60


def test_its_kinds_have_templates_and_say_their_contract() -> None:
    crds = {crd["spec"]["names"]["kind"]: crd for crd in provider().crds}
    assert set(crds) == {
        *("PaperCluster", "PaperClusterTemplate"),
        *("PaperMachine", "PaperMachineTemplate"),
    }
    for crd in crds.values():
        assert crd["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] == "v1alpha1"


@pytest.fixture
async def owner(install_crds: Callable[..., None], client: Client, namespace: str) -> Machine:
    """A Machine with bootstrap data in a Cluster, with their infrastructure on paper."""
    install_crds(provider())
    core = Cluster.resource.api_version

    async def make(kind: str, resource: Any, owner: Any = None, **fields: Any) -> Any:
        owners = [] if owner is None else [reference_to(owner, controller=True).dump()]
        labels = {"cluster.x-k8s.io/cluster-name": "demo"}
        metadata = {"name": "demo", "namespace": namespace, "labels": labels}
        manifest = {"apiVersion": resource.resource.api_version, "kind": kind, **fields}
        manifest["metadata"] = {**metadata, "ownerReferences": owners}
        return resource.read(await client.create(manifest, resource=resource.resource))

    assert core == "cluster.x-k8s.io/v1beta2"
    endpoint = {"controlPlaneEndpoint": {"host": "demo", "port": 6443}}
    cluster = await make("Cluster", Cluster, spec=endpoint)
    reference = {"apiGroup": PaperMachine.resource.group, "kind": "PaperMachine", "name": "demo"}
    spec = {"clusterName": "demo", "infrastructureRef": reference}
    machine = await make("Machine", Machine, spec={**spec, "bootstrap": {"dataSecretName": "x"}})
    await make("PaperCluster", PaperCluster, cluster, spec={})
    await make("PaperMachine", PaperMachine, machine, spec={})
    return machine


async def test_a_machine_becomes_a_node(owner: Machine, client: Client) -> None:
    # Nodes have no namespace, and a killed run leaves its Node in the shared API server.
    await client.delete(Node, "demo")
    nobody: Any = Nobody()
    ctx = Context(client, logging.getLogger(__name__), nobody)
    namespace = owner.namespace
    await PaperClusters().reconcile(ctx, await client.get(PaperCluster, "demo", namespace))
    cluster = await client.get(PaperCluster, "demo", namespace)
    assert cluster.status is not None
    assert cluster.status.initialization.provisioned
    provisioned = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    await client.patch(Cluster, "demo", namespace, provisioned, subresource="status")
    machines = PaperMachines()
    same: Any = SameCluster(client)
    machines._workloads = same  # pyright: ignore[reportPrivateUsage]
    result = await machines.reconcile(ctx, await client.get(PaperMachine, "demo", namespace))
    assert result == After(20)
    made = await client.get(PaperMachine, "demo", namespace)
    node = await client.get(Node, "demo")
    assert made.spec.provider_id == node.spec.provider_id == f"paper:///{namespace}/demo"
    assert made.status is not None
    assert made.status.ready
    await client.delete(Node, "demo")
