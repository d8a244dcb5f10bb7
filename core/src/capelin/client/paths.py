"""The paths and parameters of requests, from names and choices."""

from collections.abc import Mapping
from urllib.parse import quote

from capelin.api import Resource

Selector = str | Mapping[str, str]
"""Labels or fields to choose by: `{"app": "web"}`, or an expression as kubectl takes it."""


def path_of(
    resource: Resource,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """The path of a kind's collection, of one object, or of a part of it; names are quoted.

    Raises:
        ValueError: the names would make it the path of something else.
    """
    # An empty name would make a request for one object one for all of them.
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
    """The query parameters that choose objects."""
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {
        key: value
        if isinstance(value, str)
        else ",".join(f"{name}={wanted}" for name, wanted in value.items())
        for key, value in chosen.items()
        if value
    }
