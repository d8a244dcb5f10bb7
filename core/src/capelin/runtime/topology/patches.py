"""Patches between JSON documents: minimal, and always the same for the same change.

Two documents are the same if their JSON is, in any order of their fields: 1, 1.0 and true differ,
although Python calls them equal.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

import orjson

from capelin.json_patches import PatchError, apply_json_patch, apply_merge_patch

Operation = dict[str, Any]
"""One step of a JSON Patch (RFC 6902)."""


_MISSING = object()

_kind: Callable[[object], object] = type


class UnreadablePatchError(PatchError):
    """A patch that does not match its type."""


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def json_patch(before: Any, after: Any) -> list[Operation]:
    """The steps from one document to another (RFC 6902).

    Fields come in alphabetical order. In a list, equal items at the beginning and the end stay
    untouched, and the rest is compared by position.
    """
    steps: list[Operation] = []
    _compare(before, after, "", steps)
    return steps


def merge_patch(before: Any, after: Any) -> Any:
    """The fields that change from one document to another (RFC 7386).

    Raises:
        PatchError: A field becomes null, which this kind of patch cannot express.
    """
    if is_object(before) and is_object(after):
        return _merge(before, after, "")
    if is_object(after):
        _refuse_null(after, "the document")
    return after


def _merge(before: dict[str, Any], after: dict[str, Any], path: str) -> dict[str, Any]:
    patch: dict[str, Any] = dict.fromkeys(sorted(before.keys() - after.keys()))
    for key in sorted(after):
        was, value = before.get(key), after[key]
        if key in before and same(was, value):
            continue
        here = f"{path}.{key}" if path else key
        if is_object(was) and is_object(value):
            patch[key] = _merge(was, value, here)
        else:
            _refuse_null(value, here)
            patch[key] = value
    return patch


def apply_patch(document: Any, patch_type: str, patch: bytes) -> Any:
    """The document after a hook's patch, which is decoded from base64.

    Raises:
        UnreadablePatchError: It is not JSON, or not a list of steps.
        PatchError: It does not apply to the document.
    """
    try:
        decoded = orjson.loads(patch)
    except orjson.JSONDecodeError:
        raise UnreadablePatchError("a patch is not JSON") from None
    if patch_type == "JSONMergePatch":
        return apply_merge_patch(document, decoded)
    if not is_list(decoded) or not all(is_object(step) for step in decoded):
        raise UnreadablePatchError("a JSON Patch is not a list of steps")
    return apply_json_patch(document, decoded)


def same(document: Any, other: Any) -> bool:
    """Whether two documents are the same JSON."""
    return document is other or bool(document == other and _equals_are_same(document, other))


def _equals_are_same(document: Any, other: Any) -> bool:
    """Whether documents that are equal in Python are the same JSON: to Python, true is 1."""
    kind = _kind(document)
    if kind is str:
        return True
    if kind is not _kind(other):
        return False
    if kind is not dict and kind is not list:
        return True
    # Deeper differences show in the text.
    return orjson.dumps(document) == orjson.dumps(other) or _canonical(document) == _canonical(
        other
    )


def _canonical(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _compare(before: Any, after: Any, path: str, steps: list[Operation]) -> None:
    kind, other = _kind(before), _kind(after)
    if kind is dict and other is dict:
        _compare_objects(before, after, path, steps)
    elif kind is list and other is list:
        _compare_lists(before, after, path, steps)
    elif not same(before, after):
        steps.append({"op": "replace", "path": path, "value": after})


def _compare_objects(
    before: dict[str, Any], after: dict[str, Any], path: str, steps: list[Operation]
) -> None:
    different: list[str] = []
    new = len(after)
    for key, value in before.items():
        other = after.get(key, _MISSING)
        if other is _MISSING:
            different.append(key)
            continue
        new -= 1
        # A copy shares strings and numbers with the original.
        if other is not value and (other != value or not _equals_are_same(value, other)):
            different.append(key)
    if new:
        different += [key for key in after if key not in before]
    if len(different) > 1:
        different.sort()
    for key in different:
        value, other = before.get(key, _MISSING), after.get(key, _MISSING)
        here = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if other is _MISSING:
            steps.append({"op": "remove", "path": here})
        elif value is _MISSING:
            steps.append({"op": "add", "path": here, "value": other})
        else:
            _compare(value, other, here, steps)


def _compare_lists(before: list[Any], after: list[Any], path: str, steps: list[Operation]) -> None:
    was, now = len(before), len(after)
    # Most lists only grow at their end.
    if was < now and same(before, after[:was]):
        new = range(was, now)
        steps += [{"op": "add", "path": f"{path}/{i}", "value": after[i]} for i in new]
        return
    start, end = _same_ends(before, after)
    both = min(was, now) - end
    for index in range(start, both):
        _compare(before[index], after[index], f"{path}/{index}", steps)
    # From the back, so that a removal does not change the positions of the next ones.
    gone = range(was - end - 1, both - 1, -1)
    steps += [{"op": "remove", "path": f"{path}/{index}"} for index in gone]
    new = range(both, now - end)
    steps += [{"op": "add", "path": f"{path}/{i}", "value": after[i]} for i in new]


def _same_ends(before: list[Any], after: list[Any]) -> tuple[int, int]:
    """The number of equal items at the beginning of two lists, and then at their end."""
    shorter = min(len(before), len(after))
    start = end = 0
    while start < shorter and same(before[start], after[start]):
        start += 1
    while end < shorter - start and same(before[-1 - end], after[-1 - end]):
        end += 1
    return start, end


def _refuse_null(value: Any, path: str) -> None:
    """Reject values that would disappear: in a merge patch, null means to remove."""
    if value is None:
        raise PatchError(f"a merge patch cannot set {path} to null: use a JSON Patch")
    if is_object(value):
        for key, inner in value.items():
            _refuse_null(inner, f"{path}.{key}")
