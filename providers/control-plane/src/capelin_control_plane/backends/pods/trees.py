"""Reads JSON objects in which anything may be missing. Pure."""

from collections.abc import Mapping
from typing import Any, cast


def value_at(node: Any, *path: str) -> Any:
    """The value at a path, if any."""
    for part in path:
        if not isinstance(node, dict):
            return None
        node = cast("dict[str, Any]", node).get(part)
    return node


def fields_at(node: Any, *path: str) -> Mapping[str, Any]:
    """The object at a path, or an empty one."""
    found = value_at(node, *path)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def items_at(node: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects in the list at a path, or an empty list."""
    found = value_at(node, *path)
    return cast("list[Mapping[str, Any]]", found) if isinstance(found, list) else []
