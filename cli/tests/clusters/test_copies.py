"""The objects of a cluster under another name."""

from typing import Any

import pytest
from capelin.api import OwnerReference, Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin.api.core import Secret
from capelin.errors import InvalidInputError
from capelin_cli.clusters.copies import begun_backup, copy_of
from capelin_cli.clusters.lost_clusters import LostCluster, create_again, is_reusable
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.backup.objects import ClusterObjects, references_in
from capelin_control_plane.backup.restores import backup_of, source_of
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION
from capelin_control_plane.keys.secrets import AUTHORITIES_ANNOTATION

from .test_lost_clusters import BACKUP, KEY, WHICH, lost_cluster, new_client

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
