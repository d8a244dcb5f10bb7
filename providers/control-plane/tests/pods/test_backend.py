"""The backend on a real API server. The tests create the pods and set their states."""

import base64
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.core import Pod, ServiceAccount
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.pki import new_ca, new_service_account_keys
from capelin.provider import Blocked
from capelin.testing.waiting import until
from capelin_control_plane.backends.pods import Names, PodsBackend
from capelin_control_plane.backends.pods.membership import planned_members
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint, Observed
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.encryption import Goal, Key, first_keyring, next_keyring

from ..factories import with_arguments  # noqa: TID252 - a folder without a name
from .pod_objects import objects_of, on_pods, settings

DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
STATEFUL_SETS = Resource("apps", "v1", "StatefulSet", "statefulsets")
REVISIONS = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")
REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
SERVICES = Resource("", "v1", "Service", "services")
BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
SECRETS = Resource("", "v1", "Secret", "secrets")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NAME = "one-etcd"
PKI = "one-control-plane-pki"


class Rig:
    """A control plane of three members, and its backend."""

    def __init__(self, client: Client, namespace: str) -> None:
        now = datetime.now(UTC)
        self.client, self.namespace = client, namespace
        self.key = ObjectKey(namespace, "one")
        self.backend = PodsBackend(client, namespace)
        self.keys = Authorities(
            ca=new_ca("kubernetes", now=now),
            etcd=new_ca("etcd-ca", now=now),
            proxy=new_ca("front-proxy-ca", now=now),
            service_account=new_service_account_keys(),
        )
        self.desired = replace(
            on_pods(etcd_replicas=3),
            namespace=namespace,
            host="192.0.2.7",
            pods=settings(exposure={"type": "ClusterIP"}),
        )

    async def observe(self, desired: ControlPlane) -> tuple[Endpoint, Observed]:
        endpoint = await self.backend.allocate(self.key, desired, self.keys, None)
        return endpoint, await self.backend.observe(self.key, endpoint, desired)

    async def apply(self, desired: ControlPlane) -> tuple[Endpoint, Observed]:
        endpoint, observed = await self.observe(desired)
        await self.backend.apply(self.key, endpoint, desired, observed)
        return endpoint, observed

    async def run_members(self) -> None:
        """Create ready pods like the StatefulSet controller."""
        stateful_set = await self.client.get(STATEFUL_SETS, NAME, self.namespace)
        template: Unstructured = stateful_set["spec"]["template"]
        volumes: list[Any] = [*template["spec"]["volumes"], {"name": "data", "emptyDir": {}}]
        for index in range(3):
            name = f"{NAME}-{index}"
            metadata = {**template["metadata"], "name": name, "namespace": self.namespace}
            spec = {**template["spec"], "volumes": volumes}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            await self.client.create(pod)
            ready = {"type": "Ready", "status": "True"}
            await self.set_status(f"pods/{name}", {"phase": "Running", "conditions": [ready]})

    async def notice(self) -> None:
        """Set the observed generation of the StatefulSet."""
        stateful_set = await self.client.get(STATEFUL_SETS, NAME, self.namespace)
        generation = stateful_set["metadata"]["generation"]
        await self.set_status(
            f"statefulsets/{NAME}",
            {"observedGeneration": generation, "replicas": 3},
            "apis/apps/v1",
        )

    async def set_status(self, path: str, status: dict[str, Any], version: str = "api/v1") -> None:
        await self.client.request(
            "PATCH",
            f"/{version}/namespaces/{self.namespace}/{path}/status",
            body={"status": status},
            content_type="application/merge-patch+json",
        )

    async def members(self) -> list[str]:
        return [pod.name for pod in (await self.client.list(Pod, self.namespace)).items]


@pytest.fixture
async def rig(client: Client, namespace: str) -> Rig:
    await client.apply(ServiceAccount.of("default", namespace))
    return Rig(client, namespace)


async def test_the_backend_evicts_a_changed_etcd_member_when_the_budget_allows_it(rig: Rig) -> None:
    await rig.apply(rig.desired)
    await rig.run_members()
    await rig.notice()
    _, observed = await rig.apply(rig.desired)
    assert [member.ready for member in observed.of("etcd")] == [True] * 3
    assert len(await rig.members()) == 3

    changed = with_arguments(rig.desired, "etcd", {"snapshot-count": "5000"})
    # Its controller has not observed the new template yet.
    await rig.apply(changed)
    assert len(await rig.members()) == 3
    await rig.notice()
    with pytest.raises(Blocked) as blocked:
        await rig.apply(changed)
    assert blocked.value.reason == "WaitingForBudget"
    assert len(await rig.members()) == 3

    budget = await rig.client.get(BUDGETS, NAME, rig.namespace)
    await rig.set_status(
        f"poddisruptionbudgets/{NAME}",
        {
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": 1,
            "currentHealthy": 3,
            "desiredHealthy": 2,
            "expectedPods": 3,
        },
        "apis/policy/v1",
    )
    await rig.apply(changed)
    assert await rig.members() == [f"{NAME}-1", f"{NAME}-2"]
    # The next one waits for it.
    await rig.apply(changed)
    assert await rig.members() == [f"{NAME}-1", f"{NAME}-2"]


async def test_deletion_removes_all_objects_of_one_control_plane_and_none_of_another(
    rig: Rig,
) -> None:
    other = Rig(rig.client, rig.namespace)
    other.key = ObjectKey(rig.namespace, "two")
    await rig.apply(rig.desired)
    await other.apply(rig.desired)
    await rig.run_members()
    assert await rig.backend.allocated() == {rig.key, other.key}
    with pytest.raises(Blocked) as blocked:
        await rig.backend.delete(rig.key)
    assert blocked.value.reason == "StoppingPods"
    await rig.backend.delete(rig.key)
    # The garbage collector removes the finalizer of a StatefulSet that leaves its pods.
    await until(rig.backend.allocated, lambda keys: keys == {other.key})
    assert await rig.members() == []
    # The garbage collector deletes the Secret with keys.
    secret = await rig.client.find(SECRETS, PKI, rig.namespace)
    assert "data" not in (secret or {})

    async def is_collected() -> bool:
        return await rig.client.find(SECRETS, PKI, rig.namespace) is None

    await until(is_collected)

    async def workloads() -> list[str]:
        found = [
            await rig.client.list(kind, rig.namespace) for kind in (STATEFUL_SETS, DEPLOYMENTS)
        ]
        return [item["metadata"]["name"] for listed in found for item in listed.items]

    async def only_those_of_the_other_are_left() -> bool:
        return all(name.startswith("two") for name in await workloads())

    # The garbage collector removes the finalizer of workloads that are deleted without their pods.
    await until(only_those_of_the_other_are_left)
    left = [
        f"{kind}/{item['metadata']['name']}"
        for kind, path in (
            ("Service", "api/v1/namespaces/{}/services"),
            ("Secret", "api/v1/namespaces/{}/secrets"),
            ("ConfigMap", "api/v1/namespaces/{}/configmaps"),
            ("Deployment", "apis/apps/v1/namespaces/{}/deployments"),
            ("StatefulSet", "apis/apps/v1/namespaces/{}/statefulsets"),
            ("Budget", "apis/policy/v1/namespaces/{}/poddisruptionbudgets"),
            ("Policy", "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"),
        )
        for item in (await rig.client.request("GET", "/" + path.format(rig.namespace)))["items"]
    ]
    assert all("/two" in name or name == "ConfigMap/kube-root-ca.crt" for name in left), left
    assert len(left) >= 12
    assert (await rig.client.get(SECRETS, "two-control-plane-pki", rig.namespace))["data"]


async def test_pods_of_a_deleted_control_plane_have_one_second_to_stop(rig: Rig) -> None:
    await rig.apply(rig.desired)
    objects = objects_of(rig.desired, Names.of(rig.key))
    deployment = await rig.client.create(objects.api_server.manifest)
    replica_set = await rig.client.create(owned_replica_set(deployment))
    pod = await rig.client.create(owned_pod(replica_set))
    foreign = owned_replica_set(deployment)
    # Without an owner, so that the garbage collector keeps it.
    foreign["metadata"] |= {"name": "foreign", "annotations": {}, "ownerReferences": []}
    await rig.client.create(foreign)
    with pytest.raises(Blocked):
        await rig.backend.delete(rig.key)
    ending = await rig.client.get(Pod, pod["metadata"]["name"], rig.namespace)
    assert ending.metadata.deletion_grace_period_seconds == 1

    async def replica_sets() -> list[str]:
        left = await rig.client.list(REPLICA_SETS, rig.namespace)
        return [item["metadata"]["name"] for item in left.items]

    assert await until(replica_sets, lambda names: len(names) < 2) == ["foreign"]


async def test_revisions_of_a_deleted_etcd_are_deleted(rig: Rig) -> None:
    await rig.apply(rig.desired)
    names = Names.of(rig.key)
    etcd = await rig.client.get(STATEFUL_SETS, names.of_component("etcd"), rig.namespace)
    revision = owned_revision(etcd)
    foreign = owned_revision(etcd)
    # Without an owner, so that the garbage collector keeps it.
    foreign["metadata"] |= {"name": "foreign", "annotations": {}, "ownerReferences": []}
    for created in (revision, foreign):
        await rig.client.create(created)

    async def is_deleted() -> bool:
        with suppress(Blocked):
            await rig.backend.delete(rig.key)
        left = await rig.client.list(REVISIONS, rig.namespace)
        return [item["metadata"]["name"] for item in left.items] == ["foreign"]

    await until(is_deleted)


def owned_revision(stateful_set: Unstructured) -> Unstructured:
    """A ControllerRevision like those of the StatefulSet controller."""
    data = {"spec": {"template": stateful_set["spec"]["template"]}}
    return {**owned("ControllerRevision", stateful_set), "data": data, "revision": 1}


def owned_replica_set(deployment: Unstructured) -> Unstructured:
    """A ReplicaSet like those of the Deployment controller."""
    spec = {key: deployment["spec"][key] for key in ("selector", "template")}
    return {**owned("ReplicaSet", deployment), "spec": spec}


def owned(kind: str, workload: Unstructured) -> Unstructured:
    """An object with the labels of a workload's pods and the annotations of the workload."""
    metadata = workload["metadata"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    child = child_of(workload, f"{metadata['name']}-1", labels)
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {**child, "annotations": metadata["annotations"]},
    }


def owned_pod(replica_set: Unstructured) -> Unstructured:
    """A pod on a node, whose kubelet would stop it in its own grace period."""
    template = replica_set["spec"]["template"]
    metadata = child_of(
        replica_set, f"{replica_set['metadata']['name']}-a", template["metadata"]["labels"]
    )
    spec: Unstructured = {**template["spec"], "nodeName": "node-1"}
    assert spec["terminationGracePeriodSeconds"] > 60
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def child_of(owner: Unstructured, name: str, labels: dict[str, str]) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    namespace = owner["metadata"]["namespace"]
    return {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [reference]}


async def test_the_secret_with_keys_is_garbage_collected_with_the_state_of_etcd(rig: Rig) -> None:
    await rig.apply(rig.desired)
    state = await rig.client.get(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    secret = await rig.client.get(SECRETS, PKI, rig.namespace)
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", state["metadata"]["uid"])


async def test_a_recreated_state_object_owns_the_keys(rig: Rig) -> None:
    await rig.apply(rig.desired)
    # A tenant deletes the ConfigMap. The next one has the same name and another UID.
    await rig.client.delete(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    await rig.apply(rig.desired)
    state = await rig.client.get(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    secret = await rig.client.get(SECRETS, PKI, rig.namespace)
    uids = [owner["uid"] for owner in secret["metadata"]["ownerReferences"]]
    assert state["metadata"]["uid"] in uids


async def test_claims_of_others_stay_when_a_control_plane_is_deleted(rig: Rig) -> None:
    own, foreign = f"data-{NAME}-0", f"data-{NAME}-1"
    stateful_set = objects_of(rig.desired).etcd.manifest
    (template,) = stateful_set["spec"]["volumeClaimTemplates"]
    for name, labels in ((own, template["metadata"]["labels"]), (foreign, {"app": "etcd"})):
        await rig.client.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": rig.namespace, "labels": labels},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        )
    await rig.backend.delete(rig.key)

    def is_deleted(claim: Unstructured | None) -> bool:
        # A protection finalizer may hold a claim that is deleted.
        return claim is None or "deletionTimestamp" in claim["metadata"]

    assert is_deleted(await rig.client.find(CLAIMS, own, rig.namespace))
    assert not is_deleted(await rig.client.find(CLAIMS, foreign, rig.namespace))


async def test_the_backend_keeps_patches_of_its_service(rig: Rig) -> None:
    patch = {
        "target": {"kind": "Service", "component": "kube-apiserver"},
        "merge": {"metadata": {"annotations": {"example.com/shoal": "yes"}}},
    }
    exposure = {"type": "ClusterIP"}
    desired = replace(rig.desired, pods=settings(exposure=exposure, patches=[patch]))
    await rig.apply(desired)
    await rig.apply(desired)
    service = await rig.client.get(SERVICES, "one-kube-apiserver", rig.namespace)
    assert service["metadata"]["annotations"]["example.com/shoal"] == "yes"


async def test_the_backend_deletes_the_agent_service_without_konnectivity(rig: Rig) -> None:
    exposure = {"type": "ClusterIP"}
    tunnelled = settings(exposure=exposure, konnectivity={"enabled": True})
    endpoint, _ = await rig.apply(replace(rig.desired, pods=tunnelled))
    assert endpoint.agents is not None
    service = await rig.client.get(SERVICES, "one-konnectivity-server", rig.namespace)
    assert service["spec"]["clusterIP"] == endpoint.agents.host
    endpoint, _ = await rig.apply(rig.desired)
    assert endpoint.agents is None
    assert await rig.client.find(SERVICES, "one-konnectivity-server", rig.namespace) is None


async def test_a_stage_of_encryption_keeps_the_files_of_pods_that_still_end(rig: Rig) -> None:
    secret = base64.b64encode(b"k" * 32).decode()
    keys = [
        Key(name, "secretbox", secret, rig.desired.now, generated=True) for name in ("old", "new")
    ]
    old, new = (Goal(frozenset({"secrets"}), key) for key in keys)
    keyring = next_keyring(first_keyring(old), new)
    encrypted = replace(rig.desired, encryption=keyring.files())
    await rig.apply(encrypted)
    files = (await rig.client.get(SECRETS, PKI, rig.namespace))["data"].keys()
    assert {file for file in files if file.startswith("encryption-")} == {
        f"encryption-{name}.json" for name in keyring.names
    }
    await rig.run_members()
    ending = {"metadata": {"finalizers": ["example.com/ends-slowly"]}}
    await rig.client.patch(Pod, f"{NAME}-0", rig.namespace, ending)
    await rig.client.delete(Pod, f"{NAME}-0", rig.namespace)
    _, observed = await rig.apply(encrypted)
    assert observed.stopping == {f"{NAME}-0"}
    assert len(observed.of("etcd")) == 2
    await rig.client.patch(Pod, f"{NAME}-0", rig.namespace, {"metadata": {"finalizers": None}})


async def test_a_control_plane_sleeps_and_wakes_with_its_members(rig: Rig) -> None:
    async def replicas() -> dict[str, int]:
        listed = [
            *(await rig.client.list(DEPLOYMENTS, rig.namespace)).items,
            *(await rig.client.list(STATEFUL_SETS, rig.namespace)).items,
        ]
        return {item["metadata"]["name"]: item["spec"]["replicas"] for item in listed}

    await rig.apply(rig.desired)
    await rig.run_members()
    await rig.notice()
    await rig.apply(rig.desired)
    before = await replicas()
    assert before[NAME] == 3
    assert len(before) > 1
    asleep = replace(rig.desired, asleep=True)
    await rig.apply(asleep)
    assert set((await replicas()).values()) == {0}
    _, observed = await rig.apply(asleep)
    assert observed.alive == {f"{NAME}-{index}" for index in range(3)}
    await rig.apply(rig.desired)
    assert await replicas() == before


def test_a_sleeping_stateful_set_runs_as_many_members_as_before() -> None:
    assert planned_members(None, 3) == 3
    assert planned_members({"spec": {"replicas": 1}}, 3) == 1
    assert planned_members({"spec": {"replicas": 0}}, 3) == 3


async def test_another_provider_applies_nothing_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.apply(rig.desired)
    await rig.run_members()
    await rig.notice()
    await rig.apply(rig.desired)
    await rig.apply(rig.desired)
    applied: list[str] = []
    apply = Client.apply

    async def record(client: Client, manifest: Any, **options: Any) -> Any:
        applied.append(f"{manifest['kind']} {manifest['metadata']['name']}")
        return await apply(client, manifest, **options)

    monkeypatch.setattr(Client, "apply", record)
    rig.backend = PodsBackend(rig.client, rig.namespace)
    await rig.apply(rig.desired)
    assert await rig.client.find(DEPLOYMENTS, "one-kube-apiserver", rig.namespace) is not None
    assert applied == []
