"""Types become the schema of a CRD or fail with a reason."""

# ruff: noqa: E501 - patterns are as long as they are

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from capelin.api import Model, Object, SchemaError, Time, Unstructured, crd, kind
from capelin.api.fields import (
    AnyObject,
    AnyValue,
    Duration,
    Int32,
    IntOrPercent,
    Quantity,
    atomic,
    map_list,
    set_list,
)
from pydantic import Field, create_model

Text = Annotated[str, MaxLen(9)]
MaybeText = Text | None


class Empty(Model):
    """Nothing."""


class Colour(Enum):
    RED = "red"


class Named(Model):
    name: Text
    other: Text | None = None


class Recursive(Model):
    child: "Recursive | None" = None


def schema_of(annotation: Any, default: Any = ...) -> Unstructured:
    """The schema of a field `x` of a spec."""
    spec: type[Model] = create_model("Spec", __base__=Model, x=(annotation, default))

    @kind(group="capelin.test", version="v1", name="Sample")
    class Sample(Object[spec, Empty]):
        pass

    schema = crd(Sample)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]


UNSUPPORTED: list[tuple[Any, Any, str]] = [
    (str, ..., "spec.x: a string without a bound: use Annotated[str, MaxLen(n)]"),
    (bytes, ..., "spec.x: a string without a bound: use Annotated[str, MaxLen(n)]"),
    (int, ..., "spec.x: a number without bounds: use Int32, or Ge(n) and Le(n)"),
    (Annotated[int, Ge(0)], ..., "spec.x: a number without bounds"),
    (Annotated[int, Ge(0), Le(2**60)], ..., "spec.x: limits beyond 2**53 are not exact"),
    (float, ..., "spec.x: a number without bounds: use Ge(n) and Le(n)"),
    (list[Text], ..., "spec.x: a list without a bound: use Annotated[list[...], MaxLen(n)]"),
    (dict[str, Text], ..., "spec.x: a map without a bound: use Annotated[dict[str, ...], Max"),
    (Annotated[list[str], MaxLen(3)], ..., "spec.x[]: a string without a bound"),
    (Annotated[dict[str, str], MaxLen(3)], ..., "spec.x.*: a string without a bound"),
    (Annotated[list[Text | None], MaxLen(3)], ..., "spec.x[]: may not be None"),
    (Annotated[dict[int, Text], MaxLen(3)], ..., "spec.x: the keys of a map are plain strings"),
    (Annotated[dict[Text, Text], MaxLen(3)], ..., "spec.x: the keys of a map are plain strings"),
    (Annotated[int | str, MaxLen(3)], ..., "spec.x: a number without bounds"),
    (int | bool, ..., "spec.x: the only union that a CRD's schema can express is int | str"),
    (Named | Empty, ..., "spec.x: the only union that a CRD's schema can express is int | str"),
    (Literal["a", 1], ..., "spec.x: any type is allowed"),
    (Any, ..., "spec.x: any type is allowed: use AnyValue or AnyObject if that is the intention"),
    (Annotated[dict[str, Any], MaxLen(3)], ..., "spec.x.*: any type is allowed"),
    (tuple[int, str], ..., "spec.x: a CRD's schema cannot express tuple[int, str]"),
    (set[int], ..., "spec.x: a CRD's schema cannot express set[int]"),
    (Callable[[], int], ..., "spec.x: a CRD's schema cannot express collections.abc.Callable["),
    (Recursive, ..., "spec.x.child: Recursive contains itself, and a CRD has no recursion"),
    (MaybeText, ..., "spec.x: may be None but is required: write `= None`, or omit `| None`"),
    (MaybeText, "a", "spec.x: has a default, so it cannot be None: write `= None`, or"),
    (
        Annotated[list[Named], map_list("other"), MaxLen(3)],
        ...,
        "spec.x: the items of a list by other need a required field other",
    ),
]


@pytest.mark.parametrize(("annotation", "default", "problem"), UNSUPPORTED)
def test_unsupported_types_are_rejected(annotation: Any, default: Any, problem: str) -> None:
    with pytest.raises(SchemaError) as refused:
        schema_of(annotation, default)
    first, *problems = str(refused.value).splitlines()
    assert first == "capelin.test/v1 Sample cannot become a CRD:"
    assert any(line.strip().startswith(problem) for line in problems), problems


def test_one_error_lists_all_problems() -> None:
    class Wrong(Model):
        a: str
        b: list[int]

    with pytest.raises(SchemaError) as refused:
        schema_of(Wrong)
    assert (
        str(refused.value)
        == """\
capelin.test/v1 Sample cannot become a CRD:
  spec.x.a: a string without a bound: use Annotated[str, MaxLen(n)]
  spec.x.b[]: a number without bounds: use Int32, or Ge(n) and Le(n)
  spec.x.b: a list without a bound: use Annotated[list[...], MaxLen(n)]\
"""
    )


def test_only_fields_without_a_default_are_required() -> None:
    class Spec(Model):
        given: Text
        also: int = Field(ge=0, le=9)
        filled: Text = "a"
        absent: Text | None = None
        many: Annotated[list[Text], MaxLen(3)] = []

    assert schema_of(Spec)["properties"]["x"] == {
        "type": "object",
        "properties": {
            "given": {"type": "string", "maxLength": 9},
            "also": {"type": "integer", "maximum": 9, "minimum": 0},
            "filled": {"type": "string", "maxLength": 9, "default": "a"},
            "absent": {"type": "string", "maxLength": 9},
            "many": {
                "type": "array",
                "maxItems": 3,
                "items": {"type": "string", "maxLength": 9},
            },
        },
        "required": ["also", "given"],
    }


def test_an_absent_object_gets_its_nested_defaults() -> None:
    class Inner(Model):
        size: Int32 = 3
        many: Annotated[list[Text], MaxLen(3)] = []
        empty: Empty = Empty()

    class Outer(Model):
        inner: Inner = Inner()
        bigger: Inner = Inner(size=5)
        empty: Empty = Empty()
        maybe: Inner | None = None

    assert schema_of(Outer)["properties"]["x"]["properties"] == {
        "inner": {
            "type": "object",
            "properties": {
                "size": {
                    "type": "integer",
                    "maximum": 2147483647,
                    "minimum": -2147483648,
                    "format": "int32",
                    "default": 3,
                },
                "many": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {"type": "string", "maxLength": 9},
                },
                "empty": {"description": "Nothing.", "type": "object", "properties": {}},
            },
            "default": {"size": 3},
        },
        "bigger": {
            "type": "object",
            "properties": {
                "size": {
                    "type": "integer",
                    "maximum": 2147483647,
                    "minimum": -2147483648,
                    "format": "int32",
                    "default": 3,
                },
                "many": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {"type": "string", "maxLength": 9},
                },
                "empty": {"description": "Nothing.", "type": "object", "properties": {}},
            },
            "default": {"size": 5},
        },
        "empty": {"description": "Nothing.", "type": "object", "properties": {}},
        "maybe": {
            "type": "object",
            "properties": {
                "size": {
                    "type": "integer",
                    "maximum": 2147483647,
                    "minimum": -2147483648,
                    "format": "int32",
                    "default": 3,
                },
                "many": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {"type": "string", "maxLength": 9},
                },
                "empty": {"description": "Nothing.", "type": "object", "properties": {}},
            },
        },
    }


def test_defaults_have_their_wire_format() -> None:
    class Outer(Model):
        wait: Duration = timedelta(minutes=5)
        items: Annotated[list[Named], MaxLen(3)] = [Named(name="a")]

    properties = schema_of(Outer)["properties"]["x"]["properties"]
    assert properties["wait"]["default"] == "5m0s"
    assert properties["items"]["default"] == [{"name": "a"}]


def test_docstrings_become_descriptions() -> None:
    class Inner(Model):
        """A part.

        With a second paragraph.
        """

        named: Text
        """Name of the part."""

        same: Empty | None = None
        other: Empty | None = None
        """Overrides the description of its class."""

    schema = schema_of(Inner)["properties"]["x"]
    assert schema["description"] == "A part.\n\nWith a second paragraph."
    described = {name: field["description"] for name, field in schema["properties"].items()}
    assert described == {
        "named": "Name of the part.",
        "same": "Nothing.",
        "other": "Overrides the description of its class.",
    }


SCHEMAS: dict[str, tuple[Any, Unstructured]] = {
    "int32": (
        Int32,
        {"type": "integer", "maximum": 2147483647, "minimum": -2147483648, "format": "int32"},
    ),
    "open ends": (
        Annotated[int, Gt(0), Lt(9), Ge(-3)],
        {
            "type": "integer",
            "minimum": 0,
            "exclusiveMinimum": True,
            "maximum": 9,
            "exclusiveMaximum": True,
        },
    ),
    "enum": (Colour, {"type": "string", "enum": ["red"]}),
    "literal": (Literal["a"], {"type": "string", "enum": ["a"]}),
    "pattern": (
        Annotated[str, MinLen(1), MaxLen(9), Field(pattern="^a")],
        {"type": "string", "maxLength": 9, "minLength": 1, "pattern": "^a"},
    ),
    "time": (
        Time,
        {
            "type": "string",
            "format": "date-time",
            "pattern": "^(0001-01-01T00:00:00Z|[12][0-9]{3}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?([Zz]|[+-](0[0-9]|1[0-9]|2[0-3]):[0-5][0-9]))$",
        },
    ),
    "percent": (
        IntOrPercent,
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maximum": 2147483647,
            "minimum": 0,
            "maxLength": 4,
            "pattern": "^[0-9]{1,3}%$",
            "x-kubernetes-int-or-string": True,
        },
    ),
    "map list": (
        Annotated[list[Named], map_list("name"), MaxLen(3)],
        {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 9},
                    "other": {"type": "string", "maxLength": 9},
                },
                "required": ["name"],
            },
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    ),
    "set": (
        Annotated[list[Text], set_list(), MinLen(1), MaxLen(3)],
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {"type": "string", "maxLength": 9},
            "x-kubernetes-list-type": "set",
        },
    ),
    "atomic list": (
        Annotated[list[Text], atomic(), MaxLen(3)],
        {
            "type": "array",
            "maxItems": 3,
            "items": {"type": "string", "maxLength": 9},
            "x-kubernetes-list-type": "atomic",
        },
    ),
    "atomic map": (
        Annotated[dict[str, Quantity], atomic(), MaxLen(3)],
        {
            "type": "object",
            "maxProperties": 3,
            "additionalProperties": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "maximum": 9007199254740992,
                "minimum": 0,
                "maxLength": 32,
                "pattern": "^([0-9]{1,18}(\\.[0-9]{0,9})?|\\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$",
                "x-kubernetes-int-or-string": True,
            },
            "x-kubernetes-map-type": "atomic",
        },
    ),
    "atomic object": (
        Annotated[Empty, atomic()],
        {
            "description": "Nothing.",
            "type": "object",
            "properties": {},
            "x-kubernetes-map-type": "atomic",
        },
    ),
    "any value": (AnyValue, {"x-kubernetes-preserve-unknown-fields": True}),
    "any object": (
        AnyObject,
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_types_become_openapi_schemas(name: str) -> None:
    annotation, expected = SCHEMAS[name]
    assert schema_of(annotation)["properties"]["x"] == expected
