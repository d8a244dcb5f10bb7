"""Machines are drained, updated in place and opened again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capelin.api.core import Node, Pod
from capelin.client import TooManyRequests
from capelin.contract import ConditionSpec, update_conditions
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import CapelinMachine, HostReference, Hosts, NodeInfo
from capelin_machine_pool.backends import InstanceStatus, Workload
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.bootstrap import Archives
from capelin_machine_pool.hosts.api import CapelinHost
from capelin_machine_pool.hosts.node_updates import (
    UPDATING_ANNOTATION,
    NodeStep,
    must_leave,
    next_node_step,
)
from capelin_machine_pool.reasons import Reason

from tests.support.archives import add_archive, fake_programs

from .objects import NAMESPACE, NOW, a_claim, a_host
from .test_backend import PROVIDER_ID, instance

OLD, NEW = "v1.33.13", "v1.34.4"
BUNDLE = Hosts(profile="Bundle")
CORDONED = {UPDATING_ANNOTATION: NEW}


def node(version: str = OLD, *, ready: bool = True, **metadata: Any) -> Node:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return Node.read(
        {
            "metadata": {"name": "one", **metadata},
            "spec": {"providerID": PROVIDER_ID},
            "status": {"conditions": [condition], "nodeInfo": {"kubeletVersion": version}},
        }
    )


def host(
    *, update: str | None = None, updated: str | None = None, problem: str = "", **claim: Any
) -> CapelinHost:
    values: dict[str, Any] = {"version": OLD, "profile": "Bundle", "update_version": update}
    made = a_host(phase="Updating" if problem else "Ready", claim=a_claim(**{**values, **claim}))
    assert made.status is not None
    made.status.updated_version = updated
    made.status.node_info = NodeInfo(architecture="amd64", operating_system="linux")
    if problem:
        specs = [ConditionSpec(it, "False", problem, "exit code 4") for it in ("Ready", "Updated")]
        made.status.conditions = update_conditions([], specs, now=NOW, generation=1)
    return made


@pytest.mark.parametrize(
    ("observed", "its_node", "step"),
    [
        (host(), node(), NodeStep.DRAIN),
        (host(version=NEW), node(NEW), NodeStep.NOTHING),
        # A claim of an earlier release.
        (host(version=None), node(NEW), NodeStep.NOTHING),
        (host(version=None), node(), NodeStep.DRAIN),
        (host(update=NEW), node(), NodeStep.WAIT_FOR_HOST),
        (host(update=NEW, problem="UpdateFailed"), node(), NodeStep.WAIT_FOR_HOST),
        (host(update=NEW, updated=NEW), node(), NodeStep.WAIT_FOR_NODE),
        (host(update=NEW, updated=NEW), node(NEW, ready=False), NodeStep.WAIT_FOR_NODE),
        (host(update=NEW, updated=NEW), node(NEW, annotations=CORDONED), NodeStep.UNCORDON),
        (host(update=NEW, updated=NEW), node(NEW), NodeStep.NOTHING),
        # An update to another version runs, or has failed.
        (host(update="v1.34.1"), node(), NodeStep.WAIT_FOR_HOST),
        (host(update="v1.34.1", problem="UpdateFailed"), node(), NodeStep.DRAIN),
        # The change was taken back before the update.
        (host(version=NEW), node(NEW, annotations=CORDONED), NodeStep.UNCORDON),
    ],
)
def test_next_step(observed: CapelinHost, its_node: Node, step: NodeStep) -> None:
    assert next_node_step(NEW, BUNDLE, observed, its_node) is step


def test_hosts_without_a_profile_are_not_updated() -> None:
    assert next_node_step(NEW, Hosts(), host(), node()) is NodeStep.NOTHING


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": "one", "containers": []},
        "status": {"phase": "Running"},
    }


def owner(kind: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "x"}
    return {"ownerReferences": [{**reference, "controller": True}]}


@pytest.mark.parametrize(
    ("manifest", "leaves"),
    [
        (pod("bare"), True),
        (pod("web", **owner("ReplicaSet")), True),
        (pod("proxy", **owner("DaemonSet")), False),
        (pod("static", annotations={"kubernetes.io/config.mirror": "x"}), False),
        (pod("kept", labels={"cluster.x-k8s.io/drain": "skip"}), False),
        ({**pod("job"), "status": {"phase": "Succeeded"}}, False),
    ],
)
def test_pods_that_leave(manifest: dict[str, Any], leaves: bool) -> None:
    assert must_leave(Pod.read(manifest)) is leaves


class Evicting(FakeClient):
    """A cluster that evicts pods, except those that a budget keeps."""

    kept: set[str]

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        assert grace_seconds is None
        if name in self.kept:
            raise TooManyRequests(429, "TooManyRequests", "budget")
        await self.delete(Pod, name, namespace, uid=uid)
        return True


class World:
    """A machine of version v1.33.13 that gets v1.34.4."""

    def __init__(self, folder: Path) -> None:
        self.client = Evicting(CapelinHost, CapelinMachine)
        self.client.kept = set()
        self.client.add(host())
        self.client.add(node())
        self.backend = HostsBackend(Archives(folder))
        self.instance = instance(
            version=NEW,
            hosts=BUNDLE,
            host=HostReference(name="host-1", claim="uid-one"),
            provisioned=True,
        )

    async def step(self) -> InstanceStatus:
        workload = Workload(client=self.client, kubeconfig=b"")
        observed = await self.backend.observe(self.instance, workload, self.client)
        return await self.backend.apply(self.instance, observed, workload, self.client, NOW)

    async def node(self) -> Node:
        return await self.client.get(Node, "one")

    async def host(self) -> CapelinHost:
        return await self.client.get(CapelinHost, "host-1", NAMESPACE)

    async def set_status(self, change: Callable[[CapelinHost], None]) -> None:
        observed = await self.host()
        change(observed)
        assert observed.status is not None
        patch = {"status": observed.status.dump()}
        kind = CapelinHost.resource
        await self.client.patch(kind, "host-1", NAMESPACE, patch, subresource="status")


async def test_machine_is_drained_updated_and_opened(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("web", "other"):
        world.client.add(Pod.read(pod(name)))
    # Nothing is drained before the programs of the version exist.
    status = await world.step()
    assert (status.updating, status.reason) == (True, Reason.ARCHIVE_MISSING)
    assert not (await world.node()).spec.unschedulable
    add_archive(tmp_path, NEW, fake_programs(NEW))
    world.client.kept = {"web"}
    status = await world.step()
    assert (status.updating, status.reason) == (True, Reason.UPDATING)
    assert status.message == (
        "a PodDisruptionBudget does not allow the eviction of default/web yet"
    )
    cordoned = await world.node()
    assert cordoned.spec.unschedulable
    assert cordoned.metadata.annotations[UPDATING_ANNOTATION] == NEW
    claim = (await world.host()).spec.claim
    assert claim is not None
    assert claim.update_version is None
    world.client.kept = set()
    assert (await world.step()).message == "pods leave the Node: default/web"
    assert (await world.step()).message == "host host-1: the update begins"
    claim = (await world.host()).spec.claim
    assert claim is not None
    assert (claim.version, claim.update_version) == (OLD, NEW)
    assert (await world.step()).updating

    def updated(observed: CapelinHost) -> None:
        assert observed.status is not None
        observed.status.updated_version = NEW

    await world.set_status(updated)
    assert (await world.step()).message == f"the kubelet does not report {NEW} yet"
    patch = {"status": {"nodeInfo": {"kubeletVersion": NEW}}}
    await world.client.patch(Node, "one", None, patch, subresource="status")
    status = await world.step()
    assert (status.running, status.updating) == (True, False)
    opened = await world.node()
    assert not opened.spec.unschedulable
    assert UPDATING_ANNOTATION not in opened.metadata.annotations
    world.client.requests.clear()
    assert not (await world.step()).updating
    assert world.client.writes == []


async def test_pods_of_a_lost_node_are_not_awaited(tmp_path: Path) -> None:
    world = World(tmp_path)
    add_archive(tmp_path, NEW, fake_programs(NEW))
    ending = Pod.read(pod("web"))
    ending.metadata.deletion_timestamp = NOW
    ending.metadata.finalizers = ["kubelet"]
    world.client.add(ending)
    assert (await world.step()).message == "pods leave the Node: default/web"
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await world.client.patch(Node, "one", None, lost, subresource="status")
    assert (await world.step()).message == "host host-1: the update begins"


async def test_failed_update_is_the_machines_problem(tmp_path: Path) -> None:
    world = World(tmp_path)
    add_archive(tmp_path, NEW, fake_programs(NEW))
    await world.step()
    failed = host(update=NEW, problem="UpdateFailed").status
    assert failed is not None
    await world.set_status(lambda observed: setattr(observed, "status", failed))
    status = await world.step()
    assert (status.running, status.updating, status.reason) == (True, True, Reason.UPDATE_FAILED)
    assert status.message == "host host-1: exit code 4"


async def test_node_that_a_person_cordoned_stays_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    add_archive(tmp_path, NEW, fake_programs(NEW))
    await world.client.patch(Node, "one", None, {"spec": {"unschedulable": True}})
    assert (await world.step()).message == "host host-1: the update begins"
    assert UPDATING_ANNOTATION not in (await world.node()).metadata.annotations


async def test_versions_that_kubeadm_cannot_reach_are_rejected(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.instance = instance(
        version="v1.36.0", hosts=BUNDLE, host=world.instance.host, provisioned=True
    )
    status = await world.step()
    assert status.reason == Reason.UPDATE_FAILED
    assert "upgrades one at a time" in status.message
    assert not (await world.node()).spec.unschedulable


async def test_failed_update_is_not_the_version_of_a_host(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim = {"spec": {"claim": {"updateVersion": NEW}}}
    await world.client.patch(CapelinHost, "host-1", NAMESPACE, claim)
    failed = host(update=NEW, problem="UpdateFailed").status
    assert failed is not None
    await world.set_status(lambda observed: setattr(observed, "status", failed))
    world.instance = instance(
        version="v1.35.0", hosts=BUNDLE, host=world.instance.host, provisioned=True
    )
    status = await world.step()
    assert status.reason == Reason.UPDATE_FAILED
    assert "upgrades one at a time" in status.message
    assert not (await world.node()).spec.unschedulable
