"""A document that is copied as far as it is asked for, and what has become of it."""

from collections.abc import Callable
from typing import Any

from pydantic_core import SchemaSerializer, core_schema

from capelin.api import Unstructured
from capelin.runtime.topology.patches import Operation, is_list, is_object, json_patch, pointer

_copy: Callable[[Any], Any] = SchemaSerializer(core_schema.any_schema()).to_python
"""Copies objects and lists, and shares texts and numbers: what stays the same is the very same."""

_MISSING = object()

Path = tuple[str, ...]


class UnexpectedTemplateError(ValueError):
    """A template that is not made as its change takes it to be."""


class CopyOnWrite:
    """A document in the making.

    Whatever was asked for is a copy with all that is in it, to be changed at will. All else is
    shared with the document, and nobody has to look for changes there.
    """

    __slots__ = ("_asked", "_before", "_opened", "document")

    def __init__(self, document: Unstructured) -> None:
        self.document: Unstructured = dict(document)
        """How it stands; not to be changed."""
        self._before = document
        self._opened: dict[Path, dict[str, Any]] = {(): self.document}
        """The objects on the way to what was asked for: copies that share what is in them."""
        self._asked: dict[Path, tuple[Any, Any]] = {}
        """What was asked for, before and now. Nothing in here is inside of something else."""

    def whole(self) -> Unstructured:
        if () not in self._asked:
            self._copy_the_rest((), self.document)
            self._asked[()] = self._before, self.document
        return self.document

    def mapping(self, path: Path) -> dict[str, Any]:
        """The object at a path; made where it is not there.

        Raises:
            UnexpectedTemplateError: there is something else.
        """
        found = self._at(path, dict)
        if not is_object(found):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is no object")
        return found

    def sequence(self, path: Path) -> list[Any]:
        """The list at a path; made where it is not there.

        Raises:
            UnexpectedTemplateError: there is something else.
        """
        found = self._at(path, list)
        if not is_list(found):
            raise UnexpectedTemplateError(f"{'.'.join(path)} is no list")
        return found

    def json_patch(self) -> list[Operation]:
        """The steps from the document to how it stands."""
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
        """The object at a path, and whether it is a copy with all that is in it."""
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
            raise UnexpectedTemplateError(f"{'.'.join(path)} is no object")
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
        """Copy what is not copied yet; what is stays itself, since somebody has it in hand."""
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
