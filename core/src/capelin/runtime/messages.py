"""The base types of requests and responses, and a reader for JSON that follows Go's rules."""

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
"""For values that Cluster API's document describes only in prose."""

_WITHOUT_WORDS = {"value_error": "Value error", "assertion_error": "Assertion failed"}
"""Error types whose message comes from the validator, and may contain the value."""

Status = Literal["Success", "Failure"]
"""The result of a call. A failure never travels as an HTTP status."""

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
    """The Go type whose schema a field has, if Capelin keeps the JSON unchanged."""

    type: str


@dataclass(frozen=True, slots=True)
class Required:
    """Marks a field that the OpenAPI document requires, but that a message may omit.

    Go reads a missing field as its zero value. So a rule can name the problem with it.
    """


Json = Annotated[Any, Go("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON")]
"""Any JSON value."""

RawExtension = Annotated[Unstructured, Go("k8s.io/apimachinery/pkg/runtime.RawExtension")]
"""An object of a kind that only its provider defines."""


def is_whole(number: object) -> TypeGuard[int]:
    """Whether Go reads the number as an integer: not 2.0, and not True."""
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
    """A request or response that does not match its hook's type."""


class Part(Model):
    """A piece of a message."""

    # Most processes use only a few hooks, so types are built on first use.
    model_config = ConfigDict(defer_build=True)


class Message(Part):
    """A request or a response: its fields, its version and its kind."""

    api_version: str = ""
    kind: str = ""


class Request(Message):
    """Base of every request except discovery."""

    settings: dict[str, str] = {}
    """The settings of the ExtensionConfig and the ClusterClass for the handler."""


class Response(Message):
    """Base of every response."""

    status: Status
    message: str = ""
    """Message for people, in conditions and logs. Never a secret or a changing value."""


class RetryResponse(Response):
    """A response that can make the caller wait."""

    retry_after_seconds: Int32
    """Seconds until the next call. 0 lets the caller continue."""


def read_json(model: type[ModelT], data: bytes) -> ModelT:
    """Read a message from its wire format.

    Raises:
        MessageError: It is not JSON, or not a message of this type.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    return read(model, document)


def read(model: type[ModelT], document: object) -> ModelT:
    """Read a message from JSON values.

    Exact matches take the fast path. Others follow Go's rules: names in any case, `null` as
    nothing, 0 for a missing number, and unknown fields ignored.

    Raises:
        MessageError: It is not a message of this type.
    """
    try:
        return model.model_validate(document)
    except ValidationError:
        try:
            return model.model_validate(_as_go_reads(model, document), extra="ignore")
        except ValidationError as error:
            raise MessageError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """The problems by field, without values, which may be secret or change by themselves."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {_words(problem)}"
        if problem["loc"]
        else _words(problem)
        for problem in error.errors()
    )


def _words(problem: ErrorDetails) -> str:
    return _WITHOUT_WORDS.get(problem["type"], problem["msg"])


Reading = Callable[[Any], Any]
"""Changes a value to the field names of its type, and replaces nulls."""


def _as_go_reads(model: type[Model], document: object) -> object:
    return _reading_of_model(model)(document)


@cache
def _reading_of_model(model: type[Model]) -> Reading:
    """The reading for a model, computed once, because newer callers always send new fields."""
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
    """The reading for a value, or `None` to leave it unchanged."""
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
    """Go's zero value of a field. Reading copies it."""
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
