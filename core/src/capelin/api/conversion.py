"""Conversion of objects between the versions of a kind.

    @converts(FishV1Alpha1, Fish)
    def upgrade(fish: Unstructured) -> None:
        move_field(fish, "spec.fins", "spec.finCount")

    @converts(Fish, FishV1Alpha1)
    def downgrade(fish: Unstructured) -> None:
        move_field(fish, "spec.finCount", "spec.fins")

A function changes an object as JSON, which may lack required fields: during a server-side apply,
the API server also converts parts of objects. An annotation of the converted object keeps the
values that do not survive the way to the other version and back.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from capelin.api.objects import BaseObject, Unstructured

Converter = Callable[[Unstructured], None]
ConverterT = TypeVar("ConverterT", bound=Converter)
ObjectT = TypeVar("ObjectT", bound=BaseObject)

CONVERSION_PATH: Final = "/convert"
"""The path of the conversion webhook of a manager."""
DATA_ANNOTATION: Final = "cluster.x-k8s.io/conversion-data"
"""Values of other versions. Cluster API's core ignores this annotation when it compares objects."""

_Edges = dict[tuple[str, str], Converter]

_CONVERTERS: Final[dict[tuple[str, str], _Edges]] = {}
"""By group and kind, then by the versions from which and to which they convert."""
_CLASSES: Final[dict[tuple[str, str, str], type[BaseObject]]] = {}
"""The classes that have converters, by group, kind and version."""


class ConversionError(ValueError):
    """An object that cannot be converted."""


def converts(
    source: type[BaseObject], target: type[BaseObject]
) -> Callable[[ConverterT], ConverterT]:
    """Register a function that converts objects of one version of a kind to another.

    It also converts the objects in the kind's templates, unless these have their own functions.
    """
    old, new = source.resource, target.resource
    if (old.group, old.kind) != (new.group, new.kind) or old.version == new.version:
        raise TypeError(
            f"@converts needs two versions of one kind, not {old.kind} in {old.api_version} and "
            f"{new.kind} in {new.api_version}"
        )

    for cls in (source, target):
        _CLASSES[cls.resource.group, cls.resource.kind, cls.resource.version] = cls

    def register(function: ConverterT) -> ConverterT:
        _CONVERTERS.setdefault((old.group, old.kind), {})[old.version, new.version] = function
        return function

    return register


def missing_conversions(group: str, kind: str, versions: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of versions between which nothing converts."""
    edges = _edges(group, kind)
    pairs = [(old, new) for old in versions for new in versions if old != new]
    return [pair for pair in pairs if _route(edges, *pair) is None]


def convert(obj: BaseObject, target: type[ObjectT]) -> ObjectT:
    """The object in another version of its kind.

    Raises:
        ConversionError: Nothing converts between the versions, or a function fails.
    """
    return target.read(convert_json(obj.dump(), target.resource.api_version))


def convert_json(obj: Mapping[str, Any], api_version: str) -> Unstructured:
    """An object as JSON in another version of its kind. The argument stays unchanged.

    Raises:
        ConversionError: Nothing converts between the versions, or a function fails.
    """
    group, _, old = str(obj.get("apiVersion")).rpartition("/")
    target_group, _, new = api_version.rpartition("/")
    if group != target_group:
        raise ConversionError(f"{obj.get('apiVersion')} and {api_version} are not of one group")
    if old == new:
        return deepcopy(dict(obj))
    kept = _kept_values(obj)
    converted = _along(obj, old, new)
    lost = list(_differences(_content(_along(converted, new, old)), _content(obj)))
    if own := kept.pop(new, []):
        restored = _restored(converted, own)
        # A user can write the annotation. A value of a wrong type could make later conversions
        # fail, and with them lists of the objects of all users. An object may be incomplete.
        fits = all(problem["type"] == "missing" for problem in violations(restored))
        converted = restored if fits else converted
    _keep(converted, {**kept, old: lost})
    return converted


def lost_fields(obj: Mapping[str, Any], api_version: str) -> list[str]:
    """The paths of the values that another version cannot express, so that the annotation does."""
    _, _, version = str(obj.get("apiVersion")).rpartition("/")
    kept = _kept_values(convert_json(obj, api_version))
    return [".".join(difference.path) for difference in kept.get(version, [])]


def violations(obj: Unstructured) -> list[ErrorDetails]:
    """The values of an object that do not fit its class, which has conversions."""
    group, _, version = str(obj["apiVersion"]).rpartition("/")
    kind = str(obj["kind"])
    cls, part = _CLASSES.get((group, kind, version)), obj
    if cls is None:
        cls = _CLASSES[group, kind.removesuffix("Template"), version]
        part = cast("Unstructured", _at(obj, ("spec", "template")) or {})
    try:
        cls.read(_content(part))
    except ValidationError as error:
        return error.errors()
    return []


def move_field(
    obj: Unstructured, source: str, target: str, change: Callable[[Any], Any] | None = None
) -> None:
    """Move the field at a path to another one, and change its value, if the object has it."""
    *parents, last = source.split(".")
    holders = [obj]
    for name in parents:
        inside: object = holders[-1].get(name)
        if not isinstance(inside, dict):
            return
        holders.append(cast("Unstructured", inside))
    if last not in holders[-1]:
        return
    value = holders[-1].pop(last)
    for depth in range(len(parents) - 1, 0, -1):
        if not holders[depth + 1]:
            del holders[depth][parents[depth]]
    *parents, last = target.split(".")
    for name in parents:
        obj = obj.setdefault(name, {})
    obj[last] = change(value) if change else value


def _edges(group: str, kind: str) -> _Edges:
    if (own := _CONVERTERS.get((group, kind))) is not None:
        return own
    of_objects = _CONVERTERS.get((group, kind.removesuffix("Template")), {})
    return {versions: partial(_in_template, convert) for versions, convert in of_objects.items()}


def _in_template(converter: Converter, template: Unstructured) -> None:
    inside = _at(template, ("spec", "template"))
    if isinstance(inside, dict):
        converter(cast("Unstructured", inside))


def _route(edges: _Edges, old: str, new: str) -> list[str] | None:
    """The shortest way from a version to another, with both."""
    routes = deque([[old]])
    visited = {old}
    while routes:
        route = routes.popleft()
        if route[-1] == new:
            return route
        for source, target in edges:
            if source == route[-1] and target not in visited:
                visited.add(target)
                routes.append([*route, target])
    return None


def _along(obj: Mapping[str, Any], old: str, new: str) -> Unstructured:
    """A copy of the object after all functions from a version to another."""
    group, _, _ = str(obj["apiVersion"]).rpartition("/")
    kind = str(obj.get("kind"))
    edges = _edges(group, kind)
    route = _route(edges, old, new)
    if route is None:
        raise ConversionError(f"nothing converts {kind} from {old} to {new}")
    converted = deepcopy(dict(obj))
    for source, target in pairwise(route):
        try:
            edges[source, target](converted)
        except Exception as error:
            raise ConversionError(
                f"the conversion from {source} to {target} failed with "
                f"{type(error).__name__}: {error}"
            ) from error
    # Conversions may change labels and annotations only.
    metadata = deepcopy(dict(obj.get("metadata") or {}))
    changed: Unstructured = converted.get("metadata") or {}
    for name in ("labels", "annotations"):
        metadata.pop(name, None)
        if changed.get(name):
            metadata[name] = changed[name]
    return {**converted, "apiVersion": f"{group}/{new}", "kind": kind, "metadata": metadata}


class _Difference(BaseModel):
    """The values at a path. One is not set if the field was absent."""

    path: Annotated[list[str], Field(min_length=1)]
    before: Any = None
    after: Any = None


_KEPT: Final = TypeAdapter(dict[str, list[_Difference]])


def _content(obj: Mapping[str, Any]) -> Unstructured:
    return {k: v for k, v in obj.items() if k not in {"apiVersion", "kind", "metadata"}}


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[_Difference]:
    """The places where two objects differ. Lists are compared as a whole."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(
                cast("Unstructured", old), cast("Unstructured", new), (*path, name)
            )
        elif name not in before or name not in after or old != new:
            sides = {"before": before, "after": after}
            changed = {side: obj[name] for side, obj in sides.items() if name in obj}
            yield _Difference(path=[*path, name], **changed)


def _restored(obj: Unstructured, lost: Sequence[_Difference]) -> Unstructured:
    """The object with the kept values of all fields that are as the conversion made them."""
    restored = deepcopy(obj)
    for difference in lost:
        *parents, name = difference.path
        holder = _at(restored, parents)
        if not isinstance(holder, dict):
            continue
        fields = cast("Unstructured", holder)
        is_set = "before" in difference.model_fields_set
        if (name in fields) != is_set or fields.get(name) != difference.before:
            continue
        if "after" in difference.model_fields_set:
            fields[name] = difference.after
        else:
            fields.pop(name, None)
    return restored


def _kept_values(obj: Mapping[str, Any]) -> dict[str, list[_Difference]]:
    """The kept values by version, or none if the annotation is unreadable."""
    text = _at(obj, ("metadata", "annotations", DATA_ANNOTATION))
    try:
        return _KEPT.validate_json(cast("str", text)) if text else {}
    except ValidationError:
        return {}


def _keep(obj: Unstructured, kept: Mapping[str, list[_Difference]]) -> None:
    """Write the annotation, or remove it if it would be empty."""
    metadata: Unstructured = obj["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop(DATA_ANNOTATION, None)
    if values := {version: lost for version, lost in kept.items() if lost}:
        annotations[DATA_ANNOTATION] = _KEPT.dump_json(values, exclude_unset=True).decode()
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)


def _at(obj: object, path: Sequence[str]) -> object:
    """The value at a path, or None."""
    for name in path:
        obj = cast("Unstructured", obj).get(name) if isinstance(obj, dict) else None
    return obj
