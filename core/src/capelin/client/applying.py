"""Server-side apply: what to send, and whether sending it would change anything."""

from collections.abc import Mapping
from typing import Any, cast

from capelin.api import Unstructured

_SERVERS_OWN = frozenset(
    {
        "managedFields",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "selfLink",
    }
)
"""Metadata that only the API server writes. Not `uid`: it makes sure that it is the same object."""


def configuration(manifest: Mapping[str, Any], *, locked: bool = False) -> Unstructured:
    """What to apply so that everything in `manifest` but its status becomes so.

    Args:
        manifest: the object, which may be one that was read.
        locked: keep the resourceVersion, so that the server refuses if somebody wrote since.
    """
    wanted = {key: value for key, value in manifest.items() if key != "status"}
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    kept = {key: value for key, value in metadata.items() if key not in _SERVERS_OWN}
    return {**wanted, "metadata": kept | _lock(metadata, locked=locked)}


def status_configuration(manifest: Mapping[str, Any], *, locked: bool = False) -> Unstructured:
    """What to apply to the status subresource so that the status becomes the manifest's."""
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    kept = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": kept | _lock(metadata, locked=locked),
        "status": manifest.get("status") or {},
    }


def _lock(metadata: Mapping[str, Any], *, locked: bool) -> dict[str, Any]:
    version = metadata.get("resourceVersion")
    return {"resourceVersion": version} if locked and version else {}
