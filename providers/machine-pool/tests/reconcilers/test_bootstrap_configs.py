"""A pool whose bootstrap config is not there: nobody can tell which machines are outdated."""

from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Condition, ObjectMeta, OwnerReference
from capelin.api.capi import Cluster, MachinePool
from capelin.client import Forbidden, NotServed
from capelin.contract import find_condition
from capelin.controller import After
from capelin.provider import InfraMachineStatus, Initialization
from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    MachinePoolSpec,
    MachinePoolStatus,
    MachineSpec,
)
from capelin_machine_pool.desired import REVISION_LABEL, revision_of
from capelin_machine_pool.reconcilers import MachinePoolReconciler

from .fake_client import FakeClient

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG: dict[str, Any] = {"joinConfiguration": {"nodeRegistration": {"name": "node"}}}
GROUP = "bootstrap.cluster.x-k8s.io"
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
        "metadata": {"name": "workers", "namespace": "team"},
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
            creation_timestamp=NOW,
            labels={**LABELS, REVISION_LABEL: revision},
        ),
        spec=MachineSpec(provider_id=f"capelin:///team/demo/{name}"),
        status=InfraMachineStatus(
            conditions=[ready], initialization=Initialization(provisioned=True), ready=True
        ),
    )


class Management(FakeClient):
    """A management cluster with a pool of two machines, and maybe their bootstrap config."""

    def __init__(
        self, config: dict[str, Any] | None, *, is_served: bool = True, is_allowed: bool = True
    ) -> None:
        super().__init__()
        self._is_served = is_served
        self._is_allowed = is_allowed
        revision = revision_of(pool(), MACHINE_POOL, CONFIG)
        self.add(CLUSTER, MACHINE_POOL, pool(), machine("a", revision), machine("b", revision))
        if config is not None:
            self.objects["KubeadmConfig", "boot"] = {"spec": config}

    async def find(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if name == "boot" and not self._is_allowed:
            raise Forbidden(403, "Forbidden")
        return await super().find(kind, name, namespace)

    async def request(self, method: str, path: str) -> Any:
        assert method == "GET"
        if not self._is_served:
            raise NotServed(404)
        if path == f"/apis/{GROUP}":
            return {"preferredVersion": {"version": "v1beta2"}, "versions": []}
        return {
            "resources": [{"kind": "KubeadmConfig", "name": "kubeadmconfigs", "namespaced": True}]
        }


async def look(client: Management) -> tuple[object, MachinePoolStatus]:
    result = await MachinePoolReconciler().reconcile(client.ctx, pool())
    status = CapelinMachinePool.read(client.objects["CapelinMachinePool", "workers"]).status
    assert status is not None
    return result, status


def told(status: MachinePoolStatus, type_: str) -> tuple[str, str]:
    condition = find_condition(status.conditions, type_)
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize("is_served", [True, False], ids=["object", "kind"])
async def test_machines_stay_while_their_bootstrap_config_is_not_there(is_served: bool) -> None:
    client = Management(None, is_served=is_served)
    result, status = await look(client)
    assert isinstance(result, After)
    assert client.changes == ["providerIDList: 2", "status CapelinMachinePool"]
    assert (status.ready, status.initialization.provisioned, status.replicas) == (True, True, 2)
    assert told(status, "Ready") == ("True", "Ready")
    assert told(status, "UpToDate") == ("Unknown", "WaitingForBootstrapConfig")
    condition = find_condition(status.conditions, "UpToDate")
    assert condition is not None
    assert "bootstrap.configRef" in condition.message
    assert "create it again" in condition.message


async def test_a_bootstrap_config_that_comes_back_as_it_was_replaces_no_machine() -> None:
    client = Management(CONFIG)
    _, status = await look(client)
    assert client.changes == ["providerIDList: 2", "status CapelinMachinePool"]
    assert told(status, "UpToDate") == ("True", "UpToDate")


async def test_a_bootstrap_config_that_comes_back_as_another_replaces_machines() -> None:
    client = Management({})
    _, status = await look(client)
    assert "create" in client.changes
    assert told(status, "UpToDate") == ("False", "NotUpToDate")


async def test_a_bootstrap_config_that_may_not_be_read_is_named_with_what_to_do() -> None:
    client = Management(CONFIG, is_allowed=False)
    _, status = await look(client)
    assert client.changes == ["providerIDList: 2", "status CapelinMachinePool"]
    condition = find_condition(status.conditions, "UpToDate")
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "BootstrapConfigForbidden")
    assert "KubeadmConfig boot" in condition.message
    assert GROUP in condition.message
