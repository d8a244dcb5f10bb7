"""Server-side apply: what to send, and whether sending it would change anything."""

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, cast, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from capelin.api import BaseObject, Model, Unstructured

_SERVER_OWNED = frozenset(
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
"""Metadata that only the API server writes. Not `uid`: with it, only that very object changes."""

_MAX_MANAGER = 128
_STRICT = ConfigDict(strict=True)


def configuration(manifest: Mapping[str, Any]) -> Unstructured:
    """The configuration that makes an object match `manifest`, except for its status."""
    desired = {key: value for key, value in manifest.items() if key != "status"}
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    # The server does not store empty labels and the like, so an apply with them always writes.
    kept = {key: value for key, value in metadata.items() if value and key not in _SERVER_OWNED}
    return {**desired, "metadata": kept}


def status_configuration(manifest: Mapping[str, Any]) -> Unstructured:
    """The configuration for the status subresource that makes the status match `manifest`."""
    status = manifest.get("status")
    return {
        **_identity(manifest),
        # A status that had fields and becomes {} would become null, which no schema allows.
        **({"status": status} if status else {}),
    }


def _identity(manifest: Mapping[str, Any]) -> Unstructured:
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {
            key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)
        },
    }


def check_not_read(manifest: Mapping[str, Any]) -> None:
    """Reject an object that was read from an API server.

    Applying it would take over the fields of users and other controllers, and undo their changes
    since then.

    Raises:
        ValueError: An API server returned the object. The message suggests alternatives.
    """
    metadata = cast("dict[str, Any]", manifest.get("metadata") or {})
    # Generated manifests have `creationTimestamp: null`.
    if not (metadata.get("creationTimestamp") or metadata.get("managedFields")):
        return
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    raise ValueError(
        f"{manifest.get('kind')} {where}{metadata.get('name')} was read from an API server: "
        f"applying it would take over every field of its other owners and undo their changes. "
        f"Apply a new object that has only your fields, use apply_fields() for single fields, "
        f"apply_status() for the status, or patch()"
    )


# Single fields


def field_configuration(obj: BaseObject, fields: Mapping[str, Any]) -> Unstructured:
    """The configuration that gives these fields of an existing object these values.

    Raises:
        ValueError: The kind has no such field, or the value does not fit it.
    """
    if not obj.uid:
        raise ValueError(
            f"{obj.resource.kind} {obj.name} has no uid: apply_fields() changes existing objects. "
            f"Use apply() or create() for new ones"
        )
    desired = _identity(obj.dump())
    for path, value in fields.items():
        parent = desired
        *parents, leaf = path.split(".")
        for name in parents:
            parent = parent.setdefault(name, {})
        parent[leaf] = _validated(type(obj), path, value)
    return desired


def field_manager(manager: str, fields: Mapping[str, Any]) -> str:
    return f"{manager}-{','.join(sorted(fields))}"[:_MAX_MANAGER]


def _validated(kind: type[BaseObject], path: str, value: Any) -> Any:
    adapter = _field_type(kind, path)
    try:
        checked = adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ValueError(f"{kind.resource.kind} {path}: {problem}") from None
    return adapter.dump_python(checked, mode="json", exclude_unset=True, exclude_none=True)


@lru_cache(maxsize=1024)
def _field_type(kind: type[BaseObject], path: str) -> TypeAdapter[Any]:
    """The type of the field at a path such as `spec.providerID`."""
    model: type[Model] | None = kind
    annotation: Any = kind
    metadata: list[Any] = []
    for name in path.split("."):
        fields = {
            field.serialization_alias or python_name: field
            for python_name, field in (model.model_fields if model else {}).items()
        }
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1, 0.5)
            hint = f' (did you mean "{close[0]}"?)' if close else ""
            raise ValueError(f'{kind.resource.kind} has no field {path}: no "{name}"{hint}')
        annotation, metadata = fields[name].annotation, fields[name].metadata
        model = _model_in(annotation)
    annotated: Any = cast("Any", Annotated)[(annotation, *metadata)] if metadata else annotation
    is_model = isinstance(annotated, type) and issubclass(annotated, Model)
    # Models have their own configuration, and pydantic rejects a second one.
    return TypeAdapter(cast("Any", annotated), config=None if is_model else _STRICT)


def _model_in(annotation: Any) -> type[Model] | None:
    """The model behind `Model`, `Model | None` and `Annotated[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


# Omitting requests that would change nothing


def needs_apply(
    live: Mapping[str, Any], desired: Mapping[str, Any], manager: str, *, subresource: str = ""
) -> bool:
    """Whether applying `desired` as `manager` would change the object or the owners of its fields.

    It would not if the fields that `manager` owns in `live` are exactly those of `desired`, with
    the same values. In doubt the answer is yes: a needless request changes nothing.
    """
    metadata = cast("dict[str, Any]", live["metadata"])
    uid = desired["metadata"].get("uid")
    if uid and uid != metadata.get("uid"):
        return True
    entries = cast("list[dict[str, Any]]", metadata.get("managedFields") or [])
    if not entries:
        # The server then records an owner of the existing fields, even for an apply without fields.
        return True
    mine: _Fields = {}
    others: list[_Fields] = []
    for entry in entries:
        fields = cast("_Fields", entry.get("fieldsV1") or {})
        owner = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
        if owner != (manager, "Apply", subresource):
            others.append(fields)
        elif mine or entry.get("apiVersion") != desired["apiVersion"]:
            return True
        else:
            mine = fields
    return not _has_fields(mine, _ownable(desired), dict(live), others)


_Fields = dict[str, Any]
"""A set of fields as in `managedFields`: `f:` a field, `k:` an item by keys, `v:` a value."""


def _ownable(desired: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the identity of the object, which has no owner."""
    fields = {key: value for key, value in desired.items() if key not in {"apiVersion", "kind"}}
    metadata = {
        key: value
        for key, value in fields.pop("metadata").items()
        if key not in {"name", "namespace", "uid", "resourceVersion"}
    }
    return fields | ({"metadata": metadata} if metadata else {})


def _is_held(owned: _Fields, desired: Any, live: Any, others: list[_Fields]) -> bool:
    """Whether we own exactly `desired`, and `live` has its values."""
    parts = {key: part for key, part in owned.items() if key != "."}
    if not parts:
        has_fields_of_others = any(other.keys() - {"."} for other in others)
        if desired in ({}, []) and has_fields_of_others:
            # Other owners manage the content. We do not touch it.
            return type(live) is type(desired)
        return not has_fields_of_others and _is_same(desired, live)
    if isinstance(desired, dict) and isinstance(live, dict):
        return _has_fields(parts, cast("_Fields", desired), cast("_Fields", live), others)
    if isinstance(desired, list) and isinstance(live, list):
        return _has_items(parts, cast("list[Any]", desired), cast("list[Any]", live), others)
    return False


def _has_fields(parts: _Fields, desired: _Fields, live: _Fields, others: list[_Fields]) -> bool:
    left = dict(parts)
    for key, value in desired.items():
        # An empty list that is merged by item has no owner, but an atomic one has. Only the schema
        # distinguishes them, so send an empty list that we do not own.
        if key not in live or f"f:{key}" not in left:
            return False
        children = _children(others, f"f:{key}")
        if not _is_held(left.pop(f"f:{key}"), value, live[key], children):
            return False
    return not left


def _has_items(parts: _Fields, desired: list[Any], live: list[Any], others: list[_Fields]) -> bool:
    """Whether a list that is merged by item has the desired items, in their order."""
    left = dict(parts)
    previous = -1
    for item in desired:
        part = next((part for part in left if _is_about(part, item)), None)
        index = next((n for n, other in enumerate(live) if part and _is_about(part, other)), None)
        if part is None or index is None or index < previous:
            return False
        if not _is_held(left.pop(part), item, live[index], _children(others, part)):
            return False
        previous = index
    return not left


def _is_about(part: str, item: Any) -> bool:
    """Whether `k:{"name":"x"}` or `v:"x"` means this item. Keys with a default may be missing."""
    form, _, text = part.partition(":")
    if form == "v":
        return _is_same(json.loads(text), item)
    if form != "k" or not isinstance(item, dict):
        return False
    fields = cast("_Fields", item)
    return all(key not in fields or fields[key] == value for key, value in json.loads(text).items())


def _children(sets: list[_Fields], part: str) -> list[_Fields]:
    return [fields[part] for fields in sets if part in fields]


def _is_same(first: Any, second: Any) -> bool:
    """Equal as JSON, where `true` is not `1`."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
