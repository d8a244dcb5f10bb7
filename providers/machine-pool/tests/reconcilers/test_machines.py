"""The status of a machine follows the states that its backend reports."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from capelin.api import ObjectMeta
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Secret
from capelin.client import Client, Unreachable, WorkloadClients
from capelin.contract import CONTROL_PLANE_LABEL, find_condition, reference_to
from capelin.controller import After, Done, ObjectKey
from capelin.provider import Blocked, InfraMachineStatus, MachineAddress
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import CapelinMachine, MachineSpec
from capelin_machine_pool.backends import Backend, InstanceStatus, Workload
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.plan import needs_remediation
from capelin_machine_pool.reconcilers import MachineReconciler
from capelin_machine_pool.reconcilers.machines import seconds_until
from capelin_machine_pool.status import is_observed

from tests.support.cached import use_cache

from .fake_core import SameClient, context_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STARTING = InstanceStatus(running=False, message="starting")
RUNNING = InstanceStatus(running=True, addresses=(MachineAddress(type="Hostname", address="one"),))
LOST = InstanceStatus(running=True, lost=True, message="its Node was deleted")


@dataclass
class ScriptedBackend:
    """A backend that reports the states that the test sets."""

    states: list[InstanceStatus] = field(default_factory=list[InstanceStatus])
    released: list[ObjectKey] = field(default_factory=list[ObjectKey])

    async def release(self, cluster: ObjectKey) -> None:
        self.released.append(cluster)

    async def allocate(self, instance: Instance, _management: Client) -> str:
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, _management: Client
    ) -> InstanceStatus:
        assert instance.key.name == "one"
        assert workload.client is not None
        return self.states.pop(0)

    async def apply(
        self,
        _instance: Instance,
        observed: InstanceStatus,
        _workload: Workload,
        _management: Client,
        _now: datetime,
    ) -> InstanceStatus:
        return observed


@dataclass
class World:
    """A Cluster with one machine, and its reconciler."""

    client: FakeClient
    reconciler: MachineReconciler
    backend: ScriptedBackend

    async def sleep(self) -> None:
        """Report a sleep like core."""
        available = {
            "type": "ControlPlaneAvailable",
            "status": "False",
            "reason": "Asleep",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        patch = {"status": {"conditions": [available]}}
        await self.client.patch(Cluster, "demo", "team", patch, subresource="status")

    async def reconcile(self) -> InfraMachineStatus:
        context = context_for(self.client)
        assert isinstance(await self.reconciler.reconcile(context, await self.machine()), After)
        status = (await self.machine()).status
        assert status is not None
        return status

    async def machine(self) -> CapelinMachine:
        return await self.client.get(CapelinMachine, "one", "team")


def world(*states: InstanceStatus, in_pool: bool = True) -> World:
    client = FakeClient(CapelinMachine)
    client.add(
        Cluster.read(
            {
                "metadata": {"name": "demo", "namespace": "team"},
                "status": {"initialization": {"infrastructureProvisioned": True}},
            }
        )
    )
    owner = client.add(
        Machine.read(
            {
                "metadata": {"name": "one", "namespace": "team"},
                "spec": {
                    "version": "v1.34.4",
                    "failureDomain": "west",
                    "bootstrap": {"dataSecretName": "data"},
                },
            }
        )
    )
    labels = {"cluster.x-k8s.io/cluster-name": "demo"}
    machine = CapelinMachine(
        metadata=ObjectMeta(
            name="one",
            namespace="team",
            labels=labels | ({"cluster.x-k8s.io/pool-name": "pool"} if in_pool else {}),
            owner_references=[reference_to(owner, controller=True)],
        ),
        spec=MachineSpec(version="v1.33.13", failure_domain="west") if in_pool else MachineSpec(),
    )
    client.add(machine)
    client.add(Secret.of("demo-kubeconfig", "team", data={"value": b"a kubeconfig"}))
    backend = ScriptedBackend(list(states))
    reconciler = MachineReconciler({"Simulated": cast("Backend", backend)})
    clients = cast("WorkloadClients", SameClient(client))
    reconciler._workloads = clients  # pyright: ignore[reportPrivateUsage] - made when first needed
    return World(client, reconciler, backend)


def conditions(status: InfraMachineStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


@pytest.mark.parametrize("later", [STARTING, LOST], ids=["starting", "lost"])
async def test_running_machine_stays_provisioned(
    later: InstanceStatus,
) -> None:
    its = world(STARTING, RUNNING, later)
    status = await its.reconcile()
    assert not status.initialization.provisioned
    assert not status.ready
    assert (await its.machine()).spec.provider_id == "capelin:///team/demo/one"
    status = await its.reconcile()
    assert (status.initialization.provisioned, status.ready) == (True, True)
    assert conditions(status)["Ready"] == ("True", "Ready")
    status = await its.reconcile()
    assert (status.initialization.provisioned, status.ready) == (True, True)
    assert conditions(status)["Ready"] == ("False", "NotReady")


class NoApiServer:
    """Clients of a cluster whose API server does not answer."""

    @asynccontextmanager
    async def client(self, *_: str, **__: object) -> AsyncGenerator[Client]:
        raise Unreachable("connection refused")
        yield


class BackendBeforeNodes(ScriptedBackend):
    """A backend that looks for the Node of the machine."""

    async def observe(
        self, instance: Instance, workload: Workload, _management: Client
    ) -> InstanceStatus:
        assert await workload.find_node(instance.key.name) is None
        with pytest.raises(Blocked, match="has no API server yet"):
            assert workload.client
        return self.states.pop(0)


async def test_first_machine_of_a_control_plane_does_not_wait_for_its_api_server() -> None:
    its = world(in_pool=False)
    backend = BackendBeforeNodes([STARTING, STARTING])
    its.reconciler = MachineReconciler({"Simulated": cast("Backend", backend)})
    clients = cast("WorkloadClients", NoApiServer())
    its.reconciler._workloads = clients  # pyright: ignore[reportPrivateUsage] - made when needed
    assert conditions(await its.reconcile())["Ready"] == ("False", "WorkloadClusterUnreachable")
    labels = {"cluster.x-k8s.io/cluster-name": "demo", CONTROL_PLANE_LABEL: ""}
    await its.client.patch(CapelinMachine, "one", "team", {"metadata": {"labels": labels}})
    assert conditions(await its.reconcile())["Ready"] == ("False", "NotReady")
    # Then Nodes can exist, and a machine that does not see its Node would be lost.
    patch = {"status": {"initialization": {"controlPlaneInitialized": True}}}
    await its.client.patch(Cluster, "demo", "team", patch, subresource="status")
    assert conditions(await its.reconcile())["Ready"] == ("False", "WorkloadClusterUnreachable")


async def test_a_lost_machine_keeps_its_addresses() -> None:
    its = world(RUNNING, LOST)
    await its.reconcile()
    assert [address.address for address in (await its.reconcile()).addresses] == ["one"]


async def test_a_machine_reports_the_failure_domain_of_its_machine() -> None:
    assert (await world(RUNNING, in_pool=False).reconcile()).failure_domain == "west"


async def test_a_sleeping_machine_keeps_its_status() -> None:
    its = world(RUNNING)
    before = await its.reconcile()
    await its.sleep()
    context = context_for(its.client)
    assert await its.reconciler.reconcile(context, await its.machine()) == Done()
    status = (await its.machine()).status
    assert status is not None
    assert conditions(status) == conditions(before)
    assert (status.ready, status.addresses) == (True, before.addresses)
    assert its.backend.released == [ObjectKey("team", "demo")]


async def test_a_new_machine_waits_until_its_cluster_wakes() -> None:
    its = world()
    await its.sleep()
    context = context_for(its.client)
    assert await its.reconciler.reconcile(context, await its.machine()) == Done()
    status = (await its.machine()).status
    assert status is not None
    assert conditions(status)["Ready"] == ("False", "Asleep")


async def test_an_unchanged_machine_writes_nothing() -> None:
    its = world(STARTING, RUNNING, RUNNING)
    await its.reconcile()
    await its.reconcile()
    its.client.requests.clear()
    await its.reconcile()
    assert its.client.writes == []


async def test_machine_at_rest_needs_no_request() -> None:
    its = world(STARTING, RUNNING, RUNNING, RUNNING)
    await its.reconcile()
    await its.reconcile()
    machine = await its.machine()
    owner = await its.client.get(Machine, "one", "team")
    cluster = await its.client.get(Cluster, "demo", "team")
    use_cache(its.client, machine, owner, cluster)
    await its.reconciler.reconcile(context_for(its.client), machine.model_copy(deep=True))
    its.client.requests.clear()
    await its.reconciler.reconcile(context_for(its.client), machine.model_copy(deep=True))
    assert its.client.requests == [], "its kubeconfig was read a moment ago"


async def test_machine_that_has_recovered_is_not_deleted_although_the_cache_is_old() -> None:
    its = world(STARTING, RUNNING, RUNNING, RUNNING)
    await its.reconcile()
    await its.reconcile()
    machine = await its.machine()
    unhealthy = {
        "type": "OwnerRemediated",
        "status": "False",
        "reason": "WaitingForRemediation",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    patch = {"status": {"conditions": [unhealthy]}}
    await its.client.patch(Machine.resource, "one", "team", patch, subresource="status")
    owner = await its.client.get(Machine, "one", "team")
    assert needs_remediation(owner)
    use_cache(its.client, machine, owner, await its.client.get(Cluster, "demo", "team"))
    await its.client.cached.get(Machine, "one", "team")
    other = FakeClient(server=its.client.server)
    recovered = {"status": {"conditions": None}}
    await other.patch(Machine.resource, "one", "team", recovered, subresource="status")
    await its.reconciler.reconcile(context_for(its.client), machine)
    assert await other.find(Machine, "one", "team") is not None


async def test_pausing_changes_one_condition_and_leaves_the_others() -> None:
    its = world(RUNNING)
    before = (await its.reconcile()).conditions
    annotations = {"cluster.x-k8s.io/paused": ""}
    await its.client.patch(
        CapelinMachine, "one", "team", {"metadata": {"annotations": annotations}}
    )
    after = (await its.reconcile()).conditions
    paused = find_condition(after, "Paused")
    assert paused is not None
    assert paused.status == "True"
    assert [c for c in after if c.type != "Paused"] == [c for c in before if c.type != "Paused"]


@pytest.mark.parametrize("stop", ["pause", "sleep"])
async def test_machine_that_stops_before_its_update_is_not_observed(stop: str) -> None:
    its = world(RUNNING, RUNNING)
    await its.reconcile()
    await its.reconcile()
    assert is_observed(await its.machine())
    await its.client.patch(CapelinMachine, "one", "team", {"spec": {"version": "v1.34.4"}})
    if stop == "sleep":
        await its.sleep()
    else:
        pause = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
        await its.client.patch(CapelinMachine, "one", "team", pause)
    await its.reconciler.reconcile(context_for(its.client), await its.machine())
    assert not is_observed(await its.machine())


@pytest.mark.parametrize(
    ("away", "expected"),
    [(timedelta(seconds=4), 4.0), (timedelta(hours=-1), 0.01), (timedelta(hours=3), 15.0)],
)
def test_requeue_after_a_clock_change(away: timedelta, expected: float) -> None:
    assert seconds_until(NOW + away, NOW) == expected
