"""What is around a cluster's machines, from its making to its end."""

from typing import Any

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import find_condition, reference_to
from capelin.controller import Done
from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.reconcilers import ClusterReconciler

from .fake_core import context_for


async def make(client: Client, namespace: str, **metadata: Any) -> None:
    """A Cluster with an endpoint, and what is around its machines."""
    made = await client.create(
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": namespace},
            "spec": {"controlPlaneEndpoint": {"host": "demo", "port": 6443}},
        },
        resource=Cluster.resource,
    )
    owner = reference_to(Cluster.read(made), controller=True).dump()
    await client.create(
        {
            "apiVersion": CapelinCluster.resource.api_version,
            "kind": "CapelinCluster",
            "metadata": {
                "name": "demo",
                "namespace": namespace,
                "ownerReferences": [owner],
                **metadata,
            },
            "spec": {"failureDomains": [{"name": "east"}]},
        },
        resource=CapelinCluster.resource,
    )


async def looked_after(client: Client, namespace: str) -> CapelinCluster:
    """The infrastructure after one look of the provider."""
    infrastructure = await client.get(CapelinCluster, "demo", namespace)
    assert await ClusterReconciler().reconcile(context_for(client), infrastructure) == Done()
    return await client.get(CapelinCluster, "demo", namespace)


async def test_what_goes_says_so_and_names_who_holds_it(
    provider_crds: None,  # noqa: ARG001 - it is enough that they are there
    client: Client,
    namespace: str,
) -> None:
    await make(client, namespace, finalizers=["example.com/others"])
    made = await looked_after(client, namespace)
    assert made.status is not None
    assert made.status.ready
    await client.delete(CapelinCluster, "demo", namespace)
    going = (await looked_after(client, namespace)).status
    assert going is not None
    assert going.ready
    said = find_condition(going.conditions, "Deleting")
    assert said is not None
    assert said.status == "True"
    assert "example.com/others" in said.message
    await client.patch(CapelinCluster, "demo", namespace, {"metadata": {"finalizers": None}})


async def test_what_somebody_else_manages_is_left_alone(
    provider_crds: None,  # noqa: ARG001 - it is enough that they are there
    client: Client,
    namespace: str,
) -> None:
    await make(client, namespace, annotations={"cluster.x-k8s.io/managed-by": "somebody"})
    before = await client.get(CapelinCluster, "demo", namespace)
    after = await looked_after(client, namespace)
    assert after.metadata.resource_version == before.metadata.resource_version
    assert after.status is None
