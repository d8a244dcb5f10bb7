"""What a reconciler declares that it watches, and whom an event concerns: values, and pure.

Watching costs memory and permissions in proportion to what is asked for. So everything is watched
by its metadata alone, except what a mapper has to look into, and Secrets are never looked into.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from capelin.api import BaseObject, ObjectMeta, Resource
from capelin.controller.results import ObjectKey

KindT = TypeVar("KindT", bound=BaseObject)

Labels = Mapping[str, str | None]
"""Labels that an object has to have; `None` asks for the label and takes any value."""


@dataclass(frozen=True, slots=True)
class For(Generic[KindT]):
    """The kind that a reconciler is for: each object of it is a key."""

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class Owns(Generic[KindT]):
    """A kind that the reconciler makes: its events concern the owner."""

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class Watches(Generic[KindT]):
    """A kind whose events concern whichever keys `to` says.

    With `metadata_only`, and always for Secrets, the object that `to` gets has nothing but its
    metadata.
    """

    kind: type[KindT]
    to: Callable[[KindT], Iterable[ObjectKey]]
    labels: Labels = field(default_factory=dict[str, str | None])
    metadata_only: bool = False


Watch = For[Any] | Owns[Any] | Watches[Any]


@dataclass(frozen=True, slots=True)
class Permission:
    """What a reconciler may do beyond what its watches imply."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


def selector(labels: Labels) -> str:
    """The labels as Kubernetes' label selector."""
    return ",".join(
        name if value is None else f"{name}={value}" for name, value in sorted(labels.items())
    )


def selects(labels: Labels, found: Mapping[str, str]) -> bool:
    """Whether an object with these labels has the ones that are asked for."""
    return all(name in found and value in {None, found[name]} for name, value in labels.items())


def looks_inside(watch: Watch) -> bool:
    """Whether whole objects are needed, not their metadata alone."""
    secret = (watch.kind.resource.group, watch.kind.resource.plural) == ("", "secrets")
    return isinstance(watch, Watches) and not watch.metadata_only and not secret


def concerned(watch: Watch, kind: Resource, body: Mapping[str, Any]) -> list[ObjectKey]:
    """The keys of the reconciler's `kind` that an event about the object `body` concerns."""
    metadata = cast("Mapping[str, Any]", body["metadata"])
    if not selects(watch.labels, metadata.get("labels") or {}):
        return []
    match watch:
        case For():
            return [ObjectKey(metadata.get("namespace") or "", metadata["name"])]
        case Owns():
            namespace = metadata.get("namespace") or "" if kind.namespaced else ""
            return [
                ObjectKey(namespace, owner["name"])
                for owner in metadata.get("ownerReferences") or ()
                if owner["kind"] == kind.kind
                and owner["apiVersion"].rpartition("/")[0] == kind.group
            ]
        case Watches():
            return list(watch.to(_read(watch, body)))


def _read(watch: Watches[KindT], body: Mapping[str, Any]) -> KindT:
    if looks_inside(watch):
        return watch.kind.read(body)
    return watch.kind.model_construct(metadata=ObjectMeta.read(body["metadata"]))
