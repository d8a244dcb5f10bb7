"""Applies JSON patches (RFC 6902) and merge patches (RFC 7386).

The `jsonpatch` library would do the same in as many lines of wrappers: its `test` takes `true` for
1, and its errors of malformed steps have six types.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

Operation = Mapping[str, Any]
"""One step of a JSON patch."""


class PatchError(ValueError):
    """A patch that cannot be created, or does not apply to its document."""


def apply_json_patch(document: Any, patch: Iterable[Operation]) -> Any:
    """The document after the steps. The argument stays unchanged.

    Raises:
        PatchError: a step does not fit.
    """
    # A step can replace the whole document, so the document is itself a member.
    outside = {"": deepcopy(document)}
    for step in patch:
        try:
            _STEPS[step["op"]](outside, step)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            shown = json.dumps(step, separators=(",", ":"), ensure_ascii=False)
            raise PatchError(f"the step {shown} does not fit the document") from error
    return outside[""]


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """The document with the patch's fields. The argument stays unchanged."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(cast("dict[str, Any]", document)) if isinstance(document, dict) else {}
    for key, value in cast("dict[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def _place(document: Any, path: str) -> tuple[Any, Any]:
    """The object or list that holds the value at a path, and its key or index there."""
    holder: Any = document
    first, *rest = path.split("/")
    keys = [first, *(part.replace("~1", "/").replace("~0", "~") for part in rest)]
    for key in keys[:-1]:
        holder = holder[_key(holder, key)]
    return holder, _key(holder, keys[-1])


def _key(holder: Any, key: str) -> Any:
    if not isinstance(holder, list):
        return key
    if key == "-":
        return len(cast("list[Any]", holder))
    if not key.isdecimal():
        raise ValueError(key)
    return int(key)


def _get(document: Any, path: str) -> Any:
    holder, key = _place(document, path)
    return holder[key]


def _add(document: Any, step: Operation) -> None:
    holder, key = _place(document, step["path"])
    value = deepcopy(step["value"])
    if not isinstance(holder, list):
        holder[key] = value
    elif key <= len(cast("list[Any]", holder)):
        cast("list[Any]", holder).insert(key, value)
    else:
        raise IndexError(key)


def _remove(document: Any, step: Operation) -> None:
    holder, key = _place(document, step["path"])
    del holder[key]


def _replace(document: Any, step: Operation) -> None:
    holder, key = _place(document, step["path"])
    holder[key]  # it has to exist
    holder[key] = deepcopy(step["value"])


def _copy(document: Any, step: Operation) -> None:
    _add(document, {"path": step["path"], "value": _get(document, step["from"])})


def _move(document: Any, step: Operation) -> None:
    value = _get(document, step["from"])
    _remove(document, {"path": step["from"]})
    _add(document, {"path": step["path"], "value": value})


def _test(document: Any, step: Operation) -> None:
    # To Python, true is 1.
    actual, expected = _get(document, step["path"]), step["value"]
    if json.dumps(actual, sort_keys=True) != json.dumps(expected, sort_keys=True):
        raise ValueError(step["path"])


_STEPS: dict[str, Callable[[Any, Operation], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "copy": _copy,
    "move": _move,
    "test": _test,
}
