"""The infrastructure of a cluster, from creation to deletion."""

from typing import Any

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import find_condition, reference_to
from capelin.controller import Done
from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.reconcilers import ClusterReconciler

from .fake_core import context_for


async def create_infrastructure(client: Client, namespace: str, **metadata: Any) -> None:
    """Create a Cluster with an endpoint, and its infrastructure."""
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


async def reconciled(client: Client, namespace: str) -> CapelinCluster:
    """Reconcile the infrastructure once and return it."""
    infrastructure = await client.get(CapelinCluster, "demo", namespace)
    assert await ClusterReconciler().reconcile(context_for(client), infrastructure) == Done()
    return await client.get(CapelinCluster, "demo", namespace)


async def test_a_condition_names_the_finalizer_that_blocks_deletion(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
    client: Client,
    namespace: str,
) -> None:
    await create_infrastructure(client, namespace, finalizers=["example.com/others"])
    made = await reconciled(client, namespace)
    assert made.status is not None
    assert made.status.ready
    await client.delete(CapelinCluster, "demo", namespace)
    going = (await reconciled(client, namespace)).status
    assert going is not None
    assert going.ready
    deleting = find_condition(going.conditions, "Deleting")
    assert deleting is not None
    assert deleting.status == "True"
    assert "example.com/others" in deleting.message
    await client.patch(CapelinCluster, "demo", namespace, {"metadata": {"finalizers": None}})


async def test_externally_managed_infrastructure_is_unchanged(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
    client: Client,
    namespace: str,
) -> None:
    await create_infrastructure(
        client, namespace, annotations={"cluster.x-k8s.io/managed-by": "somebody"}
    )
    before = await client.get(CapelinCluster, "demo", namespace)
    after = await reconciled(client, namespace)
    assert after.metadata.resource_version == before.metadata.resource_version
    assert after.status is None
