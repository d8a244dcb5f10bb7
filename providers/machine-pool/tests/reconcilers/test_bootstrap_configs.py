"""Without the bootstrap config, the provider cannot detect outdated machines."""

from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Condition, ObjectMeta, OwnerReference, Resource
from capelin.api.capi import Cluster, MachinePool
from capelin.client import Forbidden
from capelin.contract import find_condition, reference_to
from capelin.controller import After, Result
from capelin.provider import InfraMachineStatus, Initialization
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    MachinePoolSpec,
    MachinePoolStatus,
    MachineSpec,
)
from capelin_machine_pool.desired import REVISION_LABEL, revision_of
from capelin_machine_pool.reconcilers import MachinePoolReconciler

from .fake_core import context_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG: dict[str, Any] = {"joinConfiguration": {"nodeRegistration": {"name": "node"}}}
GROUP = "bootstrap.cluster.x-k8s.io"
CONFIGS = Resource(GROUP, "v1beta2", "KubeadmConfig", "kubeadmconfigs", namespaced=True)
LABELS = {"cluster.x-k8s.io/cluster-name": "demo", "cluster.x-k8s.io/pool-name": "workers"}
CLUSTER = Cluster.read(
    {
        "metadata": {"name": "demo", "namespace": "team"},
        "status": {
            "initialization": {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
        },
    }
)
MACHINE_POOL = MachinePool.read(
    {
        "metadata": {"name": "workers", "namespace": "team", "uid": "1"},
        "spec": {
            "clusterName": "demo",
            "replicas": 2,
            "template": {
                "spec": {
                    "version": "v1.34.4",
                    "bootstrap": {
                        "dataSecretName": "data",
                        "configRef": {"apiGroup": GROUP, "kind": "KubeadmConfig", "name": "boot"},
                    },
                }
            },
        },
    }
)


def pool() -> CapelinMachinePool:
    owner = OwnerReference(
        api_version=MachinePool.resource.api_version, kind="MachinePool", name="workers", uid="1"
    )
    return CapelinMachinePool(
        metadata=ObjectMeta(
            name="workers",
            namespace="team",
            uid="2",
            labels={"cluster.x-k8s.io/cluster-name": "demo"},
            owner_references=[owner],
        ),
        spec=MachinePoolSpec(),
    )


def machine(name: str, revision: str) -> CapelinMachine:
    ready = Condition(
        type="Ready", status="True", reason="Ready", message="", last_transition_time=NOW
    )
    return CapelinMachine(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            labels={**LABELS, REVISION_LABEL: revision},
            owner_references=[reference_to(pool())],
        ),
        spec=MachineSpec(provider_id=f"capelin:///team/demo/{name}"),
        status=InfraMachineStatus(
            conditions=[ready], initialization=Initialization(provisioned=True), ready=True
        ),
    )


class ManagementCluster(FakeClient):
    """A client that may lack the kind KubeadmConfig, or the permission to read it."""

    def __init__(self, *, is_served: bool, is_allowed: bool) -> None:
        super().__init__(CapelinMachine, CapelinMachinePool, *([CONFIGS] if is_served else []))
        self._is_allowed = is_allowed

    async def find(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if name == "boot" and not self._is_allowed:
            raise Forbidden(403, "Forbidden")
        return await super().find(kind, name, namespace)


async def management_cluster(
    config: dict[str, Any] | None, *, is_served: bool = True, is_allowed: bool = True
) -> ManagementCluster:
    """A pool of two machines, and maybe their bootstrap config."""
    client = ManagementCluster(is_served=is_served, is_allowed=is_allowed)
    revision = revision_of(pool(), MACHINE_POOL, CONFIG)
    client.add(CLUSTER)
    client.add(MACHINE_POOL)
    client.add(pool())
    client.add(machine("a", revision))
    client.add(machine("b", revision))
    if config is not None:
        boot = {
            "apiVersion": CONFIGS.api_version,
            "kind": CONFIGS.kind,
            "metadata": {"name": "boot", "namespace": "team"},
            "spec": config,
        }
        await client.apply(boot, resource=CONFIGS)
    client.requests.clear()
    return client


async def reconcile(client: FakeClient) -> tuple[Result, MachinePoolStatus]:
    stored = await client.get(CapelinMachinePool, "workers", "team")
    result = await MachinePoolReconciler().reconcile(context_for(client), stored)
    status = (await client.get(CapelinMachinePool, "workers", "team")).status
    assert status is not None
    return result, status


def changed_kinds(client: FakeClient) -> set[str]:
    """Method and plural of every write."""
    return {f"{r.method} {r.path.split('/')[6]}" for r in client.requests if r.method != "GET"}


def condition(status: MachinePoolStatus, type_: str) -> tuple[str, str]:
    found = find_condition(status.conditions, type_)
    assert found is not None
    return found.status, found.reason


@pytest.mark.parametrize("is_served", [True, False], ids=["object", "kind"])
async def test_machines_stay_while_their_bootstrap_config_is_missing(is_served: bool) -> None:
    client = await management_cluster(None, is_served=is_served)
    result, status = await reconcile(client)
    assert isinstance(result, After)
    assert changed_kinds(client) == {"PATCH capelinmachinepools"}
    assert (status.ready, status.initialization.provisioned, status.replicas) == (True, True, 2)
    assert condition(status, "Ready") == ("True", "Ready")
    assert condition(status, "UpToDate") == ("Unknown", "WaitingForBootstrapConfig")
    up_to_date = find_condition(status.conditions, "UpToDate")
    assert up_to_date is not None
    assert "bootstrap.configRef" in up_to_date.message
    assert "create it again" in up_to_date.message


async def test_a_restored_bootstrap_config_replaces_no_machine() -> None:
    client = await management_cluster(CONFIG)
    _, status = await reconcile(client)
    assert changed_kinds(client) == {"PATCH capelinmachinepools"}
    assert condition(status, "UpToDate") == ("True", "UpToDate")


async def test_a_different_bootstrap_config_replaces_machines() -> None:
    client = await management_cluster({})
    _, status = await reconcile(client)
    assert changed_kinds(client) == {"PATCH capelinmachinepools", "POST capelinmachines"}
    assert condition(status, "UpToDate") == ("False", "NotUpToDate")


async def test_a_condition_names_a_forbidden_bootstrap_config_and_the_fix() -> None:
    client = await management_cluster(CONFIG, is_allowed=False)
    _, status = await reconcile(client)
    assert changed_kinds(client) == {"PATCH capelinmachinepools"}
    up_to_date = find_condition(status.conditions, "UpToDate")
    assert up_to_date is not None
    assert (up_to_date.status, up_to_date.reason) == ("Unknown", "BootstrapConfigForbidden")
    assert "KubeadmConfig boot" in up_to_date.message
    assert GROUP in up_to_date.message


async def test_a_deleted_pool_deletes_machines_without_a_core_machine() -> None:
    client = await management_cluster(CONFIG)
    await reconcile(client)
    await client.delete(CapelinMachinePool, "workers", "team")
    stored = await client.get(CapelinMachinePool, "workers", "team")
    client.requests.clear()
    await MachinePoolReconciler().reconcile(context_for(client), stored)
    assert (await client.list(CapelinMachine, "team")).items == []
    assert "DELETE capelinmachines" in changed_kinds(client)
