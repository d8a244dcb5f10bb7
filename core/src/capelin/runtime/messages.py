"""What requests and responses are made of, and how they are read from JSON as Go reads them."""

import base64
import binascii
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin

import orjson
from annotated_types import Ge, Le
from pydantic import BeforeValidator, ConfigDict, PlainSerializer, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from capelin.api import Model, Unstructured

ModelT = TypeVar("ModelT", bound=Model)

PLAIN_STRING = WithJsonSchema({"type": "string"})
"""For values that Cluster API's document names only in words."""

_WITHOUT_WORDS = {"value_error": "Value error", "assertion_error": "Assertion failed"}
"""What is told of errors whose words are the validator's own, which may hold the value."""

Status = Literal["Success", "Failure"]
"""How a call went. A failure never travels as an HTTP status."""

Int32 = Annotated[
    int, Ge(-(2**31)), Le(2**31 - 1), WithJsonSchema({"type": "integer", "format": "int32"})
]
"""Go's `int32`."""

Int64 = Annotated[
    int, Ge(-(2**63)), Le(2**63 - 1), WithJsonSchema({"type": "integer", "format": "int64"})
]
"""Go's `int64`."""


@dataclass(frozen=True, slots=True)
class Go:
    """The Go type whose schema a field has, where Capelin keeps the JSON as it came."""

    type: str


@dataclass(frozen=True, slots=True)
class Required:
    """Marks a field that the OpenAPI document requires, and that may be missing when it is read.

    Go reads a missing field as its zero value. So a rule can name what is wrong with it.
    """


Json = Annotated[Any, Go("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON")]
"""Any JSON value."""

RawExtension = Annotated[Unstructured, Go("k8s.io/apimachinery/pkg/runtime.RawExtension")]
"""An object of a kind that only its provider knows."""


def is_whole(number: object) -> TypeGuard[int]:
    """Whether JSON writes a number such that Go reads it as an integer: not 2.0, and not True."""
    return type(number) is int


def _from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise PydanticCustomError("base64", "Input should be base64") from None


Bytes = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), return_type=str),
    WithJsonSchema({"type": "string", "format": "byte"}),
]
"""Go's `[]byte`: base64 on the wire."""


class MessageError(ValueError):
    """A request or response that is not what its hook says it is."""


class Part(Model):
    """A piece of a message."""

    # Most processes use a few hooks only: what the others need is built when they are first used.
    model_config = ConfigDict(defer_build=True)


class Message(Part):
    """A request or a response: its fields, and what it says it is."""

    api_version: str = ""
    kind: str = ""


class Request(Message):
    """What every request carries, except the one for discovery."""

    settings: dict[str, str] = {}
    """What the ExtensionConfig and the ClusterClass say to the handler."""


class Response(Message):
    """What every response carries."""

    status: Status
    message: str = ""
    """What people are told, in conditions and logs. Never holds a secret or a changing value."""


class RetryResponse(Response):
    """A response that can hold the caller back for a while."""

    retry_after_seconds: Int32
    """When to ask again. 0 lets the caller go on."""


def read_json(model: type[ModelT], data: bytes) -> ModelT:
    """Read a message from what came over the wire.

    Raises:
        MessageError: it is not JSON, or not a message of this type.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    return read(model, document)


def read(model: type[ModelT], document: object) -> ModelT:
    """Read a message from JSON values.

    What says exactly what the types say takes the quick way. The rest is read as Go does: names
    in any case, `null` for nothing, 0 for a number that is not there, unknown fields passed over.

    Raises:
        MessageError: it is not a message of this type.
    """
    try:
        return model.model_validate(document)
    except ValidationError:
        try:
            return model.model_validate(_as_go_reads(model, document), extra="ignore")
        except ValidationError as error:
            raise MessageError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """What is wrong where, without the values: some are secrets, and some change by themselves."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {_words(problem)}"
        if problem["loc"]
        else _words(problem)
        for problem in error.errors()
    )


def _words(problem: ErrorDetails) -> str:
    return _WITHOUT_WORDS.get(problem["type"], problem["msg"])


Reading = Callable[[Any], Any]
"""Gives a value the field names, and takes the nulls, that its type expects."""


def _as_go_reads(model: type[Model], document: object) -> object:
    return _reading_of_model(model)(document)


@cache
def _reading_of_model(model: type[Model]) -> Reading:
    """How to read JSON for a model; worked out once, as newer callers always send new fields."""
    fields: dict[str, tuple[str, Reading | None, object]] = {}
    numbers: dict[str, object] = {}

    def read_fields(document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        known: dict[str, Any] = dict(numbers)
        for key, value in cast("dict[str, Any]", document).items():
            if (field := fields.get(key) or fields.get(key.casefold())) is None:
                continue
            name, reading, nothing = field
            if value is None:
                if nothing is not None:
                    known[name] = nothing
            else:
                known[name] = value if reading is None else reading(value)
        return known

    for field in model.model_fields.values():
        name = str(field.validation_alias)
        nothing = _zero(field.annotation) if field.is_required() else None
        fields[name] = fields[name.casefold()] = (name, _reading(field.annotation), nothing)
        if isinstance(nothing, int):
            numbers[name] = nothing
    return read_fields


def _reading(declared: Any) -> Reading | None:
    """How to read a value; `None` for as it is."""
    for option in _options(declared):
        if isinstance(option, type) and issubclass(option, Model):
            return partial(_as_go_reads, option)
        if get_origin(option) in (list, dict):
            inner = _reading(get_args(option)[-1])
            if inner is not None:
                return _reading_of_each(inner)
    return None


def _reading_of_each(reading: Reading) -> Reading:
    def read_each(value: Any) -> Any:
        if isinstance(value, list):
            return [reading(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {key: reading(item) for key, item in cast("dict[str, Any]", value).items()}
        return value

    return read_each


def _zero(declared: Any) -> object:
    """What Go makes of a field when nothing is said; reading copies it."""
    for option in _options(declared):
        kind = get_origin(option) or option
        if kind in (list, dict, str, int):
            return cast("object", kind())
    return None


def _options(declared: Any) -> Iterator[Any]:
    origin = get_origin(declared)
    if origin is Annotated:
        yield from _options(get_args(declared)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(declared):
            yield from _options(option)
    else:
        yield declared
