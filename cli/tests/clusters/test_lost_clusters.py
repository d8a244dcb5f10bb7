"""A lost cluster in a new management cluster: its Secrets, its objects, and their order."""

from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin.api.core import Namespace, Secret
from capelin.errors import InvalidInputError, UserError
from capelin.testing.fake_client import FakeClient
from capelin_cli.clusters.lost_clusters import (
    IN_PROGRESS,
    LostCluster,
    create_again,
)
from capelin_cli.environments.connection import ClusterName
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.objects import ClusterObjects
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

WHICH = ClusterName("one", "team", "")
BACKUP = "20260131T030000Z"
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
