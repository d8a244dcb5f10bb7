"""A document that copies only the parts in use, and reports their changes."""

from collections.abc import Callable
from typing import Any

from pydantic_core import SchemaSerializer, core_schema

from capelin.api import Unstructured
from capelin.runtime.topology.patches import Operation, is_list, is_object, json_patch, pointer

_copy: Callable[[Any], Any] = SchemaSerializer(core_schema.any_schema()).to_python
"""Copies objects and lists, and shares strings and numbers: equal values stay identical."""

_MISSING = object()

Path = tuple[str, ...]


class UnexpectedTemplateError(ValueError):
    """A template does not have the structure that its change expects."""


class CopyOnWrite:
    """A document under change.

    Callers get copies of the parts that they request, with all content, and may change them. The
    copy shares all other parts with the original, and no search for changes is necessary there.
    """

    __slots__ = ("_asked", "_before", "_opened", "document")

    def __init__(self, document: Unstructured) -> None:
        self.document: Unstructured = dict(document)
        """The current state. Do not change it."""
        self._before = document
        self._opened: dict[Path, dict[str, Any]] = {(): self.document}
        """The objects above the requested parts: copies that share their content."""
        self._asked: dict[Path, tuple[Any, Any]] = {}
        """The requested parts, before and now. No part is inside another."""

    def whole(self) -> Unstructured:
        if () not in self._asked:
            self._copy_the_rest((), self.document)
            self._asked[()] = self._before, self.document
        return self.document

    def mapping(self, path: Path) -> dict[str, Any]:
        """The object at a path. Creates it if it is missing.

        Raises:
            UnexpectedTemplateError: The path has another type of value.
        """
        found = self._at(path, dict)
        if not is_object(found):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is not an object")
        return found

    def sequence(self, path: Path) -> list[Any]:
        """The list at a path. Creates it if it is missing.

        Raises:
            UnexpectedTemplateError: The path has another type of value.
        """
        found = self._at(path, list)
        if not is_list(found):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is not a list")
        return found

    def json_patch(self) -> list[Operation]:
        """The steps from the original to the current state."""
        steps: list[Operation] = []
        for path, (before, now) in sorted(self._asked.items()):
            where = pointer(path)
            if before is _MISSING:
                steps.append({"op": "add", "path": where, "value": now})
            else:
                steps += json_patch(before, now, where)
        return steps

    def _at(self, path: Path, make: Callable[[], Any]) -> Any:
        if path in self._asked:
            return self._asked[path][1]
        holder, copied = self._holder(path[:-1])
        key = path[-1]
        before = holder.get(key, _MISSING)
        if copied:
            if before is _MISSING or before is None:
                holder[key] = make()
            return holder[key]
        if before is _MISSING or before is None:
            now = make()
        elif path in self._opened:
            now = self._opened[path]
            before = self._found_before(path)
            self._copy_the_rest(path, now)
        else:
            now = _copy(before)
        holder[key] = now
        self._asked[path] = before, now
        return now

    def _holder(self, path: Path) -> tuple[dict[str, Any], bool]:
        """The object at a path, and whether it is a copy with all its content."""
        if path in self._opened:
            return self._opened[path], () in self._asked
        holder, copied = self._holder(path[:-1])
        key = path[-1]
        before = holder.get(key, _MISSING)
        if before is _MISSING or before is None:
            now: dict[str, Any] = {}
            if not copied:
                self._asked[path] = before, now
                copied = True
        elif not is_object(before):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is not an object")
        elif copied or path in self._asked:
            return before, True
        else:
            now = self._opened[path] = dict(before)
        holder[key] = now
        return now, copied

    def _found_before(self, path: Path) -> Any:
        found: Any = self._before
        for key in path:
            found = found[key]
        return found

    def _copy_the_rest(self, path: Path, now: dict[str, Any]) -> None:
        """Copy the remaining parts. Existing copies stay, because callers may hold them."""
        for key, value in now.items():
            inside = (*path, key)
            if self._asked.pop(inside, None) is not None:
                continue
            if inside in self._opened:
                self._copy_the_rest(inside, value)
            else:
                now[key] = _copy(value)
        if path:
            del self._opened[path]
