"""Counts the parts of a compiled expression that let values grow.

CEL bounds how many steps an evaluation has, and not how large its values are. The text is the wrong
thing to count in: quotes, comments and raw texts hide the operators from everything but the parser.
So the counts are of the parsed expression, which the library gives as a `cel.expr.CheckedExpr` in
Protobuf's wire format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_VALUE: Final = 2
"""Of `google.protobuf.Any`."""
_EXPRESSION: Final = 4
"""Of a `CheckedExpr`."""
_IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 4, 5, 6, 7, 8, 9
"""Kinds of an `Expr`."""
_NAME: Final = 1
_OPERAND: Final = 1
_TARGET, _FUNCTION, _ARGUMENTS = 1, 2, 3
_ELEMENTS: Final = 1
_ENTRIES, _KEY, _ENTRY_VALUE = 2, 3, 4
_PARTS_OF_COMPREHENSIONS: Final = (2, 4, 5, 6, 7)
_VARIABLE: Final = 1
_ADD: Final = b"_+_"
_ACCUMULATOR: Final = b"@result"
"""The name that macros give the value that they build. No expression can use it."""

_Message = dict[int, list[bytes]]


@dataclass(slots=True)
class Growth:
    """How often an expression makes values larger."""

    additions: int = 0
    maps: int = 0


def growth(serialized: bytes) -> Growth:
    """Count in an expression as the library serializes it."""
    found = Growth()
    checked = _message(_message(serialized)[_VALUE][0])
    _count(checked[_EXPRESSION][0], (), found)
    return found


def _count(expression: bytes, variables: tuple[bytes, ...], found: Growth) -> None:
    """Count in an expression within the comprehensions of these variables."""
    for kind, contents in _message(expression).items():
        if kind not in (_SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION):
            continue
        message = _message(contents[0])
        parts: list[bytes] = []
        match kind:
            case 5:
                parts = message.get(_OPERAND, [])
            case 6:
                parts = [*message.get(_TARGET, []), *message.get(_ARGUMENTS, [])]
                if message.get(_FUNCTION) == [_ADD]:
                    _count_addition(parts, variables, found)
            case 7:
                parts = message.get(_ELEMENTS, [])
            case 8:
                for entry in map(_message, message.get(_ENTRIES, [])):
                    parts += [*entry.get(_KEY, []), *entry.get(_ENTRY_VALUE, [])]
            case _:
                parts = [part for name in _PARTS_OF_COMPREHENSIONS for part in message[name]]
                variables = (*variables, message[_VARIABLE][0])
        for part in parts:
            _count(part, variables, found)


def _count_addition(parts: list[bytes], variables: tuple[bytes, ...], found: Growth) -> None:
    """Distinguish additions in the text from those of the macros `map` and `exists_one`."""
    if _name(parts[0]) != _ACCUMULATOR:
        found.additions += 1
        return
    lists = _message(parts[1]).get(_LIST)
    if lists is None:
        # `exists_one` counts: it adds a number to a number.
        return
    added = _message(lists[0])[_ELEMENTS][0]
    # `filter` adds the variable itself, and creates no new value.
    if not variables or _name(added) != variables[-1]:
        found.maps += 1


def _name(expression: bytes) -> bytes | None:
    idents = _message(expression).get(_IDENT)
    return None if idents is None else _message(idents[0])[_NAME][0]


def _message(data: bytes) -> _Message:
    """The fields of a message that are messages or texts themselves."""
    message: _Message = {}
    for field, value in _fields(data):
        message.setdefault(field, []).append(value)
    return message


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        match key & 7:
            case 0:
                _, position = _varint(data, position)
            case 1:
                position += 8
            case 5:
                position += 4
            case _:
                length, position = _varint(data, position)
                yield key >> 3, data[position : position + length]
                position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position
