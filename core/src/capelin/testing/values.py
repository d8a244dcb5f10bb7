"""Strategies of hypothesis for values that the schema of a CRD allows."""

from collections.abc import Callable
from typing import Any, Final, cast

from hypothesis import strategies as st

from capelin.api import Unstructured

Schema = Unstructured
Values = st.SearchStrategy[Any]

SCALARS: Final = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    # The API server stores 1.0 as 1, so no object that is read contains 1.0.
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer()),
    st.text(max_size=6),
)
OBJECTS: Final[Values] = st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
JSON: Final[Values] = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), OBJECTS)
RESOURCE: Final = {"apiVersion": "v1", "kind": "Secret"}
TIMES: Final = (
    "2025-01-31T00:00:00Z",
    "2025-01-31T00:00:00.123456789Z",
    "2025-01-31t23:59:59+02:00",
)
_LONGEST: Final = 40
_LARGEST: Final = 2**31 - 1
_MOST_ITEMS: Final = 3
_SORTS: Final = {
    "enum": "enum",
    "anyOf": "int-or-string",
    "x-kubernetes-embedded-resource": "resource",
    "additionalProperties": "map",
    "properties": "object",
}


def fitting(schema: Schema) -> Values:
    """Values that a schema allows, without its CEL rules."""
    return FITTING[sort(schema)](schema)


def sort(schema: Schema) -> str:
    """The name of the schema's form: a key of `FITTING`."""
    for key, form in _SORTS.items():
        if key in schema:
            return form
    return schema.get("type", "any")


def numbers(schema: Schema) -> Values:
    low, high = schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST)
    step = schema.get("multipleOf", 1)
    if schema.get("type") == "number":
        return st.floats(low, high)
    low += step * schema.get("exclusiveMinimum", False)
    high -= step * schema.get("exclusiveMaximum", False)
    return st.integers(-(-low // step), high // step).map(lambda number: number * step)


def texts(schema: Schema) -> Values:
    if "format" in schema:
        return st.sampled_from(TIMES)
    least, most = schema.get("minLength", 0), schema.get("maxLength", _LONGEST)
    if "pattern" not in schema:
        return st.text(min_size=least, max_size=max(least, min(most, _LONGEST)))
    matching = cast("Values", st.from_regex(str(schema["pattern"]), fullmatch=True))
    return matching.filter(lambda text: least <= len(text) <= most)


def _arrays(schema: Schema) -> Values:
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    least = schema.get("minItems", 0)

    def identity(item: Any) -> Any:
        return tuple(item.get(key) for key in keys) if keys else str(item)

    return st.lists(
        fitting(schema["items"]),
        min_size=least,
        max_size=schema.get("maxItems", max(least, _MOST_ITEMS)),
        unique_by=identity if "x-kubernetes-list-type" in schema else None,
    )


def _maps(schema: Schema) -> Values:
    return st.dictionaries(
        st.text(max_size=4),
        fitting(schema["additionalProperties"]),
        min_size=schema.get("minProperties", 0),
        max_size=min(_MOST_ITEMS, schema.get("maxProperties", _MOST_ITEMS)),
    )


def _objects(schema: Schema) -> Values:
    fields = {name: fitting(field) for name, field in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


FITTING: Final[dict[str, Callable[[Schema], Values]]] = {
    "any": lambda _: JSON,
    "array": _arrays,
    "boolean": lambda _: st.booleans(),
    "enum": lambda schema: st.sampled_from(schema["enum"]),
    "int-or-string": lambda schema: st.one_of(numbers(schema), texts(schema)),
    "integer": numbers,
    "map": _maps,
    "number": numbers,
    "object": lambda schema: _objects(schema) if "properties" in schema else OBJECTS,
    "resource": lambda _: st.just(RESOURCE),
    "string": texts,
}
"""For each form of a schema, its values."""
