"""Paths of requests, and how responses become objects of a class or plain JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

from pydantic import Field, ValidationError

from capelin.api import BaseObject, Model, Resource, Unstructured
from capelin.client.errors import Unreadable

T = TypeVar("T")
KindT_co = TypeVar("KindT_co", covariant=True)
ObjectT = TypeVar("ObjectT", bound=BaseObject)
DataT = TypeVar("DataT", bytes, dict[str, Any])


class Kind(Protocol[KindT_co]):
    """What the client takes for a kind, and what it returns for it.

    For a class made with `@kind`, it returns objects of that class; for a `Resource`, plain JSON.
    """

    def read(self, data: Mapping[str, Any], /) -> KindT_co:
        """An object of the kind."""
        ...


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A consistent list of objects, and the version to start a watch from."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity and version of an object."""

    key: tuple[str, str]
    """Namespace and name."""
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    resource_version: str
    next: str


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
    """Encode JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


class _ListMeta(Model):
    resource_version: str = ""
    next: str = Field(default="", alias="continue")


class _Page(Model, Generic[ObjectT]):
    metadata: _ListMeta = _ListMeta()
    items: list[ObjectT] = []


@lru_cache(maxsize=1024)
def _typed_codec(kind: type[ObjectT]) -> Codec[ObjectT]:
    resource = kind.resource
    pages: type[_Page[ObjectT]] = _Page[kind]

    def decode(data: bytes) -> ObjectT:
        return _read(resource, kind.read_json, data)

    def decode_value(data: dict[str, Any]) -> ObjectT:
        return _read(resource, kind.read, data)

    def decode_page(data: bytes) -> Page[ObjectT]:
        page = _read(resource, pages.read_json, data)
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

    def decode_page(data: bytes) -> Page[Unstructured]:
        page = _read(resource, _json_object, data)
        metadata = cast("dict[str, str]", page.get("metadata") or {})
        # Items in a list of a built-in kind have no apiVersion and kind.
        items: list[Unstructured] = [
            {"apiVersion": resource.api_version, "kind": resource.kind, **item}
            for item in page.get("items") or ()
        ]
        return Page(items, metadata.get("resourceVersion", ""), metadata.get("continue", ""))

    def identity(obj: Unstructured) -> Identity:
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        return Identity(key, metadata["uid"], metadata["resourceVersion"])

    return Codec(resource, decode, decode_value, decode_page, identity)


def _json_object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the data is wrong, not the program
    return cast("dict[str, Any]", value)


def _read(resource: Resource, read: Callable[[DataT], T], data: DataT) -> T:
    try:
        return read(data)
    except ValidationError as error:
        # Field paths and rules only: the values may be those of a secret.
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in errors[:5]
        )
    except ValueError:
        problems = "not JSON"
    raise Unreadable(f"what the API server sent as {resource.kind} cannot be read ({problems})")


# Paths and parameters

Selector = str | Mapping[str, str]
"""A label or field selector: `{"app": "web"}`, or an expression as for kubectl."""


def path_of(
    resource: Resource,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """The path of a collection, of one object, or of its subresource; names are quoted.

    Raises:
        ValueError: with these names, it would be the path of something else.
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
    """The query parameters for a label and a field selector."""
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {
        parameter: selector
        if isinstance(selector, str)
        else ",".join(f"{name}={value}" for name, value in selector.items())
        for parameter, selector in selectors.items()
        if selector
    }
