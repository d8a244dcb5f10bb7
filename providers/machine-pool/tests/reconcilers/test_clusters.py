"""The infrastructure of a cluster, from creation to deletion."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from capelin.api import Condition
from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import find_condition, is_asleep, reference_to
from capelin.controller import Done
from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.reconcilers import ClusterReconciler
from capelin_machine_pool.reconcilers.clusters import is_held

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


NOW = datetime(2026, 11, 26, 7, 0, tzinfo=UTC)


def cluster_that_is(reason: str, status: Literal["True", "False"], minutes: int = 0) -> Cluster:
    """A Cluster whose control plane has this state for some minutes."""
    cluster = Cluster.of("demo", "team")
    cluster.status.conditions = [
        Condition(
            type="ControlPlaneAvailable",
            status=status,
            reason=reason,
            message="",
            last_transition_time=NOW - timedelta(minutes=minutes),
        )
    ]
    return cluster


@pytest.mark.parametrize(
    ("cluster", "unread", "held"),
    [
        (cluster_that_is("NotAvailable", "False"), 0, True),
        (cluster_that_is("Available", "True"), 2, True),
        (cluster_that_is("Available", "True"), 0, False),
        # The health check remediates a Node that was broken before.
        (cluster_that_is("Available", "True", minutes=5), 2, False),
        (Cluster.of("demo", "team"), 0, True),
    ],
)
def test_health_checks_wait_until_core_has_read_the_nodes(
    cluster: Cluster, unread: int, held: bool
) -> None:
    assert is_held(cluster, unread, NOW) is held


def test_only_the_reason_of_the_control_plane_is_a_sleep() -> None:
    assert is_asleep(cluster_that_is("Asleep", "False"))
    assert is_asleep(cluster_that_is("Waking", "False"))
    assert not is_asleep(cluster_that_is("NotAvailable", "False"))
    assert not is_asleep(Cluster.of("demo", "team"))
