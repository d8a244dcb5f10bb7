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


class ListMeta(Model):
    """Where a list stands: the version to watch from, and how to get its next page."""

    resource_version: str = ""
    next: str = Field(default="", alias="continue")


class _Page(Model, Generic[ObjectT]):
    metadata: ListMeta = ListMeta()
    items: list[ObjectT] = []


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
    page: Callable[[bytes], Page[T]]


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

    return Shape(resource, one, page)


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

    return Shape(resource, one, page)


def _mapping(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the data, not of the program
    return cast("dict[str, Any]", value)


def _read(resource: Resource, read: Callable[[bytes], T], data: bytes) -> T:
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
