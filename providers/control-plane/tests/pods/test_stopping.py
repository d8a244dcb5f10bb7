"""A control plane on pods that stops for a move, on a real API server."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from capelin.api import Unstructured
from capelin.api.core import Pod, ServiceAccount
from capelin.client import Client
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.backends.pods import Names
from capelin_control_plane.backends.pods.exposure import own_hosts
from capelin_control_plane.backends.pods.own_objects import NETWORK_POLICIES
from capelin_control_plane.desired.instances import Remains

from .pod_objects import objects_of
from .test_backend import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PKI,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Rig,
    owned_replica_set,
)

KINDS = (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
RESTORE = "20260131T030000Z"


@pytest.fixture
async def rig(client: Client, namespace: str) -> Rig:
    await client.apply(ServiceAccount.of("default", namespace))
    rig = Rig(client, namespace)
    await rig.apply(rig.desired)
    await rig.run_members()
    objects = objects_of(rig.desired, Names.of(rig.key))
    deployment = await client.create(objects.api_server.manifest)
    replica_set = await client.create(owned_replica_set(deployment))
    template: Unstructured = replica_set["spec"]["template"]
    metadata = {**template["metadata"], "name": "one-kube-apiserver-a", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    await client.create(pod)
    return rig


async def pods(rig: Rig) -> set[str]:
    return {pod.name for pod in (await rig.client.list(Pod, rig.namespace)).items}


async def test_members_of_etcd_continue_after_their_clients(rig: Rig) -> None:
    assert await rig.backend.remains(rig.key) == Remains(clients=True, others=True)

    async def have_stopped() -> bool:
        await rig.backend.stop_clients(rig.key)
        return not (await rig.backend.remains(rig.key)).clients

    await until(have_stopped)
    assert await pods(rig) == {f"one-etcd-{index}" for index in range(3)}
    assert await rig.client.find(STATEFUL_SETS, "one-etcd", rig.namespace) is not None
    assert (await rig.client.list(DEPLOYMENTS, rig.namespace)).items == []


async def test_only_the_data_remains_at_the_end(rig: Rig) -> None:
    await rig.client.create(claim(rig))

    async def have_stopped() -> bool:
        await rig.backend.stop(rig.key)
        return await rig.backend.remains(rig.key) == Remains(clients=False, others=False)

    await until(have_stopped)
    assert await pods(rig) == set()
    assert (await rig.client.list(SERVICES, rig.namespace)).items == []
    kept = await rig.client.get(CLAIMS, "data-one-etcd-0", rig.namespace)
    assert "deletionTimestamp" not in kept["metadata"]
    assert await rig.client.find(CONFIG_MAPS, "one-etcd-state", rig.namespace) is not None
    # The keys do not stay behind.
    assert "data" not in (await rig.client.find(SECRETS, PKI, rig.namespace) or {})
    # Without a move, the same control plane continues.
    await rig.apply(rig.desired)
    assert await rig.client.find(STATEFUL_SETS, "one-etcd", rig.namespace) is not None


@pytest.fixture
async def simulated() -> Rig:
    """A control plane with one pod of its API servers, whose kubelet has not ended it yet."""
    client = FakeClient(*KINDS)
    rig = Rig(client, "default")
    await rig.apply(rig.desired)
    labels = Names.of(rig.key).labels("kube-apiserver")
    ending = Pod.of("one-kube-apiserver-a", "default")
    ending.metadata.labels = dict(labels)
    ending.metadata.deletion_timestamp = datetime.now(UTC)
    ending.metadata.finalizers = ["kubelet"]
    client.add(ending)
    return rig


async def test_etcd_continues_while_an_api_server_that_falls_asleep_ends(simulated: Rig) -> None:
    async def members() -> int:
        stateful_set = await simulated.client.get(STATEFUL_SETS, "one-etcd", "default")
        return stateful_set["spec"]["replicas"]

    asleep = replace(simulated.desired, asleep=True)
    await simulated.apply(asleep)
    assert await members() == 3
    patch = {"metadata": {"finalizers": None}}
    await simulated.client.patch(Pod, "one-kube-apiserver-a", "default", patch)
    await simulated.apply(asleep)
    assert await members() == 0


async def test_a_replica_set_without_its_deployment_creates_clients(simulated: Rig) -> None:
    objects = objects_of(simulated.desired, Names.of(simulated.key))
    deployment = objects.api_server.manifest
    deployment["metadata"]["uid"] = "deployment"
    replica_set = owned_replica_set(deployment)
    foreign = {**replica_set, "metadata": {**replica_set["metadata"], "name": "foreign"}}
    foreign["metadata"]["annotations"] = {}
    patch = {"metadata": {"finalizers": None}}
    await simulated.client.patch(Pod, "one-kube-apiserver-a", "default", patch)
    await simulated.client.create(foreign)
    assert not (await simulated.backend.remains(simulated.key)).clients
    await simulated.client.create(replica_set)
    assert (await simulated.backend.remains(simulated.key)).clients


def claim(rig: Rig) -> Unstructured:
    template = objects_of(rig.desired).etcd.manifest["spec"]["volumeClaimTemplates"][0]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-one-etcd-0",
            "namespace": rig.namespace,
            "labels": template["metadata"]["labels"],
        },
        "spec": template["spec"],
    }


async def test_a_control_plane_from_elsewhere_begins_only_with_a_restore(
    client: Client, namespace: str
) -> None:
    await client.apply(ServiceAccount.of("default", namespace))
    rig = Rig(client, namespace)
    address = f"one-kube-apiserver.{namespace}.svc"
    with pytest.raises(Blocked) as blocked:
        await rig.backend.allocate(rig.key, rig.desired, rig.keys, address)
    assert blocked.value.reason == "DataMissing"
    arriving = replace(rig.desired, restore=RESTORE)
    endpoint = await rig.backend.allocate(rig.key, arriving, rig.keys, address)
    observed = await rig.backend.observe(rig.key, endpoint, arriving)
    await rig.backend.apply(rig.key, endpoint, arriving, observed)
    assert await client.find(STATEFUL_SETS, "one-etcd", namespace) is not None
    await rig.run_members()
    # Its API servers wait for their data.
    await rig.notice()
    observed = await rig.backend.observe(rig.key, endpoint, arriving)
    await rig.backend.apply(rig.key, endpoint, arriving, observed)
    assert (await client.list(DEPLOYMENTS, namespace)).items == []


def test_addresses_of_nodes_services_and_load_balancers_belong_to_a_management_cluster() -> None:
    ingress = [{"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}]
    service = {
        "spec": {"clusterIPs": ["10.96.0.9"]},
        "status": {"loadBalancer": {"ingress": ingress}},
    }
    assert own_hosts(service, []) == {"10.96.0.9", "192.0.2.1", "lb.example.com"}
    assert own_hosts(None, []) == set()
