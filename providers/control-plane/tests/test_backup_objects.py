"""The objects of a Cluster in its backups, and in the order of their creation."""

from collections.abc import Mapping
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin.testing.fake_client import FakeClient, cluster, machine_pool
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.objects import (
    ClusterObjects,
    Reference,
    cleaned,
    owners_first,
    read_cluster_objects,
    references_in,
    with_owners,
    without_endpoint,
)

CORE = "cluster.x-k8s.io"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"


def manifest(kind: str, name: str, *owners: tuple[str, str], **fields: Any) -> Unstructured:
    references = [
        {"apiVersion": f"{CORE}/v1beta2", "kind": owner, "name": of, "uid": "old"}
        for owner, of in owners
    ]
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"old-{name}"}
    if references:
        metadata["ownerReferences"] = references
    return {
        "apiVersion": f"{CORE}/v1beta2",
        "kind": kind,
        "metadata": metadata,
        "spec": {},
        **fields,
    }


def reference(kind: str, name: str, group: str = INFRASTRUCTURE) -> Mapping[str, str]:
    return {"apiGroup": group, "kind": kind, "name": name}


def test_a_backup_follows_the_references_of_a_cluster_and_its_class() -> None:
    spec = {
        "infrastructureRef": reference("CapelinCluster", "one"),
        "topology": {"classRef": {"name": "small"}},
        "workers": [
            {
                "templateRef": {
                    "apiVersion": f"{INFRASTRUCTURE}/v1alpha1",
                    "kind": "CapelinMachineTemplate",
                    "name": "small",
                }
            }
        ],
        "secretRef": {"kind": "Secret", "name": "other"},
    }
    status = {"nodeRef": reference("Node", "n")}
    assert list(references_in(manifest("Cluster", "one", spec=spec, status=status))) == [
        Reference(INFRASTRUCTURE, "CapelinCluster", "one"),
        Reference(CORE, "ClusterClass", "small"),
        Reference(INFRASTRUCTURE, "CapelinMachineTemplate", "small"),
    ]


def test_a_stored_object_has_nothing_of_the_lost_management_cluster() -> None:
    pool = manifest(
        "MachinePool",
        "workers",
        ("Cluster", "one"),
        spec={
            "providerIDList": ["simulated://a"],
            "replicas": 3,
            "template": {
                "spec": {
                    "bootstrap": {
                        "configRef": reference("KubeadmConfig", "workers"),
                        "dataSecretName": "workers-abcde",
                    }
                }
            },
        },
        status={"replicas": 3},
    )
    pool["metadata"] |= {
        "annotations": {
            "controlplane.cluster.x-k8s.io/capelin-address": "127.64.0.9",
            "kept": "yes",
        },
        "finalizers": ["x"],
        "resourceVersion": "7",
    }
    stored = cleaned(pool)
    (owner,) = stored["metadata"].pop("ownerReferences")
    assert "uid" not in owner
    assert stored["metadata"] == {
        "name": "workers",
        "namespace": "default",
        "annotations": {"kept": "yes"},
    }
    assert stored["spec"] == {
        "replicas": 3,
        "template": {"spec": {"bootstrap": {"configRef": reference("KubeadmConfig", "workers")}}},
    }
    assert "status" not in stored


def test_owners_come_first_and_have_new_identities() -> None:
    pool = cleaned(manifest("MachinePool", "workers", ("Cluster", "one")))
    config = cleaned(
        manifest("KubeadmConfig", "workers", ("MachinePool", "workers"), ("Machine", "gone"))
    )
    cluster = cleaned(manifest("Cluster", "one"))
    assert owners_first([config, pool, cluster]) == [cluster, pool, config]
    (owner,) = with_owners(config, {("MachinePool", "workers"): "new"})["metadata"][
        "ownerReferences"
    ]
    assert (owner["name"], owner["uid"]) == ("workers", "new")
    assert "ownerReferences" not in with_owners(config, {})["metadata"]


def test_the_endpoint_is_optional() -> None:
    spec = {"controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443}, "kept": True}
    assert without_endpoint(manifest("Cluster", "one", spec=spec))["spec"] == {"kept": True}


def test_objects_have_a_format() -> None:
    objects = ClusterObjects((cleaned(manifest("Cluster", "one")),), ("OtherCluster one",))
    assert ClusterObjects.load(objects.dump()) == objects
    for content in (b"{}", b"no JSON", b"[]"):
        with pytest.raises(BackupError, match="cannot be read"):
            ClusterObjects.load(content)


async def test_a_backup_has_a_limit_of_objects_and_no_limit_of_data() -> None:
    client = FakeClient()
    demo = client.add(cluster("one"))
    for number in range(501):
        client.add(machine_pool(f"pool-{number}", demo))
    found = await read_cluster_objects(client, "default", "one")
    assert (len(found.items), found.is_complete) == (500, False)
    await client.delete(MachinePool, "pool-7", "default")
    await client.delete(MachinePool, "pool-8", "default")
    found = await read_cluster_objects(client, "default", "one")
    assert (len(found.items), found.is_complete) == (500, True)


async def test_references_to_missing_objects_count() -> None:
    client = FakeClient()
    client.add(cluster("one"))
    missing = {"kind": "MachinePool", "apiGroup": MachinePool.resource.group}
    references = {f"{number}Ref": {**missing, "name": f"a{number}"} for number in range(2000)}
    patch = {"spec": {"topology": {"variables": [{"name": "a", "value": references}]}}}
    await client.patch(Cluster, "one", "default", patch)
    client.requests.clear()
    found = await read_cluster_objects(client, "default", "one")
    assert (len(found.items), found.is_complete) == (1, False)
    assert len(client.requests) < 600
