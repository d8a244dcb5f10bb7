"""A copy of a cluster keeps nothing with which it could change its source."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from capelin.api import Unstructured
from capelin.api.core import Node, Secret
from capelin.testing.fake_client import Clock, FakeClient
from capelin_control_plane.keys.rotation_clients import NODES
from capelin_control_plane.operations.restore import (
    ATTACHMENTS,
    VOLUMES,
    remove_old_tokens,
    separate_from_source,
)

BACKUP = "20260131T030000Z"
MOMENT = datetime(2026, 1, 31, 3, tzinfo=UTC)
REQUESTED = MOMENT + timedelta(hours=1)
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
BOOTSTRAP_TOKEN = "bootstrap.kubernetes.io/token"


def token(key: str) -> bytes:
    header = base64.urlsafe_b64encode(json.dumps({"kid": key}).encode()).rstrip(b"=")
    return header + b".e30.x"


def secret(name: str, type_: str, **data: bytes) -> Secret:
    created = Secret.of(name, "kube-system", data=data)
    created.type = type_
    return created


def volume(name: str, policy: str) -> Unstructured:
    metadata = {"name": name}
    spec = {"persistentVolumeReclaimPolicy": policy}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


def attachment(name: str) -> Unstructured:
    metadata = {"name": name, "finalizers": ["external-attacher/csi"]}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata}


async def names(workload: FakeClient, kind: Any) -> set[str]:
    return {item["metadata"]["name"] async for item in workload.iterate(kind)}


async def test_objects_of_the_source_are_removed_and_those_of_the_copy_stay() -> None:
    own = "own"
    clock = Clock(MOMENT - timedelta(days=1))
    workload = FakeClient(VOLUMES, ATTACHMENTS, clock=clock)
    for manifest in (
        Node.of("of-the-source"),
        volume("deleted", "Delete"),
        volume("retained", "Retain"),
        attachment("of-the-source"),
        secret("old", ACCOUNT_TOKEN, token=token("other"), extra=b"x"),
        secret("join", BOOTSTRAP_TOKEN, token=b"x"),
        secret("opaque", "Opaque", token=token("other")),
    ):
        await workload.create(manifest)
    # While the source was backed up, or with a clock that is ahead.
    clock.now = MOMENT + timedelta(seconds=2)
    for manifest in (Node.of("late"), attachment("late"), secret("late", BOOTSTRAP_TOKEN)):
        await workload.create(manifest)
    clock.now = REQUESTED + timedelta(minutes=1)
    for manifest in (
        Node.of("of-the-copy"),
        attachment("of-the-copy"),
        secret("new", ACCOUNT_TOKEN, token=token(own)),
        secret("later", BOOTSTRAP_TOKEN, token=b"x"),
    ):
        await workload.create(manifest)
    for _ in range(2):
        await separate_from_source(workload, REQUESTED)
        await remove_old_tokens(workload, own)

    deleted = [write for write in workload.writes if write.startswith("DELETE")]
    # Otherwise, a controller creates the attachments of the Node's pods again.
    assert ["/nodes/" in path for path in deleted[:3]] == [True, True, False]
    assert await names(workload, NODES) == {"of-the-copy"}
    assert await names(workload, ATTACHMENTS) == {"of-the-copy"}
    policies = {
        item["metadata"]["name"]: item["spec"]["persistentVolumeReclaimPolicy"]
        async for item in workload.iterate(VOLUMES)
    }
    assert policies == {"deleted": "Retain", "retained": "Retain"}
    secrets = {found.name: found.data async for found in workload.iterate(Secret)}
    assert secrets == {
        "old": {"extra": b"x"},
        "opaque": {"token": token("other")},
        "new": {"token": token(own)},
        "later": {"token": b"x"},
    }
