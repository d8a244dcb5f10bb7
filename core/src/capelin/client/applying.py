"""Server-side apply: what to send, and whether sending it would change anything."""

import json
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
    # The server stores no empty labels, and so would write again for every apply that has them.
    kept = {key: value for key, value in metadata.items() if value and key not in _SERVERS_OWN}
    return {**wanted, "metadata": kept | _lock(metadata, locked=locked)}


def status_configuration(manifest: Mapping[str, Any], *, locked: bool = False) -> Unstructured:
    """What to apply to the status subresource so that the status becomes the manifest's."""
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    kept = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
    status = manifest.get("status")
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": kept | _lock(metadata, locked=locked),
        # A status that had fields and becomes {} would become null, which no schema takes.
        **({"status": status} if status else {}),
    }


def _lock(metadata: Mapping[str, Any], *, locked: bool) -> dict[str, Any]:
    version = metadata.get("resourceVersion")
    return {"resourceVersion": version} if locked and version else {}


def needs_apply(
    live: Mapping[str, Any], wanted: Mapping[str, Any], manager: str, *, subresource: str = ""
) -> bool:
    """Whether applying `wanted` as `manager` would change the object, or who owns what in it.

    Read from the fields that `live` says `manager` owns: they have to be exactly those that
    `wanted` has, and their values have to be the same. Where that cannot tell (the server writes
    a value in another way than it was sent, say), the answer is yes: a request too many changes
    nothing.
    """
    metadata = cast("dict[str, Any]", live["metadata"])
    uid = wanted["metadata"].get("uid")
    if uid and uid != metadata.get("uid"):
        return True
    mine: _Fields = {}
    others: list[_Fields] = []
    for entry in cast("list[dict[str, Any]]", metadata.get("managedFields") or []):
        fields = cast("_Fields", entry.get("fieldsV1") or {})
        who = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
        if who != (manager, "Apply", subresource):
            others.append(fields)
        elif mine or entry.get("apiVersion") != wanted["apiVersion"]:
            return True
        else:
            mine = fields
    return not _has_fields(mine, _ownable(wanted), dict(live), others)


_Fields = dict[str, Any]
"""A set of fields as in `managedFields`: `f:` a field, `k:` an item by its keys, `v:` a value."""


def _ownable(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but what says which object it is, which nobody owns."""
    said = {key: value for key, value in wanted.items() if key not in {"apiVersion", "kind"}}
    metadata = {
        key: value
        for key, value in said.pop("metadata").items()
        if key not in {"name", "namespace", "uid", "resourceVersion"}
    }
    return said | ({"metadata": metadata} if metadata else {})


def _is_held(owned: _Fields, wanted: Any, live: Any, others: list[_Fields]) -> bool:
    """Whether `wanted` is there and is what is owned, no less and no more."""
    parts = {key: part for key, part in owned.items() if key != "."}
    if not parts and (wanted in ({}, [])):
        # Owned as something empty, into which others and defaults may have put what they like.
        return type(live) is type(wanted)
    if not parts:
        shared = any(other.keys() - {"."} for other in others)
        return not shared and _is_same(wanted, live)
    if isinstance(wanted, dict) and isinstance(live, dict):
        return _has_fields(parts, cast("_Fields", wanted), cast("_Fields", live), others)
    if isinstance(wanted, list) and isinstance(live, list):
        return _has_items(parts, cast("list[Any]", wanted), cast("list[Any]", live), others)
    return False


def _has_fields(parts: _Fields, wanted: _Fields, live: _Fields, others: list[_Fields]) -> bool:
    left = dict(parts)
    for key, value in wanted.items():
        below = _below(others, f"f:{key}")
        if key not in live:
            return False
        if f"f:{key}" not in left:
            # Nobody owns an empty list that is merged item by item; one that is not, has owners.
            if value == [] and isinstance(live[key], list) and {} not in below:
                continue
            return False
        if not _is_held(left.pop(f"f:{key}"), value, live[key], below):
            return False
    return not left


def _has_items(parts: _Fields, wanted: list[Any], live: list[Any], others: list[_Fields]) -> bool:
    """Whether a list that is merged item by item has the wanted ones, in their order."""
    left = dict(parts)
    before = -1
    for item in wanted:
        part = next((part for part in left if _is_about(part, item)), None)
        place = next((n for n, one in enumerate(live) if part and _is_about(part, one)), None)
        if part is None or place is None or place < before:
            return False
        if not _is_held(left.pop(part), item, live[place], _below(others, part)):
            return False
        before = place
    return not left


def _is_about(part: str, item: Any) -> bool:
    """Whether `k:{"name":"x"}` or `v:"x"` means this item. Keys that have a default may lack."""
    sort, _, text = part.partition(":")
    if sort == "v":
        return _is_same(json.loads(text), item)
    if sort != "k" or not isinstance(item, dict):
        return False
    said = cast("_Fields", item)
    return all(key not in said or said[key] == value for key, value in json.loads(text).items())


def _below(sets: list[_Fields], part: str) -> list[_Fields]:
    return [fields[part] for fields in sets if part in fields]


def _is_same(one: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is not `1`."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
