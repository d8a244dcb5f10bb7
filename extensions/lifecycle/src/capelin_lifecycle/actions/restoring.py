"""The manifests that restore CSI snapshots in another workload cluster. Pure.

The objects of a snapshot are deleted with its workload cluster. Only they contain the name that the
snapshot has in the storage.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from capelin.api import BaseObject, Model, Unstructured, amount, kind

MANIFESTS: Final = "restore.json"
"""The key in ConfigMaps."""
_GROUP: Final = "snapshot.storage.k8s.io"
_CLAIM_FIELDS: Final = ("accessModes", "resources", "storageClassName", "volumeMode")


class SnapshotError(Model):
    """The last error of the storage."""

    message: str = ""


class SnapshotStatus(Model):
    """The state of a VolumeSnapshot."""

    ready_to_use: bool = False
    bound_volume_snapshot_content_name: str = ""
    error: SnapshotError | None = None


@kind(group=_GROUP, version="v1")
class VolumeSnapshot(BaseObject):
    """The snapshot of a claim."""

    status: SnapshotStatus | None = None


class SnapshotReference(Model):
    """The VolumeSnapshot of a content."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class ContentSpec(Model):
    """The source of a content."""

    driver: str
    volume_snapshot_ref: SnapshotReference
    source_volume_mode: str | None = None


class ContentStatus(Model):
    """The snapshot in the storage."""

    snapshot_handle: str | None = None
    restore_size: int | None = None


@kind(group=_GROUP, version="v1", namespaced=False)
class VolumeSnapshotContent(BaseObject):
    """A snapshot in the storage."""

    spec: ContentSpec
    status: ContentStatus | None = None


def content_of(
    snapshot: VolumeSnapshot | None, contents: Mapping[str, VolumeSnapshotContent]
) -> VolumeSnapshotContent | None:
    """The content of a snapshot that is ready, if each refers to the other.

    Users of a namespace may write the status of its snapshots, and then name any content.
    """
    if snapshot is None or snapshot.status is None or snapshot.status.error is not None:
        return None
    content = contents.get(snapshot.status.bound_volume_snapshot_content_name)
    if not snapshot.status.ready_to_use or content is None:
        return None
    owner = content.spec.volume_snapshot_ref
    identity = (snapshot.namespace, snapshot.name, snapshot.uid)
    is_own = (owner.namespace, owner.name, owner.uid) == identity
    has_handle = content.status is not None and bool(content.status.snapshot_handle)
    return content if is_own and has_handle else None


def restoring(claim: Unstructured, content: VolumeSnapshotContent) -> list[Unstructured]:
    """The manifests that restore a claim."""
    reference = content.spec.volume_snapshot_ref
    name, namespace = reference.name, reference.namespace
    stored = content.status or ContentStatus()
    mode = content.spec.source_volume_mode
    return [
        {
            "apiVersion": VolumeSnapshotContent.resource.api_version,
            "kind": VolumeSnapshotContent.resource.kind,
            "metadata": {"name": name},
            "spec": {
                "driver": content.spec.driver,
                "deletionPolicy": "Retain",
                "source": {"snapshotHandle": stored.snapshot_handle},
                "volumeSnapshotRef": {"name": name, "namespace": namespace},
                **({"sourceVolumeMode": mode} if mode else {}),
            },
        },
        {
            "apiVersion": VolumeSnapshot.resource.api_version,
            "kind": VolumeSnapshot.resource.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"source": {"volumeSnapshotContentName": name}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim["metadata"]["name"], "namespace": namespace},
            "spec": {
                **_claim_spec(claim["spec"], stored.restore_size or 0),
                "dataSource": {
                    "apiGroup": _GROUP,
                    "kind": VolumeSnapshot.resource.kind,
                    "name": name,
                },
            },
        },
    ]


def _claim_spec(spec: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The fields of a claim. It requests at least the size of the snapshot, as drivers require."""
    found = {field: spec[field] for field in _CLAIM_FIELDS if field in spec}
    if amount(spec["resources"]["requests"]["storage"]) < size:
        found["resources"] = {"requests": {"storage": str(size)}}
    return found


def as_file(manifests: Sequence[Unstructured]) -> str:
    """The content of a file for kubectl. YAML has more than one reading of names such as `y`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests]}, indent=1)
