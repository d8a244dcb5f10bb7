"""Restores: requests, lost clusters, and copies under another name."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import OwnerReference, Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin.api.core import Namespace, Secret
from capelin.contract import ConditionSpec, update_conditions
from capelin.errors import InvalidInputError, UserError
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_cli.clusters import operations
from capelin_cli.clusters.copies import begun_backup, copy_of
from capelin_cli.clusters.operations import ControlPlaneOperation
from capelin_cli.clusters.restores import (
    IN_PROGRESS,
    LostCluster,
    RestorePlan,
    create_again,
    is_reusable,
    request_restore,
)
from capelin_cli.environments.connection import ClusterName
from capelin_cli.terminal.checklist import Checklist
from capelin_control_plane.api import CapelinControlPlane, Spec, Status
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.objects import ClusterObjects, references_in
from capelin_control_plane.backup.restores import backup_of, source_of
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION
from capelin_control_plane.keys.secrets import AUTHORITIES_ANNOTATION
from capelin_control_plane.operations.restore import RESTORING
from rich.console import Console

BACKUP = "20260131T030000Z"
FINAL = "20260329T110000Z"
"""The final backup of a move, whose restore has failed."""
PLAN = RestorePlan(ClusterName("demo"), BACKUP, "")
FAILED = ConditionSpec(RESTORING, "False", "RestoreFailed", "the bucket does not answer")


def client(**annotations: str) -> FakeClient:
    """A management cluster whose provider cannot restore."""
    made = FakeClient(CapelinControlPlane)
    mine = CapelinControlPlane.of("demo-x", "default", spec=Spec(version="v1.34.4"))
    mine.metadata.annotations = annotations
    now = datetime(2026, 3, 29, 12, 30, tzinfo=UTC)
    mine.status = Status(conditions=update_conditions([], [FAILED], now=now, generation=1))
    made.add(mine)
    return made


async def read(made: FakeClient) -> CapelinControlPlane:
    return await made.get(CapelinControlPlane, "demo-x", "default")


async def request(made: FakeClient) -> None:
    checklist = Checklist(Console(quiet=True))
    restore = ControlPlaneOperation(made, PLAN.which, 5, "demo-x", checklist)
    await request_restore(restore, PLAN, await read(made))


@pytest.mark.parametrize(
    ("previous", "hint"), [(None, "Nothing was changed"), (FINAL, f"continues with .*{FINAL}")]
)
async def test_a_failed_request_leaves_the_earlier_one(
    previous: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "FAILURE_SECONDS", 0)
    made = client(**({} if previous is None else {RESTORE_ANNOTATION: previous}))
    with pytest.raises(UserError, match="cannot be restored") as failed:
        await request(made)
    assert len(made.writes) == 2
    assert failed.value.reason == "RestoreFailed: the bucket does not answer."
    assert re.search(hint, failed.value.hint)
    assert (await read(made)).metadata.annotations.get(RESTORE_ANNOTATION) == previous


async def test_a_newer_request_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = client(**{RESTORE_ANNOTATION: FINAL})
    requesting = asyncio.create_task(request(made))
    await until(lambda: made.writes)
    newer = f"{BACKUP}@2026-03-29T13:30:00Z"
    patch = {"metadata": {"annotations": {RESTORE_ANNOTATION: newer}}}
    await made.patch(CapelinControlPlane, "demo-x", "default", patch)
    monkeypatch.setattr(operations, "FAILURE_SECONDS", 0)
    with pytest.raises(UserError, match="cannot be restored"):
        await requesting
    assert (await read(made)).metadata.annotations[RESTORE_ANNOTATION] == newer


WHICH = ClusterName("one", "team", "")
KEY = b"k" * 32


def stored(kind: type[Any], name: str, owner: str | None, **spec: Any) -> Unstructured:
    resource = kind.resource
    references = [
        {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": owner},
        {"apiVersion": "v1", "kind": "Secret", "name": "gone"},
    ]
    metadata: dict[str, Any] = {"name": name, "namespace": "team"}
    if owner is not None:
        metadata["ownerReferences"] = references
    version = f"{resource.group}/{resource.version}"
    return {"apiVersion": version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def lost_cluster() -> LostCluster:
    backup = {
        "destination": {"folder": "etcd"},
        "encryptionKey": {"name": "backup-key"},
    }
    endpoint = {"host": "192.0.2.7", "port": 6443}
    template: dict[str, Any] = {"spec": {"clusterName": "one", "bootstrap": {}}}
    return LostCluster(
        manifest=Manifest(
            namespace="team",
            cluster="one",
            control_plane="cp",
            authority="a",
            kubernetes_version="v1.34.4",
            etcd_version="3.6.8",
            revision=7,
            taken_at=datetime(2026, 1, 31, 3, tzinfo=UTC),
            seconds=1,
            snapshot_bytes=1,
        ),
        key=KEY,
        secrets=(Secret.of("one-ca", "team", data={"tls.key": b"ca"}),),
        objects=ClusterObjects(
            (
                stored(
                    CapelinControlPlane,
                    "cp",
                    "one",
                    version="v1.34.4",
                    etcd={"backup": backup},
                    controlPlaneEndpoint=endpoint,
                ),
                stored(MachinePool, "workers", "one", clusterName="one", template=template),
                stored(Cluster, "one", None, controlPlaneEndpoint=endpoint),
            )
        ),
    )


def new_client() -> FakeClient:
    return FakeClient(Cluster, CapelinControlPlane, MachinePool)


async def test_all_objects_exist_before_the_cluster_resumes() -> None:
    client, lost = new_client(), lost_cluster()
    assert await create_again(client, WHICH, lost) == "cp"
    assert await client.find(Namespace, "team") is not None
    cluster = await client.get(Cluster, "one", "team")
    assert not cluster.spec.paused
    assert IN_PROGRESS not in cluster.metadata.annotations
    control_plane = await client.get(CapelinControlPlane, "cp", "team")
    (owner,) = control_plane.metadata.owner_references
    assert owner.uid == cluster.metadata.uid
    assert control_plane.metadata.annotations[RESTORE_ANNOTATION].startswith(f"{BACKUP}@")
    assert control_plane.spec.control_plane_endpoint is not None
    assert (await client.get(Secret, "one-ca", "team")).data == {"tls.key": b"ca"}
    assert (await client.get(Secret, "backup-key", "team")).data == {"key": KEY}
    kinds = [write.split("/")[-1] for write in client.writes if write.startswith("POST")]
    assert kinds[-3] == "clusters"


async def test_the_backend_can_choose_another_endpoint() -> None:
    client = new_client()
    await create_again(client, WHICH, lost_cluster(), new_endpoint=True)
    control_plane = await client.get(CapelinControlPlane, "cp", "team")
    assert control_plane.spec.control_plane_endpoint is None


async def test_a_second_call_completes_the_first_one() -> None:
    client, lost = new_client(), lost_cluster()
    pool = lost.objects.items[1]
    version, pool["apiVersion"] = pool["apiVersion"], "other.cluster.x-k8s.io/v1"
    with pytest.raises(UserError, match="MachinePool workers cannot be created"):
        await create_again(client, WHICH, lost)
    cluster = await client.get(Cluster, "one", "team")
    assert cluster.spec.paused
    assert cluster.metadata.annotations[IN_PROGRESS] == f"one/{BACKUP}"
    request = (await client.get(CapelinControlPlane, "cp", "team")).metadata.annotations
    pool["apiVersion"] = version
    await create_again(client, WHICH, lost)
    assert not (await client.get(Cluster, "one", "team")).spec.paused
    assert (await client.get(CapelinControlPlane, "cp", "team")).metadata.annotations == request


@pytest.mark.parametrize("begun_by", [None, f"other/{BACKUP}", "one/20250131T030000Z"])
async def test_a_cluster_of_another_command_stays(begun_by: str | None) -> None:
    client, cluster = new_client(), Cluster.of("one", "team")
    if begun_by is not None:
        cluster.metadata.annotations = {IN_PROGRESS: begun_by}
    before = await client.create(cluster)
    with pytest.raises(InvalidInputError, match="Cluster one exists"):
        await create_again(client, WHICH, lost_cluster())
    assert await client.get(Cluster, "one", "team") == before
    assert await client.find(Secret, "one-ca", "team") is None


async def test_secrets_of_another_cluster_stay() -> None:
    client = new_client()
    await client.create(Secret.of("backup-key", "team", data={"key": b"other"}))
    with pytest.raises(InvalidInputError, match="with other content"):
        await create_again(client, WHICH, lost_cluster())
    assert await client.find(Secret, "one-ca", "team") is None
    assert await client.find(Cluster, "one", "team") is None


NEW = type(WHICH)("two", "team", "")
LABEL = "cluster.x-k8s.io/cluster-name"
KINDS = ("CapelinControlPlane", "CapelinCluster", "ClusterClass", "CapelinMachineTemplate")


def reference(kind: str, name: str) -> dict[str, str]:
    group = "infrastructure.cluster.x-k8s.io" if "Machine" in kind else "cluster.x-k8s.io"
    return {"apiGroup": group, "kind": kind, "name": name}


def item(kind: str, name: str, owner: str | None = None, **spec: Any) -> Unstructured:
    metadata: dict[str, Any] = {"name": name, "namespace": "team", "labels": {LABEL: "one"}}
    if owner is not None:
        metadata["ownerReferences"] = [{**reference("Cluster", owner), "controller": True}]
    return {"apiVersion": "a/v1", "kind": kind, "metadata": metadata, "spec": spec}


def source() -> LostCluster:
    lost = lost_cluster()
    cluster = item(
        "Cluster",
        "one",
        controlPlaneRef=reference("CapelinControlPlane", "one-x7"),
        infrastructureRef=reference("CapelinCluster", "one-y8"),
        topology={
            "classRef": {"name": "capelin"},
            "version": "v1.34.4",
            "workers": {"machinePools": [{"name": "a"}]},
        },
    )
    control_plane = item("CapelinControlPlane", "one-x7", "one", version="v1.34.4")
    control_plane["metadata"]["annotations"] = {
        AUTHORITIES_ANNOTATION: "4",
        ENCRYPTION_ANNOTATION: "k1",
        "cluster.x-k8s.io/cloned-from-name": "template",
    }
    items = (
        cluster,
        control_plane,
        item("CapelinCluster", "one-y8", "one"),
        item("ClusterClass", "capelin", templateRef=reference("CapelinMachineTemplate", "small")),
        item("CapelinMachineTemplate", "small"),
        item("MachinePool", "one-workers", "one", clusterName="one"),
    )
    keys = Secret.of("one-encryption", "team", data={"keyring": b"keys"})
    keys.metadata.labels = {LABEL: "one"}
    return LostCluster(
        manifest=lost.manifest,
        key=KEY,
        secrets=(*lost.secrets, keys),
        objects=ClusterObjects(items, ("WidgetTemplate w",)),
    )


def copied() -> dict[str, Unstructured]:
    return {it["kind"]: it for it in copy_of(source(), "two").objects.items}


def test_a_copy_has_no_workers() -> None:
    items = copied()
    assert {*items} == {"Cluster", *KINDS}
    topology = items["Cluster"]["spec"]["topology"]
    assert topology == {"classRef": {"name": "capelin"}, "version": "v1.34.4"}
    assert copy_of(source(), "two").objects.omitted == ()


def test_the_objects_of_the_cluster_are_renamed_and_its_class_is_not() -> None:
    items = copied()
    names = {kind: it["metadata"]["name"] for kind, it in items.items()}
    assert names == {
        "Cluster": "two",
        "CapelinControlPlane": "two",
        "CapelinCluster": "two",
        "ClusterClass": "capelin",
        "CapelinMachineTemplate": "small",
    }
    assert {str(it) for it in references_in(items["Cluster"]["spec"])} == {
        "CapelinControlPlane two",
        "CapelinCluster two",
        "ClusterClass capelin",
    }
    for kind in ("CapelinControlPlane", "CapelinCluster"):
        metadata = items[kind]["metadata"]
        assert metadata["labels"] == {LABEL: "two"}
        assert [owner["name"] for owner in metadata["ownerReferences"]] == ["two"]


def test_a_copy_has_the_keys_of_stored_objects_and_its_own_authorities() -> None:
    (secret,) = copy_of(source(), "two").secrets
    assert (secret.name, secret.data) == ("two-encryption", {"keyring": b"keys"})
    assert secret.metadata.labels[LABEL] == "two"
    annotations = copied()["CapelinControlPlane"]["metadata"]["annotations"]
    assert annotations == {
        ENCRYPTION_ANNOTATION: "k1",
        "cluster.x-k8s.io/cloned-from-name": "template",
    }


def served_copy() -> LostCluster:
    """A copy whose kinds the fake API server has."""
    lost = lost_cluster()
    reference = {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": KINDS[0], "name": "cp"}
    lost.objects.items[2]["spec"]["controlPlaneRef"] = reference
    return copy_of(lost, "two")


async def test_a_copy_is_restored_from_the_backup_of_its_source() -> None:
    client = new_client()
    await client.create(Secret.of("backup-key", "team", data={"key": KEY, "other": b""}))
    assert await create_again(client, NEW, served_copy(), new_endpoint=True) == "two"
    control_plane = await client.get(CapelinControlPlane, "two", "team")
    request = control_plane.metadata.annotations[RESTORE_ANNOTATION]
    assert (source_of(request), backup_of(request)) == ("one", BACKUP)
    assert control_plane.spec.control_plane_endpoint is None
    (owner,) = control_plane.metadata.owner_references
    assert owner.uid == (await client.get(Cluster, "two", "team")).metadata.uid
    # Those of the source stay as they are.
    assert (await client.get(Secret, "backup-key", "team")).data == {"key": KEY, "other": b""}
    assert await client.find(Secret, "one-ca", "team") is None
    assert await client.find(MachinePool, "workers", "team") is None


async def test_a_copy_does_not_refer_to_objects_of_another_cluster() -> None:
    client = new_client()
    foo = await client.create(Cluster.of("foo", "team"))
    present = CapelinControlPlane.of("two", "team", spec=Spec(version="v1.34.4"))
    present.metadata.owner_references = [
        OwnerReference(
            api_version="cluster.x-k8s.io/v1beta2", kind="Cluster", name="foo", uid=foo.metadata.uid
        )
    ]
    before = await client.create(present)
    with pytest.raises(InvalidInputError, match="CapelinControlPlane two exists"):
        await create_again(client, NEW, served_copy(), new_endpoint=True)
    assert await client.find(Cluster, "two", "team") is None
    assert await client.get(CapelinControlPlane, "two", "team") == before


def test_classes_with_their_templates_and_unchanged_objects_are_shared() -> None:
    class_, template = item("ClusterClass", "capelin", a=1), item("KubeadmConfigTemplate", "t", a=1)
    changed = {**template, "spec": {"a": 2}}
    assert is_reusable(class_, {**class_, "spec": {"a": 2}}, set(), "")
    assert is_reusable(template, template, set(), "")
    assert not is_reusable(template, changed, set(), "")
    labels = {"metadata": {**template["metadata"], "labels": {LABEL: "other"}}}
    assert not is_reusable(template, {**template, **labels}, set(), "")
    owned = {"metadata": {**template["metadata"], "ownerReferences": [{"uid": "class"}]}}
    assert is_reusable(template, {**changed, **owned}, {"class"}, "")
    assert not is_reusable(template, {**template, **owned}, {None}, "")


def test_a_copy_is_continued_from_its_own_source() -> None:
    assert begun_backup("one", NEW, f"one/{BACKUP}") == BACKUP
    with pytest.raises(InvalidInputError, match="Cluster two exists"):
        begun_backup("other", NEW, f"one/{BACKUP}")
