"""Values that a schema allows, and values that it nearly allows."""

from collections.abc import Callable
from typing import Any, cast

from capelin.api import Unstructured
from hypothesis import strategies as st

Schema = Unstructured
Values = st.SearchStrategy[Any]

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    # The API server stores 1.0 as 1, so no object that is read contains 1.0.
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer()),
    st.text(max_size=6),
)
OBJECTS: Values = st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
JSON: Values = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), OBJECTS)
RESOURCE = {"apiVersion": "v1", "kind": "Secret"}
LETTERS = st.text("aA0-._/%vhms +\u00e9", max_size=7)
MOMENTS = [
    "2025-01-31T00:00:00Z",
    "2025-01-31T00:00:00.123456789Z",
    "2025-01-31t23:59:59+02:00",
    "2025-01-31 00:00:00Z",
    "2025-01-31T00:00:00",
    "2025-01-31T00:00Z",
    "2025-01-31T24:00:00Z",
    "2025-02-30T00:00:00Z",
    "2025-01-31",
    "1738281600",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+01:00",
    "2999-12-31T23:59:59-23:59",
    "2025-01-31T00:00:00+24:00",
    "2025-01-31T00:00:60Z",
]


def sort(schema: Schema) -> str:
    for key, sort in SORTS.items():
        if key in schema:
            return sort
    return schema.get("type", "any")


SORTS = {
    "enum": "enum",
    "anyOf": "int-or-string",
    "x-kubernetes-embedded-resource": "resource",
    "additionalProperties": "map",
    "properties": "object",
}


def fitting(schema: Schema) -> Values:
    """Values that the schema allows."""
    return FITTING[sort(schema)](schema)


def numbers(schema: Schema) -> Values:
    low, high = schema["minimum"], schema["maximum"]
    step = schema.get("multipleOf", 1)
    if schema.get("type") == "number":
        return st.floats(low, high)
    low += step * schema.get("exclusiveMinimum", False)
    high -= step * schema.get("exclusiveMaximum", False)
    return st.integers(-(-low // step), high // step).map(lambda number: number * step)


def texts(schema: Schema) -> Values:
    if "format" in schema:
        return st.sampled_from(MOMENTS[:3])
    least, most = schema.get("minLength", 0), schema["maxLength"]
    if "pattern" not in schema:
        return st.text(min_size=least, max_size=min(most, 40))
    matching = cast("Values", st.from_regex(str(schema["pattern"]), fullmatch=True))
    return matching.filter(lambda text: least <= len(text) <= most)


def arrays(schema: Schema) -> Values:
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])

    def identity(item: Any) -> Any:
        return tuple(item.get(key) for key in keys) if keys else str(item)

    return st.lists(
        fitting(schema["items"]),
        min_size=schema.get("minItems", 0),
        max_size=schema["maxItems"],
        unique_by=identity if "x-kubernetes-list-type" in schema else None,
    )


def maps(schema: Schema) -> Values:
    return st.dictionaries(
        st.text(max_size=4),
        fitting(schema["additionalProperties"]),
        min_size=schema.get("minProperties", 0),
        max_size=min(3, schema["maxProperties"]),
    )


def objects(schema: Schema) -> Values:
    fields = {name: fitting(field) for name, field in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


Makers = dict[str, Callable[[Schema], Values]]

FITTING: Makers = {
    "any": lambda _: JSON,
    "array": arrays,
    "boolean": lambda _: st.booleans(),
    "enum": lambda schema: st.sampled_from(schema["enum"]),
    "int-or-string": lambda schema: st.one_of(numbers(schema), texts(schema)),
    "integer": numbers,
    "map": maps,
    "number": numbers,
    "object": lambda schema: objects(schema) if "properties" in schema else OBJECTS,
    "resource": lambda _: st.just(RESOURCE),
    "string": texts,
}


def nearly(schema: Schema) -> Values:
    """Valid and invalid values close to the limits of the schema."""
    # The API server accepts any list for a string with a format.
    junk = SCALARS if "format" in schema else JSON
    return st.one_of(NEARLY[sort(schema)](schema), junk)


def near_numbers(schema: Schema) -> Values:
    limits = (schema["minimum"], schema["maximum"])
    return st.sampled_from([limit + by for limit in limits for by in (-1, 0, 1, 2**70)])


def near_texts(schema: Schema) -> Values:
    if "format" in schema:
        return st.sampled_from(MOMENTS)
    edges = [schema.get("minLength", 0) - 1, schema["maxLength"] + 1]
    overlong = st.sampled_from(["a" * size for size in edges])
    return st.one_of(LETTERS, overlong, texts(schema).map(str.swapcase))


def near_arrays(schema: Schema) -> Values:
    items = st.lists(fitting(schema["items"]), min_size=1, max_size=schema["maxItems"] + 1)
    doubled = items.map(lambda values: [*values, values[0]])
    return st.one_of(items, doubled, st.lists(nearly(schema["items"]), min_size=1, max_size=2))


def near_maps(schema: Schema) -> Values:
    values = schema["additionalProperties"]
    return st.one_of(
        st.dictionaries(st.text(max_size=3), fitting(values), max_size=5),
        st.dictionaries(st.text(max_size=3), nearly(values), max_size=1),
    )


def near_resources(_: Schema) -> Values:
    spoilt = [{**RESOURCE, key: value} for key in RESOURCE for value in ("", 7, "a/b/c", "A.b")]
    return st.sampled_from(spoilt)


DIFFERENTLY: Makers = {
    "array": near_arrays,
    "enum": lambda schema: st.one_of(st.sampled_from(schema["enum"]), LETTERS),
    "int-or-string": lambda schema: st.one_of(near_numbers(schema), near_texts(schema)),
    "integer": near_numbers,
    "map": near_maps,
    "number": near_numbers,
    "object": lambda schema: spoilt(schema) if "properties" in schema else OBJECTS,
    "resource": near_resources,
    "string": near_texts,
}
NEARLY = FITTING | DIFFERENTLY


def spoilt(schema: Schema) -> Values:
    """An object with one field missing or close to its limits."""
    whole = fitting(schema)
    near = {name: nearly(field) for name, field in schema["properties"].items()}

    @st.composite
    def draw_one(draw: st.DrawFn) -> Unstructured:
        value: Unstructured = draw(whole)
        name = draw(st.sampled_from(sorted(near)))
        if name in value and draw(st.sampled_from([True, False, False, False])):
            del value[name]
        else:
            value[name] = draw(near[name])
        return value

    return draw_one()
