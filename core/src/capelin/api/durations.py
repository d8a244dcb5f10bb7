"""Spans of time as Go writes them: `1h30m0s`."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

_COUNT = "[0-9]{1,6}"
_SIXTY = "[0-5]?[0-9]"
_FRACTION = r"(\.[0-9]{1,3})?"
# Every value that this lets through can be written again so that it lets it through.
_PATTERN = (
    f"^(0|{_COUNT}{_FRACTION}[hms]|{_COUNT}ms|{_COUNT}h{_SIXTY}m"
    f"|({_COUNT}h({_SIXTY}m)?|{_COUNT}m){_SIXTY}{_FRACTION}s)$"
)
_SHAPE = re.compile(_PATTERN)
_PARTS = re.compile(r"([0-9.]+)(h|ms|m|s)")
_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_FINEST = timedelta(milliseconds=1)
_LONGEST = timedelta(hours=999_999, minutes=59, seconds=59, milliseconds=999)


def parse_duration(text: str) -> timedelta:
    """The span of time that `1h30m`, `1.5s` or `200ms` says."""
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write it as 1h30m, 90s, 1.5s or 200ms")
    found: list[tuple[str, str]] = _PARTS.findall(text)
    return sum((float(number) * _UNITS[unit] for number, unit in found), timedelta())


def format_duration(span: timedelta) -> str:
    """A span of time as Go writes it: `1h30m0s`."""
    seconds, milliseconds = divmod(span // _FINEST, 1000)
    if not seconds and milliseconds:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}" + (f".{milliseconds:03}".rstrip("0") if milliseconds else "") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _read(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _checked(span: timedelta) -> timedelta:
    if not timedelta() <= span <= _LONGEST or span % _FINEST:
        raise ValueError(
            f"a duration lies between 0 and {format_duration(_LONGEST)}, in whole milliseconds"
        )
    return span


Duration = Annotated[
    timedelta,
    BeforeValidator(_read),
    AfterValidator(_checked),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "maxLength": 24, "pattern": _PATTERN}),
]
"""A span of time: a `timedelta` in Python, `1h30m0s` on the wire.

`Ge`, `Gt`, `Le` and `Lt` with a `timedelta` bound it; the CRD says so as a rule.
"""
