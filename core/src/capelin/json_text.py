"""Reads JSON with a bound on nesting, and finds its parts without parsing the rest."""

import re
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

from pydantic_core import from_json

MAX_LEVELS: Final = 200
"""How deep objects may be nested: the limit of pydantic's parser."""
TOO_DEEP: Final = f"it has more than {MAX_LEVELS} nested levels"
NOT_JSON: Final = "it is not JSON"

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^][{}\",: \t\r\n]++")
_NEXT_BRACKETS: Final = re.compile(
    rb'(?:[^\]\[{}"]++|"(?:[^"\\]++|\\.)*+")*+(?:([\[{]++)|[\]}])', re.DOTALL
)
_OPEN, _CLOSE, _QUOTE = b"[{", b"]}", ord('"')
_STEPS: Final = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
"""An opening bracket is a step of 1, a closing one a step of -1 in a signed byte."""
_LEAF: Final = b"\x01\xff"
_NOT_MARKS: Final = bytes(set(range(256)) - {*_OPEN, *_CLOSE, _QUOTE})


class TooDeepError(ValueError):
    """The JSON has too many nested levels."""


class Part(NamedTuple):
    """A member of an object, or an item of a list, which has no key."""

    key: str
    value: bytes


def read_json(data: bytes) -> Any:
    """Parse JSON.

    Python's own parser accepts five times as many levels, but validating, copying or writing the
    result would then fail with `RecursionError`.

    Raises:
        TooDeepError: it has more than `MAX_LEVELS` nested levels.
        ValueError: it is not JSON.
    """
    try:
        return from_json(data)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise TooDeepError(TOO_DEEP) from None
        raise ValueError(NOT_JSON) from None


def levels(data: bytes) -> int:
    """How deep JSON is nested, for less time than parsing takes."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_STEPS, _NOT_MARKS)
    # Without escapes, each second part between quotes is outside of strings.
    steps = b"".join(plain.replace(b'""', b"").split(b'"')[::2])
    # Most brackets enclose no others.
    without_leaves = array("b", steps.replace(_LEAF, b""))
    return max(accumulate(without_leaves), default=0) + (_LEAF in steps)


def values(data: bytes) -> int:
    """How many values JSON has at most, for less time than parsing takes.

    Each value but the outermost one follows a comma or an opening bracket. In broken JSON, strings
    may follow each other.
    """
    strings = data.count(b'"') // 2
    return max(data.count(b",") + data.count(b"[") + data.count(b"{"), strings // 2)


def members(data: bytes) -> Iterator[Part]:
    """The members of an object, in order. Values are neither parsed nor checked.

    Raises:
        ValueError: the data is not an object.
    """
    position = _skip(data, _expect(data, 0, b"{"))
    while not data.startswith(b"}", position):
        key = _match(_STRING, data, position)
        start = _skip(data, _expect(data, key.end(), b":"))
        end = _end(data, start)
        yield Part(cast("str", read_json(key[0])), data[start:end])
        position = _next(data, end, b"}")


def items(data: bytes) -> Iterator[bytes]:
    """The items of a list in order, or no items for null. They are neither parsed nor checked.

    Raises:
        ValueError: the data is neither a list nor null.
    """
    if data.strip() == b"null":
        return
    position = _skip(data, _expect(data, 0, b"["))
    while not data.startswith(b"]", position):
        end = _end(data, position)
        yield data[position:end]
        position = _next(data, end, b"]")


def metadata_of(data: bytes) -> dict[str, Any]:
    """The metadata of an object of any depth. Omits managed fields, which are just as deep."""
    metadata: dict[str, Any] = {}
    try:
        found = next((part.value for part in members(data) if part.key == "metadata"), b"{}")
        for key, value in members(found):
            if key != "managedFields":
                metadata[key] = read_json(value)
    except ValueError:
        return metadata
    return metadata


def _end(data: bytes, start: int) -> int:
    """Where the value that begins at `start` ends. A loop: values may have any depth."""
    first = data[start : start + 1]
    if first == b'"':
        return _match(_STRING, data, start).end()
    if not first or first not in _OPEN:
        return _match(_SCALAR, data, start).end()
    levels = 0
    position = start
    while (brackets := _NEXT_BRACKETS.match(data, position)) is not None:
        position = brackets.end()
        levels += position - brackets.start(1) if brackets[1] else -1
        if levels == 0:
            return position
    raise ValueError(NOT_JSON)


def _next(data: bytes, end: int, closing: bytes) -> int:
    """The position of the next part, or of the closing bracket."""
    position = _skip(data, end)
    return (
        position
        if data.startswith(closing, position)
        else _skip(data, _expect(data, position, b","))
    )


def _expect(data: bytes, position: int, character: bytes) -> int:
    position = _skip(data, position)
    if not data.startswith(character, position):
        raise ValueError(NOT_JSON)
    return position + 1


def _skip(data: bytes, position: int) -> int:
    return _match(_SPACE, data, position).end()


def _match(pattern: re.Pattern[bytes], data: bytes, position: int) -> re.Match[bytes]:
    found = pattern.match(data, position)
    if found is None:
        raise ValueError(NOT_JSON)
    return found
