"""What a real API server makes of our CRDs, and whether it and our types agree."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from capelin.api import (
    Column,
    Conditions,
    Definition,
    Model,
    Object,
    Scale,
    TemplateMetadata,
    Time,
    Unstructured,
    crd,
    kind,
)
from capelin.api.fields import (
    AnyObject,
    AnyValue,
    DNSLabel,
    DNSSubdomain,
    Duration,
    EmbeddedObject,
    Host,
    Int32,
    Int64,
    IntOrPercent,
    KubernetesVersion,
    LabelValue,
    Port,
    Quantity,
    Replicas,
    atomic,
    map_list,
    set_list,
)
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

if TYPE_CHECKING:
    from conftest import Install, Wire

# Each worker has kinds of its own, which it can take away without asking the others.
GROUP = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.api.capelin.test"


class Nested(Model):
    """Something inside, all of it with defaults."""

    replicas: Literal[1, 3, 5] = 1
    quick: bool = True
    deeper: TemplateMetadata = TemplateMetadata()


class Item(Model):
    """Something in a list."""

    name: DNSLabel
    zone_id: Annotated[str, MaxLen(4)] = "a"
    size: Quantity = "1Gi"


class Everything(Model):
    """One field of each sort."""

    text: Annotated[str, MinLen(2), MaxLen(5)]
    colour: Literal["red", "green"]
    version: KubernetesVersion
    label: DNSLabel = "x"
    subdomain: DNSSubdomain | None = None
    host: Host | None = None
    value: LabelValue = ""
    port: Port = 6443
    small: Annotated[Int32, Ge(-1), Le(9)] = 0
    replicas: Replicas = 1
    int32: Int32 | None = None
    int64: Int64 | None = None
    even: Annotated[int, MultipleOf(2), Gt(-4), Lt(10)] | None = None
    share: Annotated[float, Ge(0), Le(1)] | None = None
    yes: bool = False
    surge: IntOrPercent = 1
    memory: Quantity | None = None
    timeout: Duration = timedelta(minutes=5)
    period: Annotated[Duration, Ge(timedelta(seconds=10)), Lt(timedelta(hours=1))] | None = None
    after: Time | None = None
    nested: Nested = Nested()
    other: Nested | None = None
    items: Annotated[list[Item], map_list("name", "zoneID"), MaxLen(3)] = []
    tags: Annotated[list[Annotated[str, MaxLen(3)]], set_list(), MinLen(1), MaxLen(3)] | None = None
    order: Annotated[list[Int32], atomic(), MaxLen(2)] = Field(default=[7])
    labels: Annotated[dict[str, LabelValue], MaxLen(2)] = {}
    limits: Annotated[dict[str, Quantity], atomic(), MinLen(1), MaxLen(2)] | None = None
    anything: AnyValue = None
    raw: AnyObject | None = None
    resource_: EmbeddedObject | None = None


class Observed(Model):
    """What is seen of it."""

    conditions: Conditions = []
    replicas: Replicas | None = None
    selector: Annotated[str, MaxLen(256)] | None = None


@kind(
    group=GROUP,
    version="v1alpha1",
    definition=Definition(
        contracts=("v1beta1", "v1beta2"),
        scale=Scale(
            selector=".status.selector",
        ),
        columns=(Column("Version", ".spec.version", description="Which", priority=1),),
        short_names=("smp",),
        categories=("capelin-test",),
    ),
)
class Sample(Object[Everything, Observed]):
    """A kind that has one of everything."""


@kind(group=GROUP, version="v1alpha1", namespaced=False)
class Old(Object[Nested, Observed]):
    """A kind in its first version."""


@kind(group=GROUP, version="v1beta1", name="Old", namespaced=False)
class New(Object[Nested, Observed]):
    """The kind in its second version."""


@pytest.fixture(scope="module")
def sampled(wire: "Wire", install: "Install") -> "Wire":
    """A connection to an API server that knows samples."""
    install(Sample)
    return wire


def test_a_crd_is_taken_without_a_warning(install: "Install") -> None:
    answer = install(Sample)
    assert answer.warnings == []


def test_a_crd_of_two_versions_is_taken_without_a_warning(install: "Install") -> None:
    assert install(Old, New).warnings == []


def test_applying_a_crd_again_changes_nothing(install: "Install") -> None:
    first, again = install(Sample), install(Sample)
    assert first.body["metadata"]["generation"] == again.body["metadata"]["generation"]


# Values that a schema allows, and values that it nearly allows

Schema = Unstructured
Values = st.SearchStrategy[Any]

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    # The API server makes 1 of 1.0 when it stores it, so no object that is read has it.
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
    """What the schema allows."""
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
    fields = {name: fitting(one) for name, one in schema["properties"].items()}
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
    """What the schema may or may not allow, close to its limits."""
    return st.one_of(NEARLY[sort(schema)](schema), JSON)


def near_numbers(schema: Schema) -> Values:
    limits = (schema["minimum"], schema["maximum"])
    return st.sampled_from([limit + by for limit in limits for by in (-1, 0, 1)])


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
    """An object with one field that is close to the limits, or not there."""
    whole = fitting(schema)
    near = {name: nearly(one) for name, one in schema["properties"].items()}

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


SPEC: Schema = crd(Sample)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def stored(wire: "Wire", spec: Unstructured) -> Unstructured | str:
    """The spec as the API server would store it, or why it does not take it."""
    sample = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "Sample", "metadata": {"name": "one"}}
    path = f"{Sample.resource.path('default')}?dryRun=All&fieldValidation=Ignore"
    answer = wire.send("POST", path, {**sample, "spec": spec})
    assert answer.status in {201, 400, 422}, answer.body
    return answer.body["spec"] if answer.status == 201 else answer.message


def read(spec: Unstructured) -> Everything | str:
    try:
        return Everything.read(spec)
    except ValidationError as error:
        return str(error)


# A failing example has one field that is wrong: shrinking it would ask the server for minutes.
generated = settings(
    max_examples=300,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@generated
@given(spec=fitting(SPEC))
def test_what_the_model_accepts_the_api_server_accepts_and_fills_in_alike(
    sampled: "Wire", spec: Unstructured
) -> None:
    model = read(spec)
    assume(not isinstance(model, str))
    assert isinstance(model, Everything)
    answer = stored(sampled, model.dump())
    assert isinstance(answer, dict), answer
    assert Everything.read(answer) == model
    assert Everything.read(answer).dump() == answer


@generated
@given(spec=spoilt(SPEC))
def test_the_api_server_and_the_model_refuse_the_same(sampled: "Wire", spec: Unstructured) -> None:
    ours, theirs = read(spec), stored(sampled, spec)
    assert isinstance(ours, str) == isinstance(theirs, str), f"{ours}\n{theirs}"
