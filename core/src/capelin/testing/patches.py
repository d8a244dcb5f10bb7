"""Server-side apply, with the semantics of the API server.

The names and rules are those of `sigs.k8s.io/structured-merge-diff`. A path
is a tuple of `f:name`, `k:{"type":"Ready"}` and `v:"value"`, like in `managedFields`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Path = tuple[str, ...]
Paths = frozenset[Path]
Schema = Mapping[str, Any]

_METADATA: Schema = {
    "properties": {
        "labels": {"additionalProperties": {}},
        "annotations": {"additionalProperties": {}},
        "finalizers": {"x-kubernetes-list-type": "set"},
        "ownerReferences": {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "items": {"x-kubernetes-map-type": "atomic"},
        },
    }
}
_UNOWNED = frozenset(
    {
        *(("f:apiVersion",), ("f:kind",), ("f:metadata",)),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                *("name", "namespace", "uid", "resourceVersion", "generation", "generateName"),
                *("creationTimestamp", "managedFields", "deletionTimestamp"),
                "deletionGracePeriodSeconds",
            )
        ),
    }
)
"""Fields without an owner."""


def object_schema(schema: Schema) -> Schema:
    """The schema of a whole object, with that of its metadata."""
    return {**schema, "properties": {**schema.get("properties", {}), "metadata": _METADATA}}


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of `managedFields`."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    paths: Paths

    @property
    def key(self) -> tuple[str, ...]:
        """The identity of an entry."""
        return self.manager, self.operation, self.subresource

    def dump(self) -> dict[str, Any]:
        return {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(self.paths),
            **({"subresource": self.subresource} if self.subresource else {}),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """The paths at which two objects differ."""

    changed: Paths
    """Added or modified."""
    removed: Paths


def paths_of(value: Any, schema: Schema) -> Paths:
    """The fields that an applied configuration owns."""
    return frozenset(_paths(value, schema, ())) - _UNOWNED


def _paths(value: Any, schema: Schema, parent: Path) -> Iterator[Path]:
    if _is_leaf(value, schema):
        yield parent
        return
    named = schema.get("properties", {})
    for part, child, child_schema in _children(value, schema):
        path = (*parent, part)
        yield from _paths(child, child_schema, path)
        if not part.startswith("f:") or child in ({}, None) or part[2:] not in named:
            yield path


def merge(live: Any, configuration: Any, schema: Schema) -> Any:
    """`live` with the fields of `configuration`."""
    if type(live) is not type(configuration) or _is_leaf(configuration, schema):
        return configuration
    if isinstance(configuration, dict):
        merged = dict(cast("dict[str, Any]", live))
        for name, value in cast("dict[str, Any]", configuration).items():
            old = merged.get(name)
            merged[name] = value if old is None else merge(old, value, _field(schema, name))
        return merged
    ours = {part: item for part, item, _ in _children(configuration, schema)}
    theirs = {part: item for part, item, _ in _children(live, schema)}
    items = _items_schema(schema)
    return [
        theirs[part]
        if part not in ours
        else merge(theirs[part], ours[part], items)
        if part in theirs
        else ours[part]
        for part in _merged_order(list(theirs), list(ours))
    ]


def _merged_order(live: list[str], applied: list[str]) -> Iterator[str]:
    """The applied order. Items of other owners keep their place among the shared ones."""
    left, right = 0, 0
    while left < len(live) or right < len(applied):
        if left < len(live):
            item = live[left]
            shared = next((part for part in applied[right:] if part in live), None)
            if item not in applied:
                yield item
                left += 1
                continue
            if item != shared:
                left += 1
                continue
            if item == applied[right]:
                left += 1
        yield applied[right]
        right += 1


def compare(old: Any, new: Any, schema: Schema) -> Difference:
    """The differences of two objects. An added path includes the maps around it."""
    changed: set[Path] = set()
    removed: set[Path] = set()
    _compare(old, new, schema, (), changed, removed)
    return Difference(frozenset(changed) - _UNOWNED, frozenset(removed) - _UNOWNED)


_ABSENT = object()


def _compare(  # noqa: PLR0917 - old and new, where, and the results
    old: Any, new: Any, schema: Schema, parent: Path, changed: set[Path], removed: set[Path]
) -> None:
    if old is _ABSENT:
        changed.add(parent)
    elif new is _ABSENT:
        removed.add(parent)
    elif _is_leaf(new, schema) or _is_leaf(old, schema):
        if json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):
            changed.add(parent)
        return
    before = {} if old is _ABSENT or _is_leaf(old, schema) else _parts(old, schema)
    after = {} if new is _ABSENT or _is_leaf(new, schema) else _parts(new, schema)
    for part, (_, child_schema) in (before | after).items():
        first, second = (side[part][0] if part in side else _ABSENT for side in (before, after))
        _compare(first, second, child_schema, (*parent, part), changed, removed)


def prune(value: Any, schema: Schema, last: Paths, managed: Iterable[Paths]) -> Any:
    """Remove fields that a manager owned before its apply and that now have no owner."""
    kept = _with_parents(path for paths in managed for path in paths)
    return _pruned(value, schema, (), _with_parents(last) - kept)


def _pruned(value: Any, schema: Schema, parent: Path, dropped: Paths) -> Any:
    if _is_leaf(value, schema) or not any(path[: len(parent)] == parent for path in dropped):
        return value
    kept = {
        part: _pruned(child, child_schema, (*parent, part), dropped)
        for part, child, child_schema in _children(value, schema)
        if (*parent, part) not in dropped
    }
    if isinstance(value, dict):
        return {part[2:]: child for part, child in kept.items()}
    return list(kept.values())


def _with_parents(paths: Iterable[Path]) -> Paths:
    """The paths with the fields around them. Includes list items only if they have an owner."""
    return frozenset(
        path[:end]
        for path in paths
        for end in range(1, len(path) + 1)
        if end == len(path) or path[end - 1].startswith("f:")
    )


def default(value: Any, schema: Schema) -> Any:
    """The value with the defaults of its schema."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        defaults = {
            name: field["default"]
            for name, field in schema.get("properties", {}).items()
            if "default" in field and fields.get(name) is None
        }
        return {
            name: default(child, _field(schema, name))
            for name, child in (fields | defaults).items()
        }
    if isinstance(value, list):
        return [default(item, schema.get("items", {})) for item in cast("list[Any]", value)]
    return value


# Schemas


def _is_leaf(value: Any, schema: Schema) -> bool:
    """Whether the value has one owner as a whole."""
    if isinstance(value, dict):
        return schema.get("x-kubernetes-map-type") == "atomic"
    return not isinstance(value, list) or schema.get("x-kubernetes-list-type") not in {"map", "set"}


def _field(schema: Schema, name: str) -> Schema:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    return properties.get(name) or (cast("Schema", rest) if isinstance(rest, dict) else {})


def _items_schema(schema: Schema) -> Schema:
    return schema.get("items") or {}


def _children(value: Any, schema: Schema) -> Iterator[tuple[str, Any, Schema]]:
    if isinstance(value, dict):
        for name, child in cast("dict[str, Any]", value).items():
            yield f"f:{name}", child, _field(schema, name)
        return
    items = _items_schema(schema)
    keys = schema.get("x-kubernetes-list-map-keys")
    for item in cast("list[Any]", value):
        if keys is None:
            yield f"v:{_json(item)}", item, items
        else:
            defaults = default({}, items)
            identity = {key: item.get(key, defaults.get(key)) for key in sorted(keys)}
            yield f"k:{_json(identity)}", item, items


def _parts(value: Any, schema: Schema) -> dict[str, tuple[Any, Schema]]:
    return {part: (child, child_schema) for part, child, child_schema in _children(value, schema)}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _tree(paths: Paths) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
    for path in paths:
        node = tree
        for part in path:
            node = node[part]
        if node:
            node["."] = {}
    return tree
