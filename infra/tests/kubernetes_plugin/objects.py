"""Pure functions of the stand-in: names, readiness and changes of resources."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast
from uuid import uuid4

from capelin.api import Unstructured

READY_CONDITIONS: Final = {
    "CustomResourceDefinition": "Established",
    "APIService": "Available",
    "Deployment": "Available",
    "Job": "Complete",
}
_WAIT_FOR: Final = "pulumi.com/waitFor"
_SKIP_AWAIT: Final = "pulumi.com/skipAwait"
_PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
_JSON_PATH: Final = re.compile(r"jsonpath=\{(?P<path>\.[\w.\[\]]+)\}(?:=(?P<value>.*))?")


def named(inputs: Unstructured, resource_name: str) -> Unstructured:
    """The object with a generated name if the program sets none."""
    metadata = dict(inputs.get("metadata") or {})
    metadata.setdefault("name", f"{resource_name}-{uuid4().hex[:8]}")
    return {**inputs, "metadata": metadata}


def id_of(obj: Unstructured) -> str:
    """As in `default/demo` or `demo`."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else metadata["name"]


def changed_fields(old: Unstructured, new: Unstructured) -> tuple[set[str], set[str]]:
    """The top-level fields that differ, and those that require a replacement."""
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    replaced = {
        f"metadata.{key}"
        for key in ("name", "namespace")
        if old["metadata"].get(key) != new["metadata"].get(key)
    }
    replaced |= {key for key in ("apiVersion", "kind") if key in changed}
    if new["kind"] == "Secret":
        replaced |= changed & {"data", "stringData", "type"}
    return changed, replaced


def not_ready_reason(obj: Unstructured) -> str | None:
    """Why an object is not ready, or None."""
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    wanted = annotations.get(_WAIT_FOR)
    if wanted is not None:
        listed = cast("list[str]", json.loads(wanted) if wanted.startswith("[") else [wanted])
        reasons = (_missing(obj, each) for each in listed)
        return next((reason for reason in reasons if reason is not None), None)
    if annotations.get(_SKIP_AWAIT) == "true":
        return None
    condition = READY_CONDITIONS.get(obj["kind"])
    reason = None if condition is None else _missing(obj, f"condition={condition}")
    status: dict[str, Any] = obj.get("status") or {}
    if obj["kind"] == "Deployment" and reason is None:
        generation = obj["metadata"].get("generation")
        if status.get("observedGeneration") != generation:
            return "the Deployment controller has not seen the change"
        if status.get("updatedReplicas", 0) != status.get("replicas", 0):
            return "replicas are being updated"
    return reason


def propagation_policy(obj: Unstructured) -> Literal["Background", "Foreground", "Orphan"]:
    """The propagation policy of a deletion. Like the real plugin, foreground is the default."""
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    match annotations.get(_PROPAGATION, "").lower():
        case "background":
            return "Background"
        case "orphan":
            return "Orphan"
        case _:
            return "Foreground"


def without_unowned(obj: Unstructured) -> Unstructured:
    """The object without managed fields and other noise."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def picked(desired: Any, live: Any) -> Any:
    """The fields of a live object that the program sets, to show drift."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        given = cast("Mapping[str, Any]", desired)
        there = cast("Mapping[str, Any]", live)
        return {key: picked(value, there[key]) for key, value in given.items() if key in there}
    if isinstance(desired, list) and isinstance(live, list):
        pairs = cast("tuple[list[Any], list[Any]]", (desired, live))
        if len(pairs[0]) == len(pairs[1]):
            return [picked(first, second) for first, second in zip(*pairs, strict=True)]
    return cast("Any", live)


def _missing(obj: Unstructured, wanted: str) -> str | None:
    if wanted.startswith("condition="):
        name, _, value = wanted.removeprefix("condition=").partition("=")
        status: dict[str, Any] = obj.get("status") or {}
        conditions = cast("list[dict[str, str]]", status.get("conditions") or [])
        condition = next((each for each in conditions if each["type"] == name), None)
        if condition is not None and condition["status"] == (value or "True"):
            return None
        return f"{name}: {(condition or {}).get('message') or 'not known yet'}"
    match = _JSON_PATH.fullmatch(wanted)
    if match is None:
        msg = f"the stand-in does not understand pulumi.com/waitFor: {wanted}"
        raise ValueError(msg)
    field: Any = obj
    for key in match["path"].strip(".").split("."):
        field = cast("dict[str, Any]", field).get(key) if isinstance(field, dict) else None
    if field is None or (match["value"] is not None and str(field) != match["value"]):
        return f"{match['path']} is {field}"
    return None
