"""A real API server accepts our CRDs and agrees with our types."""

import os
from datetime import timedelta
from typing import Annotated, Literal

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
from capelin.testing.values import fitting
from hypothesis import HealthCheck, Phase, assume, given, settings
from pydantic import Field, ValidationError

from .conftest import Install
from .values import spoilt
from .wire import Wire

# Each worker has its own kinds, so that it can delete them without affecting the others.
GROUP = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.api.capelin.test"


class Nested(Model):
    """A nested model whose fields all have defaults."""

    replicas: Literal[1, 3, 5] = 1
    quick: bool = True
    deeper: TemplateMetadata = TemplateMetadata()


class Item(Model):
    """An item of a list."""

    name: DNSLabel
    zone_id: Annotated[str, MaxLen(4)] = "a"
    size: Quantity = "1Gi"


class Everything(Model):
    """One field of each type."""

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


class Observed(Model):
    """Observed state of a sample."""

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
    """A kind with one field of each type."""


@kind(group=GROUP, version="v1alpha1", namespaced=False)
class Old(Object[Nested, Observed]):
    """A kind in its first version."""


@kind(group=GROUP, version="v1beta1", name="Old", namespaced=False)
class New(Object[Nested, Observed]):
    """The kind in its second version."""


@pytest.fixture(scope="module")
def sampled(wire: Wire, install: Install) -> Wire:
    """A connection to an API server that serves Samples."""
    install(Sample)
    return wire


def test_the_api_server_accepts_a_crd_without_warnings(install: Install) -> None:
    answer = install(Sample)
    assert answer.warnings == []


def test_the_api_server_accepts_two_versions_without_warnings(install: Install) -> None:
    assert install(Old, New).warnings == []


def test_applying_a_crd_again_changes_nothing(install: Install) -> None:
    first, again = install(Sample), install(Sample)
    assert first.body["metadata"]["generation"] == again.body["metadata"]["generation"]


SPEC: Unstructured = crd(Sample)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
    "spec"
]


def stored(wire: Wire, spec: Unstructured) -> Unstructured | str:
    """The spec as the API server would store it, or why it rejects the spec."""
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


# A failing example has one wrong field: shrinking it would send requests for minutes.
generated = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.repetitive
@generated
@given(spec=fitting(SPEC))
def test_valid_objects_get_the_same_defaults(sampled: Wire, spec: Unstructured) -> None:
    model = read(spec)
    assume(not isinstance(model, str))
    assert isinstance(model, Everything)
    answer = stored(sampled, model.dump())
    assert isinstance(answer, dict), answer
    assert Everything.read(answer) == model
    assert Everything.read(answer).dump() == answer


@pytest.mark.repetitive
@generated
@given(spec=spoilt(SPEC))
def test_the_api_server_and_the_model_reject_the_same_values(
    sampled: Wire, spec: Unstructured
) -> None:
    ours, theirs = read(spec), stored(sampled, spec)
    assert isinstance(ours, str) == isinstance(theirs, str), f"{ours}\n{theirs}"
