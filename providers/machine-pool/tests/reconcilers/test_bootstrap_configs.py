"""A pool whose bootstrap config is not there: nobody can tell which machines are outdated."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from capelin.api import Condition, ObjectMeta, OwnerReference
from capelin.api.views.capi import Cluster, Machine, MachinePool
from capelin.client import NotServed
from capelin.contract.conditions import find
from capelin.controller import After, Context
from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    Initialization,
    MachinePoolSpec,
    MachinePoolStatus,
    MachineSpec,
    MachineStatus,
)
from capelin_machine_pool.desired import REVISION_LABEL, revision_of
from capelin_machine_pool.reconcilers import MachinePoolReconciler

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG: dict[str, Any] = {"joinConfiguration": {"nodeRegistration": {"name": "node"}}}
GROUP = "bootstrap.cluster.x-k8s.io"
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
            name=name, namespace="team", creation_timestamp=NOW, labels={REVISION_LABEL: revision}
        ),
        spec=MachineSpec(provider_id=f"capelin:///team/demo/{name}"),
        status=MachineStatus(
            conditions=[ready], initialization=Initialization(provisioned=True), ready=True
        ),
    )


@dataclass
class FakeClient:
    """A management cluster with a pool of two machines, and maybe their bootstrap config."""

    config: dict[str, Any] | None
    is_served: bool = True
    done: list[str] = field(default_factory=list[str])

    async def find(self, kind: object, name: str, namespace: str) -> object:
        assert namespace == "team"
        if kind is Cluster:
            return CLUSTER
        if kind is MachinePool:
            return MACHINE_POOL
        assert name == "boot"
        return None if self.config is None else {"spec": self.config}

    async def iterate(
        self, kind: object, *_: object, **__: object
    ) -> AsyncGenerator[CapelinMachine]:
        if kind is not Machine:
            revision = revision_of(pool(), MACHINE_POOL, CONFIG)
            for name in ("a", "b"):
                yield machine(name, revision)

    async def request(self, method: str, path: str) -> Any:
        assert method == "GET"
        if not self.is_served:
            raise NotServed(404)
        if path == f"/apis/{GROUP}":
            return {"preferredVersion": {"version": "v1beta2"}, "versions": []}
        return {
            "resources": [{"kind": "KubeadmConfig", "name": "kubeadmconfigs", "namespaced": True}]
        }

    async def apply(self, manifest: dict[str, Any], **_: object) -> None:
        self.done.append(f"list {len(manifest['spec']['providerIDList'])}")

    async def create(self, _: object) -> None:
        self.done.append("create")

    async def delete(self, _: object, name: str, __: str) -> bool:
        self.done.append(f"delete {name}")
        return True


@dataclass
class FakeContext:
    """Keeps what is said of the pool."""

    client: FakeClient
    said: MachinePoolStatus | None = None

    def now(self) -> datetime:
        return NOW

    async def add_finalizer(self, *_: object) -> None:
        """It does not matter here."""

    async def apply_metadata(self, *_: object, **__: object) -> None:
        """It does not matter here."""

    async def patch_status(self, _: object, status: MachinePoolStatus) -> bool:
        self.said = status
        return True


async def look(client: FakeClient) -> tuple[object, MachinePoolStatus]:
    context = FakeContext(client)
    result = await MachinePoolReconciler().reconcile(cast("Context", context), pool())
    assert context.said is not None
    return result, context.said


def told(status: MachinePoolStatus, type_: str) -> tuple[str, str]:
    condition = find(status.conditions, type_)
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize("is_served", [True, False], ids=["object", "kind"])
async def test_machines_stay_while_their_bootstrap_config_is_not_there(is_served: bool) -> None:
    client = FakeClient(None, is_served)
    result, status = await look(client)
    assert isinstance(result, After)
    assert client.done == ["list 2"]
    assert (status.ready, status.initialization.provisioned, status.replicas) == (True, True, 2)
    assert told(status, "Ready") == ("True", "Ready")
    assert told(status, "UpToDate") == ("Unknown", "WaitingForBootstrapConfig")
    condition = find(status.conditions, "UpToDate")
    assert condition is not None
    assert "bootstrap.configRef" in condition.message
    assert "create it again" in condition.message


async def test_a_bootstrap_config_that_comes_back_as_it_was_replaces_no_machine() -> None:
    client = FakeClient(CONFIG)
    _, status = await look(client)
    assert client.done == ["list 2"]
    assert told(status, "UpToDate") == ("True", "UpToDate")


async def test_a_bootstrap_config_that_comes_back_as_another_replaces_machines() -> None:
    client = FakeClient({})
    _, status = await look(client)
    assert "create" in client.done
    assert told(status, "UpToDate") == ("False", "NotUpToDate")
