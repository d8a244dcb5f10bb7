"""A document under change: a copy, and the difference from its original."""

from collections.abc import Callable
from typing import Any

from pydantic_core import SchemaSerializer, core_schema

from capelin.api import Unstructured
from capelin.runtime.topology.patches import Operation, is_list, is_object, json_patch

_copy: Callable[[Any], Any] = SchemaSerializer(core_schema.any_schema()).to_python
"""Copies objects and lists, and shares strings and numbers: equal values stay identical."""

Path = tuple[str, ...]


class UnexpectedTemplateError(ValueError):
    """A template does not have the structure that its change expects."""


class Draft:
    """A document under change. Callers may change all its parts."""

    __slots__ = ("_before", "document")

    def __init__(self, document: Unstructured) -> None:
        self.document: Unstructured = _copy(document)
        self._before = document

    def mapping(self, path: Path) -> dict[str, Any]:
        """The object at a path. Creates it if it is missing.

        Raises:
            UnexpectedTemplateError: The path has another type of value.
        """
        at = self.document
        for depth, key in enumerate(path, 1):
            found = at.get(key)
            if found is None:
                found = at[key] = {}
            if not is_object(found):
                raise UnexpectedTemplateError(f"{'.'.join(path[:depth])} is not an object")
            at = found
        return at

    def sequence(self, path: Path) -> list[Any]:
        """The list at a path. Creates it if it is missing.

        Raises:
            UnexpectedTemplateError: The path has another type of value.
        """
        holder, key = self.mapping(path[:-1]), path[-1]
        if holder.get(key) is None:
            holder[key] = []
        found = holder[key]
        if not is_list(found):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is not a list")
        return found

    def json_patch(self) -> list[Operation]:
        """The steps from the original to the current state."""
        return json_patch(self._before, self.document)
