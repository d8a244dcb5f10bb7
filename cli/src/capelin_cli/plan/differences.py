"""Field-by-field differences of two objects, without fields that controllers use for themselves."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from capelin.api import Unstructured

from capelin_cli.explain.facts import at
from capelin_cli.plan.model import FieldChange

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_INTERNAL_PREFIXES: Final = (
    "cluster.x-k8s.io/cloned-from-",
    "clusterctl.cluster.x-k8s.io/",
    "in-place-updates.internal.cluster.x-k8s.io/",
    "machinedeployment.clusters.x-k8s.io/",
    "runtime.cluster.x-k8s.io/",
    "topology.internal.cluster.x-k8s.io/",
)
_INTERNAL: Final = frozenset(
    {
        "capelin.cluster.x-k8s.io/recount-requested-at",
        "cluster.x-k8s.io/set-name",
        "controlplane.cluster.x-k8s.io/skip-kube-proxy",
        LAST_APPLIED,
        "machine-template-hash",
    }
)
_OBSERVED: Final = frozenset(
    {
        "spec.joinConfiguration.discovery.bootstrapToken.token",
        "spec.providerID",
        "spec.providerIDList",
    }
)
"""Fields of specs that providers fill in, or renew."""
_KEYS: Final = ("name", "type", "conditionType", "path")
"""Fields that identify an item of a list."""
LEVELS: Final = 100
"""The most levels of fields that an object can have. Comparisons are recursive."""
_MISSING: Final = object()


def differences(
    before: Unstructured, after: Unstructured, words: Mapping[str, Mapping[str, str]] | None = None
) -> list[FieldChange]:
    """The changed fields of the spec, the labels and the annotations.

    Args:
        before: The object before the change.
        after: The object after the change.
        words: Texts in place of names, for `before` and for `after`.
    """
    words = words or {}
    old = _comparable(before, words.get("before", {}))
    new = _comparable(after, words.get("after", {}))
    return [change for change in _walk("", old, new) if change.path not in _OBSERVED]


def is_too_deep(obj: Unstructured) -> bool:
    """Whether an object has more levels of fields than a comparison can have."""
    level: list[object] = [obj]
    for _ in range(LEVELS):
        # An alias in YAML makes several values one.
        level = [*{id(inner): inner for value in level for inner in _children(value)}.values()]
    return bool(level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _comparable(obj: Unstructured, words: Mapping[str, str]) -> dict[str, Any]:
    metadata = {
        name: _without_internal(cast("dict[str, Any]", at(obj, "metadata", name) or {}))
        for name in ("labels", "annotations")
    }
    return {"metadata": metadata, "spec": _named(obj.get("spec") or {}, words)}


def _without_internal(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not _is_internal(key)}


def _is_internal(key: str) -> bool:
    return key in _INTERNAL or key.startswith(_INTERNAL_PREFIXES)


def _named(value: Any, words: Mapping[str, str]) -> Any:
    """The value with each name replaced by the role of the object."""
    match value:
        case str():
            return words.get(value, value)
        case dict():
            fields = cast("dict[str, Any]", value)
            return {key: _named(inner, words) for key, inner in fields.items()}
        case list():
            return [_named(inner, words) for inner in cast("list[Any]", value)]
        case _:
            return value


def _walk(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if before == after or (_is_empty(before) and _is_empty(after)):
        return
    # A new item of a list is one change, and each new field of an object another.
    is_item = path.endswith("]") and (before is _MISSING or after is _MISSING)
    if not is_item and (isinstance(before, dict) or isinstance(after, dict)):
        old, new = _fields(before), _fields(after)
        if old is not None and new is not None:
            for key in [*old, *(key for key in new if key not in old)]:
                inner = f"{path}.{key}" if path else key
                yield from _walk(inner, old.get(key, _MISSING), new.get(key, _MISSING))
            return
    if isinstance(before, list) and isinstance(after, list):
        old, new = _by_key(cast("list[Any]", before)), _by_key(cast("list[Any]", after))
        if old is not None and new is not None:
            for key in [*old, *(key for key in new if key not in old)]:
                inner = f"{path}[{key}]"
                yield from _walk(inner, old.get(key, _MISSING), new.get(key, _MISSING))
            return
    yield FieldChange(path=path, before=_shown(before), after=_shown(after))


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object. Of a missing one none, so that each new field is a change."""
    if value is _MISSING:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _by_key(items: list[Any]) -> dict[str, Any] | None:
    """The items of a list by the field that identifies them. None if no field does."""
    for key in _KEYS:
        if all(isinstance(item, dict) and key in item for item in items):
            found = {str(cast("dict[str, Any]", item)[key]): item for item in items}
            return found if len(found) == len(items) else None
    return None


def _is_empty(value: Any) -> bool:
    return value is _MISSING or value is None or value in ({}, [])


def _shown(value: Any) -> Any:
    return None if value is _MISSING else value
