"""Types for the fields of a kind: bounded, so that the API server can weigh rules about them."""

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
"""A number that fits Go's `int64`, and that JSON says exactly everywhere."""

Replicas = Annotated[Int32, Ge(0)]
"""How many there are, or should be."""

Port = Annotated[int, Ge(1), Le(65535)]
"""A port of TCP or UDP."""

# Names

DNSLabel = Annotated[str, MinLen(1), MaxLen(63), Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A name without dots, as of namespaces and services."""

DNSSubdomain = Annotated[
    str,
    MinLen(1),
    MaxLen(253),
    Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
"""A name that may have dots, as of most objects."""

Host = Annotated[str, MinLen(1), MaxLen(512)]
"""A DNS name or an IP address."""

LabelValue = Annotated[
    str, MaxLen(63), Field(pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
]
"""The value of a label."""


def _with_v(version: str) -> str:
    return version if version.startswith("v") else f"v{version}"


KubernetesVersion = Annotated[
    str,
    MaxLen(64),
    Field(pattern=r"^v?[0-9]{1,3}\.[0-9]{1,4}\.[0-9]{1,4}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"),
    AfterValidator(_with_v),
]
"""A version of Kubernetes, `v1.34.4`; the contract also takes it without the `v`, and adds it."""

# Numbers or strings

IntOrPercent = (
    Annotated[int, Ge(0), Le(2**31 - 1)]
    | Annotated[str, MaxLen(4), Field(pattern=r"^[0-9]{1,3}%$")]
)
"""A number, or a share such as `25%`."""

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
    """The number that a quantity says: `amount("1.5Ki") == 1536`."""
    text = str(quantity)
    for suffix, factor in (_BINARY | _DECIMAL).items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


# Durations

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


# Lists and maps


@dataclass(frozen=True, slots=True)
class ListKind(Marker):
    """How server-side apply merges a list."""

    type: Literal["map", "set"]
    keys: tuple[str, ...] = ()

    def mark(self, schema: Schema) -> None:
        """Say it, having seen that the items have the keys."""
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
        """Refuse in Python too what stands in the list twice."""
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
    """A list of objects, each known by its keys: `map_list("providerID")`."""
    return ListKind("map", keys)


def set_list() -> ListKind:
    """A list of values, each in it once."""
    return ListKind("set")


@dataclass(frozen=True, slots=True)
class Atomic(Marker):
    """A list, map or object that has one owner in server-side apply."""

    def mark(self, schema: Schema) -> None:
        """Say it."""
        kind = "list" if schema["type"] == "array" else "map"
        schema[f"x-kubernetes-{kind}-type"] = "atomic"


def atomic() -> Atomic:
    """A list, map or object that has one owner: whoever applies it replaces all of it."""
    return Atomic()


# JSON of any shape


@dataclass(frozen=True, slots=True)
class FreeForm(Marker):
    """JSON that the API server keeps without knowing it."""

    embedded: bool = False

    def mark(self, schema: Schema) -> None:
        """Say it."""
        schema.pop("additionalProperties", None)
        schema["x-kubernetes-preserve-unknown-fields"] = True
        if self.embedded:
            schema["x-kubernetes-embedded-resource"] = True


_API_VERSION = re.compile(r"[^/]+(/[^/]+)?")
_KIND = re.compile(r"[A-Za-z]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def _whole_object(value: dict[str, Any]) -> dict[str, Any]:
    for key, shape in (("apiVersion", _API_VERSION), ("kind", _KIND)):
        said = value.get(key)
        if not isinstance(said, str) or not shape.fullmatch(said):
            raise ValueError(f"a Kubernetes object has to say its {key}, and not {said!r}")
    return value


AnyValue = Annotated[Any, FreeForm()]
"""Any JSON value, kept as it is."""

AnyObject = Annotated[dict[str, Any], FreeForm()]
"""A JSON object of any shape, kept as it is."""

EmbeddedObject = Annotated[dict[str, Any], AfterValidator(_whole_object), FreeForm(embedded=True)]
"""A Kubernetes object of any kind inside another; the API server checks its metadata too."""

__all__ = [
    "AnyObject",
    "AnyValue",
    "Atomic",
    "DNSLabel",
    "DNSSubdomain",
    "Duration",
    "EmbeddedObject",
    "FreeForm",
    "Host",
    "Int32",
    "Int64",
    "IntOrPercent",
    "KubernetesVersion",
    "LabelValue",
    "ListKind",
    "Port",
    "Quantity",
    "Replicas",
    "amount",
    "atomic",
    "format_duration",
    "map_list",
    "parse_duration",
    "set_list",
]
