"""How the JSON of a kind becomes what callers get: objects of a class, or plain JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, overload

from pydantic import Field, ValidationError

from capelin.api import BaseObject, Model, Resource, Unstructured
from capelin.client.errors import Unreadable

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)
DataT = TypeVar("DataT", bytes, dict[str, Any])


class ListMeta(Model):
    """Where a list stands: the version to watch from, and how to get its next page."""

    resource_version: str = ""
    next: str = Field(default="", alias="continue")


class _Page(Model, Generic[ObjectT]):
    metadata: ListMeta = ListMeta()
    items: list[ObjectT] = []


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Everything that was there at one moment, and that moment's version to watch from."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object it is, and in which state."""

    key: tuple[str, str]
    """Namespace and name."""
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    items: list[T]
    resource_version: str
    next: str


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """A kind, and how to read it."""

    resource: Resource
    one: Callable[[bytes], T]
    value: Callable[[dict[str, Any]], T]
    page: Callable[[bytes], Page[T]]
    identity: Callable[[T], Identity]


@overload
def shape_of(kind: type[ObjectT]) -> Shape[ObjectT]: ...
@overload
def shape_of(kind: Resource) -> Shape[Unstructured]: ...
def shape_of(kind: type[BaseObject] | Resource) -> Shape[Any]:
    """How to read a kind: typed when it is a class, plain JSON when it is a resource."""
    return _plain(kind) if isinstance(kind, Resource) else _typed(kind)


@lru_cache(maxsize=1024)
def _typed(kind: type[ObjectT]) -> Shape[ObjectT]:
    pages: type[_Page[ObjectT]] = _Page[kind]
    resource = kind.resource

    def one(data: bytes) -> ObjectT:
        return _read(resource, kind.read_json, data)

    def page(data: bytes) -> Page[ObjectT]:
        read = _read(resource, pages.read_json, data)
        return Page(read.items, read.metadata.resource_version, read.metadata.next)

    def value(data: dict[str, Any]) -> ObjectT:
        return _read(resource, kind.read, data)

    def identity(obj: ObjectT) -> Identity:
        metadata = obj.metadata
        key = (metadata.namespace or "", metadata.name)
        return Identity(key, metadata.uid, metadata.resource_version)

    return Shape(resource, one, value, page, identity)


@lru_cache(maxsize=1024)
def _plain(resource: Resource) -> Shape[Unstructured]:
    def one(data: bytes) -> Unstructured:
        return _read(resource, _mapping, data)

    def page(data: bytes) -> Page[Unstructured]:
        read = _read(resource, _mapping, data)
        metadata = cast("dict[str, str]", read.get("metadata") or {})
        # The items of a built-in kind's list do not say what they are.
        items: list[Unstructured] = [
            {"apiVersion": resource.api_version, "kind": resource.kind, **item}
            for item in read.get("items") or ()
        ]
        return Page(items, metadata.get("resourceVersion", ""), metadata.get("continue", ""))

    def value(data: dict[str, Any]) -> Unstructured:
        return data

    def identity(obj: Unstructured) -> Identity:
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        return Identity(key, metadata["uid"], metadata["resourceVersion"])

    return Shape(resource, one, value, page, identity)


def _mapping(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the data, not of the program
    return cast("dict[str, Any]", value)


def _read(resource: Resource, read: Callable[[DataT], T], data: DataT) -> T:
    try:
        return read(data)
    except ValidationError as error:
        # Only places and rules: the values may be a secret's.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        places = "; ".join(
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in found[:5]
        )
    except ValueError:
        places = "not JSON"
    raise Unreadable(f"what the API server sent as {resource.kind} cannot be read ({places})")
