"""Paths of requests, and the conversion of responses to objects of a class or plain JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

from pydantic import FailFast, Field

from capelin.api import BaseObject, Model, Resource, Unstructured
from capelin.client.errors import Unreadable
from capelin.client.unreadable import UnreadableObject, reason_of
from capelin.collection import large_objects
from capelin.json_text import items, members, metadata_of, read_json

_MAX_ITEMS: Final = 2000
"""The largest number of items in a page of a list. The client requests at most 500."""

T = TypeVar("T")
KindT_co = TypeVar("KindT_co", covariant=True)
ObjectT = TypeVar("ObjectT", bound=BaseObject)
DataT = TypeVar("DataT", bytes, dict[str, Any])


class Kind(Protocol[KindT_co]):
    """A kind for the client, with the type of the objects that the client returns.

    A class made with `@kind` returns objects of that class. A `Resource` returns plain JSON.
    """

    def read(self, data: Mapping[str, Any], /) -> KindT_co: ...


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A consistent list of objects, and the version to start a watch from."""

    items: list[T]
    resource_version: str
    unreadable: tuple[UnreadableObject, ...] = ()
    """Objects that exist and cannot be read as their kind: they are not among the items."""


@dataclass(frozen=True, slots=True)
class Identity:
    key: tuple[str, str]
    """Namespace and name."""
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    resource_version: str
    next: str
    unreadable: tuple[UnreadableObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Decodes the objects of a kind."""

    resource: Resource
    decode: Callable[[bytes], T]
    decode_value: Callable[[dict[str, Any]], T]
    decode_page: Callable[[bytes], Page[T]]
    identity: Callable[[T], Identity]


def codec_of(kind: Kind[T]) -> Codec[T]:
    """The codec of a kind: typed for a class, plain JSON for a `Resource`."""
    if isinstance(kind, Resource):
        return cast("Codec[T]", _plain_codec(kind))
    return cast("Codec[T]", _typed_codec(cast("type[BaseObject]", kind)))


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _ListMeta(Model):
    resource_version: str = ""
    next: str = Field(default="", alias="continue")


class _Page(Model, Generic[ObjectT]):
    metadata: _ListMeta = _ListMeta()
    items: Annotated[list[ObjectT], FailFast(), Field(max_length=_MAX_ITEMS)] = []


@lru_cache(maxsize=1024)
def _typed_codec(kind: type[ObjectT]) -> Codec[ObjectT]:
    resource = kind.resource
    pages: type[_Page[ObjectT]] = _Page[kind]

    def decode(data: bytes) -> ObjectT:
        return _read(resource, kind.read_json, data)

    def decode_value(data: dict[str, Any]) -> ObjectT:
        return _read(resource, kind.read, data)

    def decode_page(data: bytes) -> Page[ObjectT]:
        try:
            with large_objects(len(data)):
                page = pages.read_json(data)
        except ValueError:
            return _page_by_item(resource, kind.read_json, data)
        return Page(page.items, page.metadata.resource_version, page.metadata.next)

    def identity(obj: ObjectT) -> Identity:
        metadata = obj.metadata
        key = (metadata.namespace or "", metadata.name)
        return Identity(key, metadata.uid, metadata.resource_version)

    return Codec(resource, decode, decode_value, decode_page, identity)


@lru_cache(maxsize=1024)
def _plain_codec(resource: Resource) -> Codec[Unstructured]:
    def decode(data: bytes) -> Unstructured:
        return _read(resource, _json_object, data)

    def decode_value(data: dict[str, Any]) -> Unstructured:
        return data

    names = {"apiVersion": resource.api_version, "kind": resource.kind}

    def decode_item(data: bytes) -> Unstructured:
        # Items in a list of a built-in kind have no apiVersion and kind.
        return {**names, **_json_object(data)}

    def decode_page(data: bytes) -> Page[Unstructured]:
        try:
            with large_objects(len(data)):
                page = _json_object(data)
                listed = [{**names, **item} for item in page.get("items") or ()]
        except (ValueError, TypeError):
            return _page_by_item(resource, decode_item, data)
        metadata = cast("dict[str, str]", page.get("metadata") or {})
        return Page(listed, metadata.get("resourceVersion", ""), metadata.get("continue", ""))

    def identity(obj: Unstructured) -> Identity:
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        return Identity(key, metadata["uid"], metadata["resourceVersion"])

    return Codec(resource, decode, decode_value, decode_page, identity)


def _page_by_item(resource: Resource, decode: Callable[[bytes], T], data: bytes) -> Page[T]:
    """A page of a list, in which an item that cannot be read does not hide the others."""
    readable: list[T] = []
    unreadable: list[UnreadableObject] = []
    try:
        parts = dict(members(data))
        metadata = _ListMeta.read_json(parts.get("metadata", b"{}"))
        for number, item in enumerate(items(parts.get("items", b"null"))):
            if number == _MAX_ITEMS:
                raise ValueError(f"it has more than {_MAX_ITEMS:,} items")  # noqa: TRY301
            try:
                readable.append(decode(item))
            except ValueError as error:
                unreadable.append(
                    UnreadableObject.of(resource, metadata_of(item), reason_of(error))
                )
    except ValueError as error:
        raise Unreadable(_cannot_be_read(resource, reason_of(error))) from None
    return Page(readable, metadata.resource_version, metadata.next, tuple(unreadable))


def _json_object(data: bytes) -> dict[str, Any]:
    value = read_json(data)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - the data is wrong, not the program
    return cast("dict[str, Any]", value)


def _read(resource: Resource, read: Callable[[DataT], T], data: DataT) -> T:
    try:
        return read(data)
    except ValueError as error:
        metadata: Any = metadata_of(data) if isinstance(data, bytes) else data.get("metadata")
        unreadable = UnreadableObject.of(resource, metadata or {}, reason_of(error))
        raise Unreadable(_cannot_be_read(resource, unreadable.reason), unreadable) from None


def _cannot_be_read(resource: Resource, reason: str) -> str:
    return f"the API server sent an unreadable {resource.kind} ({reason})"


# Paths and parameters

Selector = str | Mapping[str, str]
"""A label or field selector: `{"app": "web"}`, or an expression as for kubectl."""


def path_of(
    resource: Resource,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """The path of a collection, of one object, or of its subresource, with quoted names.

    Raises:
        ValueError: With these names, the path would belong to another object.
    """
    # Without this check, a request for an object with an empty name would be one for all objects.
    if name == "" or namespace == "":
        raise ValueError(f"a {resource.kind} needs a name and a namespace that are not empty")
    if resource.namespaced and name is not None and namespace is None:
        raise ValueError(f'{resource.kind} "{name}" needs a namespace')
    if name in {".", ".."} or namespace in {".", ".."}:
        raise ValueError(f'"{name}" in "{namespace}" cannot be the name of a {resource.kind}')
    return resource.path(
        quote(namespace, safe=":") if namespace is not None else None,
        quote(name, safe=":") if name is not None else None,
        subresource,
    )


def selection(labels: Selector | None, fields: Selector | None) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {
        parameter: selector
        if isinstance(selector, str)
        else ",".join(f"{name}={value}" for name, value in selector.items())
        for parameter, selector in selectors.items()
        if selector
    }
