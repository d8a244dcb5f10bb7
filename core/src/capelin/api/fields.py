"""Types of fields. All have bounds, from which the API server computes the cost of rules."""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from capelin.api.rules import Marker, Schema

# Numbers


@dataclass(frozen=True, slots=True)
class _Format(Marker):
    name: str

    def mark(self, schema: Schema) -> None:
        schema["format"] = self.name


Int32 = Annotated[int, Ge(-(2**31)), Le(2**31 - 1), _Format("int32")]
"""A number that fits Go's `int32`."""

Int64 = Annotated[int, Ge(-(2**53)), Le(2**53), _Format("int64")]
"""A number that fits Go's `int64` and is exact in every JSON parser."""

Replicas = Annotated[Int32, Ge(0)]
"""A number of replicas."""

Port = Annotated[int, Ge(1), Le(65535)]
"""A TCP or UDP port."""

# Names

DNSLabel = Annotated[str, MinLen(1), MaxLen(63), Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A name without dots, such as that of a namespace or Service."""

DNSSubdomain = Annotated[
    str,
    MinLen(1),
    MaxLen(253),
    Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
"""A name that may have dots, such as that of most objects."""

Host = Annotated[str, MinLen(1), MaxLen(512)]
"""A DNS name or an IP address."""

LabelValue = Annotated[
    str, MaxLen(63), Field(pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
]
"""The value of a label."""


def with_v(version: str) -> str:
    """A Kubernetes version with the `v` that the contract requires."""
    return version if version.startswith("v") else f"v{version}"


StoredKubernetesVersion = Annotated[
    str,
    MaxLen(64),
    Field(pattern=r"^v?[0-9]{1,3}\.[0-9]{1,4}\.[0-9]{1,4}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"),
]
"""A Kubernetes version as a user wrote it, perhaps without the `v`."""

KubernetesVersion = Annotated[StoredKubernetesVersion, AfterValidator(with_v)]
"""A Kubernetes version, `v1.36.3`. A missing `v` is added when it is read."""

# Numbers or strings

IntOrPercent = (
    Annotated[int, Ge(0), Le(2**31 - 1)]
    | Annotated[str, MaxLen(4), Field(pattern=r"^[0-9]{1,3}%$")]
)
"""A number or a percentage such as `25%`."""

Quantity = (
    Annotated[int, Ge(0), Le(2**53)]
    | Annotated[
        str,
        MaxLen(32),
        Field(
            pattern=r"^([0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9})"
            r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
        ),
    ]
)
"""An amount of a resource: `500m`, `1.5Gi`, `4`."""

_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {
    letter: Decimal(1000) ** power
    for letter, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
}


def amount(quantity: int | str) -> Decimal:
    """The value of a quantity: `amount("1.5Ki") == 1536`."""
    text = str(quantity)
    for suffix, factor in (_BINARY | _DECIMAL).items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


# Durations

_COUNT = "[0-9]{1,6}"
_SIXTY = "[0-5]?[0-9]"
_FRACTION = r"(\.[0-9]{1,3})?"
# Formatting any value that matches gives text that matches.
_PATTERN = (
    f"^(0|{_COUNT}{_FRACTION}[hms]|{_COUNT}ms|{_COUNT}h{_SIXTY}m"
    f"|({_COUNT}h({_SIXTY}m)?|{_COUNT}m){_SIXTY}{_FRACTION}s)$"
)
_SHAPE = re.compile(_PATTERN)
_PARTS = re.compile(r"([0-9.]{1,10})(h|ms|m|s)")
_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_FINEST = timedelta(milliseconds=1)
_LONGEST = timedelta(hours=999_999, minutes=59, seconds=59, milliseconds=999)


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `1h30m`, `1.5s` or `200ms`."""
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration (examples: 1h30m, 90s, 1.5s, 200ms)")
    found: list[tuple[str, str]] = _PARTS.findall(text)
    return sum((float(number) * _UNITS[unit] for number, unit in found), timedelta())


def format_duration(span: timedelta) -> str:
    """Format a duration as Go does: `1h30m0s`."""
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

`Ge`, `Gt`, `Le` and `Lt` with a `timedelta` set its bounds. The CRD expresses them as rules.
"""


# Lists and maps


@dataclass(frozen=True, slots=True)
class ListKind(Marker):
    """How server-side apply merges a list."""

    type: Literal["map", "set"]
    keys: tuple[str, ...] = ()

    def mark(self, schema: Schema) -> None:
        """Set the list type. The items must have the keys."""
        items: Schema = schema["items"]
        for key in self.keys:
            if "default" not in items.get("properties", {}).get(key, {}) and key not in items.get(
                "required", ()
            ):
                raise ValueError(f"the items of a list by {key} need a required field {key}")
        schema["x-kubernetes-list-type"] = self.type
        if self.keys:
            schema["x-kubernetes-list-map-keys"] = list(self.keys)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Reject duplicates in Python too."""
        return core_schema.no_info_after_validator_function(self._each_once, handler(source))

    def _each_once(self, items: list[Any]) -> list[Any]:
        seen: set[Hashable] = set()
        for item in items:
            key = tuple(_named(item, key) for key in self.keys) if self.keys else item
            if key in seen:
                shown = ", ".join(map(str, key)) if self.keys else str(item)
                raise ValueError(f"{shown} is in the list twice")
            seen.add(key)
        return items


def _named(item: BaseModel, key: str) -> object:
    for name, field in type(item).model_fields.items():
        if field.serialization_alias == key:
            return getattr(item, name)
    raise TypeError(f"{type(item).__name__} has no field {key}")


def map_list(*keys: str) -> ListKind:
    """A list of objects with unique keys, merged by key: `map_list("providerID")`."""
    return ListKind("map", keys)


def set_list() -> ListKind:
    """A list of unique values, merged by value."""
    return ListKind("set")


@dataclass(frozen=True, slots=True)
class Atomic(Marker):
    """A list, map or object with one owner in server-side apply."""

    def mark(self, schema: Schema) -> None:
        """Change the schema of the field."""
        kind = "list" if schema["type"] == "array" else "map"
        schema[f"x-kubernetes-{kind}-type"] = "atomic"


def atomic() -> Atomic:
    """A list, map or object that server-side apply replaces as a whole."""
    return Atomic()


# JSON of any shape


@dataclass(frozen=True, slots=True)
class FreeForm(Marker):
    """JSON that the API server stores without validation."""

    def mark(self, schema: Schema) -> None:
        """Change the schema of the field."""
        schema.pop("additionalProperties", None)
        schema["x-kubernetes-preserve-unknown-fields"] = True


AnyValue = Annotated[Any, FreeForm()]
"""Any JSON value, stored as it is."""

AnyObject = Annotated[dict[str, Any], FreeForm()]
"""Any JSON object, stored as it is."""
