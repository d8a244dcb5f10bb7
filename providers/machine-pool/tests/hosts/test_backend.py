"""The backend `Hosts`: machines follow their hosts and Nodes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from capelin.api.capi import MachinePool
from capelin.api.core import Node
from capelin.client import Conflict
from capelin.contract import ConditionSpec, update_conditions
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import CapelinMachine, HostReference, Hosts, Simulated, Taint
from capelin_machine_pool.backends import InstanceStatus, Workload
from capelin_machine_pool.backends.hosts import HostsBackend, observed_status
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.hosts.api import CapelinHost
from capelin_machine_pool.reasons import Reason

from .objects import NAMESPACE, NOW, a_claim, a_host, a_machine

PROVIDER_ID = f"capelin:///{NAMESPACE}/demo/one"
BACKEND = HostsBackend()


def instance(**changes: Any) -> Instance:
    values: dict[str, Any] = {
        "key": ObjectKey(NAMESPACE, "one"),
        "cluster": "demo",
        "provider_id": PROVIDER_ID,
        "version": "v1.34.4",
        "failure_domain": None,
        "created": NOW,
        "simulated": Simulated(),
        "backend": "Hosts",
        "bootstrap_secret": "data",
        **changes,
    }
    return Instance(**values)


def node(name: str = "one", provider_id: str | None = PROVIDER_ID) -> Node:
    return Node.read({"metadata": {"name": name}, "spec": {"providerID": provider_id or ""}})


async def test_machine_claims_a_host_once() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine())
    client.add(a_host("a", labels={"role": "worker"}))
    client.add(a_host("b"))
    desired = instance(
        uid=machine.uid, hosts=Hosts(match_labels={"role": "worker"}, clean_commands=["true"])
    )
    assert await BACKEND.allocate(desired, client) == PROVIDER_ID
    claim = (await client.get(CapelinHost, "a", NAMESPACE)).spec.claim
    assert claim == a_claim(id=machine.uid, clean_commands=["true"], version="v1.34.4")
    found = await client.get(CapelinMachine, "one", NAMESPACE)
    assert found.spec.host == HostReference(name="a", claim=machine.uid)
    client.requests.clear()
    await BACKEND.allocate(replace(desired, host=found.spec.host), client)
    assert client.writes == []


async def test_machine_without_a_free_host_explains_it() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine())
    with pytest.raises(Blocked, match="has no CapelinHost; add a host") as blocked:
        await BACKEND.allocate(instance(uid=machine.uid), client)
    assert blocked.value.reason == Reason.NO_FREE_HOST


async def test_refused_machine_claims_another_host() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine(host=HostReference(name="a", claim="uid-one")))
    client.add(a_host("a", phase="Broken"))
    client.add(a_host("b"))
    await BACKEND.allocate(instance(uid=machine.uid), client)
    claim = (await client.get(CapelinHost, "b", NAMESPACE)).spec.claim
    assert claim is not None
    assert claim.id == "uid-one"


async def test_provisioned_machine_never_claims_another_host() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    reference = HostReference(name="a", claim="uid-one")
    machine = client.add(a_machine(host=reference))
    client.add(a_host("b"))
    lost = instance(uid=machine.uid, host=reference, provisioned=True)
    await BACKEND.allocate(lost, client)
    assert (await client.get(CapelinHost, "b", NAMESPACE)).spec.claim is None
    workload = Workload(client=client, kubeconfig=b"")
    assert (await BACKEND.observe(lost, workload, client)).lost


async def test_object_of_the_same_name_does_not_claim() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    client.add(a_machine())
    with pytest.raises(Conflict):
        await BACKEND.allocate(instance(uid="of a former object"), client)


async def test_machines_of_a_pool_use_its_bootstrap_data() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine())
    client.add(a_host("a"))
    desired = instance(uid=machine.uid, pool="workers", bootstrap_secret=None)
    with pytest.raises(Blocked) as blocked:
        await BACKEND.allocate(desired, client)
    assert blocked.value.reason == Reason.WAITING_FOR_BOOTSTRAP_DATA
    spec = {"template": {"spec": {"bootstrap": {"dataSecretName": "of-the-pool"}}}}
    metadata = {"name": "workers", "namespace": NAMESPACE}
    client.add(MachinePool.read({"metadata": metadata, "spec": spec}))
    await BACKEND.allocate(desired, client)
    claim = (await client.get(CapelinHost, "a", NAMESPACE)).spec.claim
    assert claim is not None
    assert (claim.pool, claim.bootstrap_secret) == ("workers", "of-the-pool")


def test_machine_runs_when_its_node_exists() -> None:
    host = a_host(phase="Ready", claim=a_claim())
    assert observed_status(instance(), host, node()).running
    assert observed_status(instance(provisioned=True), host, None).lost
    assert observed_status(instance(), host, node(provider_id=None)).node == "one"
    with pytest.raises(Blocked) as blocked:
        observed_status(instance(), host, node(provider_id="capelin:///other"))
    assert blocked.value.reason == Reason.NODE_NAME_TAKEN


def test_machine_shows_the_problem_of_its_host() -> None:
    host = a_host(phase="Bootstrapping", claim=a_claim())
    spec = ConditionSpec("Ready", "False", Reason.BOOTSTRAP_FAILED, "exit code 3")
    assert host.status is not None
    host.status.conditions = update_conditions([], [spec], now=NOW, generation=1)
    status = observed_status(instance(), host, None)
    assert (status.running, status.reason) == (False, Reason.BOOTSTRAP_FAILED)
    assert status.message == "host host-1: exit code 3"


async def test_host_is_bootstrapped_before_the_api_server_that_starts_on_it() -> None:
    client = FakeClient(CapelinHost)
    client.add(a_host(phase="Bootstrapping", claim=a_claim()))
    workload = Workload(client=None, kubeconfig=b"")
    desired = instance(host=HostReference(name="host-1", claim="uid-one"))
    observed = await BACKEND.observe(desired, workload, client)
    assert not observed.running
    assert await BACKEND.apply(desired, observed, workload, client, NOW) == observed


async def test_node_gets_its_provider_id() -> None:
    client = FakeClient(CapelinHost)
    client.add(Node.read({"metadata": {"name": "host-1"}, "spec": {}}))
    reference = HostReference(name="host-1", claim="uid-one")
    host = a_host(phase="Ready", claim=a_claim())
    assert host.status is not None
    host.status.host_name = "host-1"
    client.add(host)
    workload = Workload(client=client, kubeconfig=b"")
    desired = instance(host=reference)
    observed = await BACKEND.observe(desired, workload, client)
    await BACKEND.apply(desired, observed, workload, client, NOW)
    assert (await BACKEND.observe(desired, workload, client)).running


async def test_a_node_gets_the_taints_of_its_host_with_its_provider_id() -> None:
    client = FakeClient(CapelinHost)
    kept = {"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}
    old = {"key": "gpu", "value": "old", "effect": "NoSchedule"}
    client.add(Node.read({"metadata": {"name": "one"}, "spec": {"taints": [kept, old]}}))
    gpu = Taint(key="gpu", value="yes", effect="NoSchedule")
    client.add(a_host(phase="Ready", claim=a_claim(), taints=[gpu]))
    workload = Workload(client=client, kubeconfig=b"")
    desired = instance(host=HostReference(name="host-1", claim="uid-one"))
    client.requests.clear()
    await BACKEND.apply(desired, _joined(), workload, client, NOW)
    found = await client.get(Node, "one")
    assert found.spec.provider_id == PROVIDER_ID
    assert [taint.dump() for taint in found.spec.taints] == [kept, gpu.dump()]
    # Between two writes, core could find the Node and let pods run there.
    assert len(client.writes) == 1


def _joined() -> InstanceStatus:
    return InstanceStatus(running=False, node="one")


async def test_deleted_machine_waits_until_its_host_is_clean() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine(host=HostReference(name="host-1", claim="uid-one")))
    client.add(a_host(phase="Ready", claim=a_claim()))

    async def delete(seconds: float = 0) -> str:
        try:
            await BACKEND.delete(machine, None, client, NOW + timedelta(seconds=seconds))
        except Blocked as error:
            return error.message
        return ""

    assert await delete() == "the host host-1 is being cleaned"
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert host.spec.claim is not None
    assert host.spec.claim.released_at == NOW
    assert await delete(299) == "the host host-1 is being cleaned"
    # A dead host is cleaned later.
    assert await delete(301) == ""
    broken = {"status": {"phase": "Broken"}}
    kind = CapelinHost.resource
    await client.patch(kind, "host-1", NAMESPACE, broken, subresource="status")
    assert await delete(1) == ""
