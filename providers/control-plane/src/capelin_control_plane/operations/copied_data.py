"""Separates a copy of a cluster from its source, before its restore is complete.

The data of a copy still names the machines, volumes and credentials of its source. Controllers of
the copy already run then. It has no machines, so no pod runs.
"""

from datetime import datetime
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.client import Client

from capelin_control_plane.keys.rotation_clients import NODES, SECRETS, find_old_tokens

VOLUMES: Final = Resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
ATTACHMENTS: Final = Resource(
    "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False
)
_BOOTSTRAP_TOKEN: Final = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type


async def separate_from_source(workload: Client, moment: datetime) -> None:
    """Remove the source's objects. It can be repeated.

    Args:
        workload: The API of the copy.
        moment: The moment of the request. Later objects belong to the copy.
    """
    async for volume in workload.iterate(VOLUMES):
        # The source uses the volumes.
        if volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Delete":
            retain = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
            await workload.patch(VOLUMES, volume["metadata"]["name"], None, retain)
    # Before attachments: a controller creates those of a Node's pods again.
    async for node in workload.iterate(NODES):
        if _is_copied(node, moment):
            await _delete(workload, NODES, node)
    async for attachment in workload.iterate(ATTACHMENTS):
        if _is_copied(attachment, moment):
            # Without its finalizer, no CSI driver of the copy detaches the volume of the source.
            name, free = attachment["metadata"]["name"], {"metadata": {"finalizers": None}}
            await workload.patch(ATTACHMENTS, name, None, free)
            await _delete(workload, ATTACHMENTS, attachment)
    async for token in workload.iterate(SECRETS, fields={"type": _BOOTSTRAP_TOKEN}):
        if _is_copied(token, moment):
            await _delete(workload, SECRETS, token)


async def remove_old_tokens(workload: Client, key: str) -> None:
    """Empty the Secrets with tokens that API servers do not accept. It can be repeated.

    Args:
        workload: The API of the restored cluster.
        key: The ID of its service account key.
    """
    async for secret in find_old_tokens(workload, key):
        # The controller manager creates a token with the present key.
        metadata = secret["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "data": {"token": None}}
        await workload.patch(SECRETS, metadata["name"], metadata["namespace"], patch)


def _is_copied(item: Unstructured, moment: datetime) -> bool:
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"]) <= moment


async def _delete(workload: Client, kind: Resource, item: Unstructured) -> None:
    metadata: dict[str, Any] = item["metadata"]
    await workload.delete(kind, metadata["name"], metadata.get("namespace"), uid=metadata["uid"])
