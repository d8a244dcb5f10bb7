"""Values that a schema nearly allows."""

from collections.abc import Callable

from capelin.api import Unstructured
from capelin.testing.values import (
    FITTING,
    JSON,
    OBJECTS,
    RESOURCE,
    SCALARS,
    TIMES,
    Schema,
    Values,
    fitting,
    sort,
    texts,
)
from hypothesis import strategies as st

LETTERS = st.text("aA0-._/%vhms +\u00e9", max_size=7)
MOMENTS = [
    *TIMES,
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


DIFFERENTLY: dict[str, Callable[[Schema], Values]] = {
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
