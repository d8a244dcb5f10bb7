"""Conversion between versions: ways, metadata, values that only one version has, templates."""

from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le, MaxLen
from capelin.api import (
    ConversionError,
    Definition,
    Model,
    Object,
    SchemaError,
    Unstructured,
    convert,
    convert_json,
    converts,
    crd,
    kind,
    move_field,
)
from hypothesis import given
from hypothesis import strategies as st

GROUP = "conversion.capelin.test"
DATA = "cluster.x-k8s.io/conversion-data"
SERVICE = {"service": {"name": "fish", "namespace": "sea", "path": "/convert"}}
Count = Annotated[int, Ge(0), Le(1000)]
Text = Annotated[str, MaxLen(20)]


class FirstSpec(Model):
    fins: Count = 2
    colour: Text | None = None


class SecondSpec(Model):
    class Body(Model):
        fins: Count = 2

    body: Body = Body()
    colour: Text | None = None
    name: Text | None = None


class ThirdSpec(SecondSpec):
    weight: Count | None = None


class Status(Model):
    swims: bool = False


@kind(group=GROUP, version="v1alpha1", name="Fish", definition=Definition(contracts=("v1beta1",)))
class First(Object[FirstSpec, Status]):
    """A fish."""


@kind(group=GROUP, version="v1beta1", name="Fish", definition=Definition(contracts=("v1beta2",)))
class Second(Object[SecondSpec, Status]):
    """A fish."""


@kind(group=GROUP, version="v1", name="Fish", definition=Definition(contracts=("v1beta2",)))
class Third(Object[ThirdSpec, Status]):
    """A fish."""


@converts(First, Second)
def first_to_second(fish: Unstructured) -> None:
    move_field(fish, "spec.fins", "spec.body.fins")


@converts(Second, First)
def second_to_first(fish: Unstructured) -> None:
    move_field(fish, "spec.body.fins", "spec.fins")
    fish.get("spec", {}).pop("name", None)


@converts(Second, Third)
def second_to_third(fish: Unstructured) -> None: ...


@converts(Third, Second)
def third_to_second(fish: Unstructured) -> None:
    fish.get("spec", {}).pop("weight", None)


texts = st.none() | st.text("abc", max_size=20)
counts = st.integers(0, 1000)
thirds = st.builds(
    ThirdSpec,
    body=st.builds(SecondSpec.Body, fins=counts),
    colour=texts,
    name=texts,
    weight=st.none() | counts,
)


@given(spec=thirds, swims=st.booleans(), through=st.sampled_from([First, Second]))
def test_nothing_is_lost_on_the_way_through_another_version(
    spec: ThirdSpec, swims: bool, through: type[Any]
) -> None:
    fish = Third.of("a", "sea", spec=spec, status=Status(swims=swims))
    other = convert(fish, through)
    assert other.status == fish.status
    assert convert(other, Third).dump() == fish.dump()
    assert convert(convert(other, Second), Third).dump() == fish.dump()


@given(spec=st.builds(FirstSpec, fins=counts, colour=texts))
def test_an_old_object_survives_all_newer_versions(spec: FirstSpec) -> None:
    fish = First.of("a", spec=spec)
    assert convert(convert(fish, Third), First).dump() == fish.dump()


def test_the_way_leads_through_other_versions() -> None:
    fish = convert(First.of("a", spec=FirstSpec(fins=7)), Third)
    assert fish.spec.body.fins == 7
    assert fish.metadata.annotations == {}


def test_a_change_in_the_other_version_wins() -> None:
    def lengthen(fish: Unstructured) -> None:
        move_field(fish, "spec.size", "spec.size", lambda size: size * 10)

    def shorten(fish: Unstructured) -> None:
        move_field(fish, "spec.size", "spec.size", lambda size: size // 10)

    class Spec(Model):
        size: Count = 0

    @kind(group=GROUP, version="v1", name="Worm")
    class InMillimetres(Object[Spec, Status]): ...

    @kind(group=GROUP, version="v2", name="Worm")
    class InCentimetres(Object[Spec, Status]): ...

    converts(InMillimetres, InCentimetres)(shorten)
    converts(InCentimetres, InMillimetres)(lengthen)
    worm = convert(InMillimetres.of("a", spec=Spec(size=37)), InCentimetres)
    assert worm.spec.size == 3
    assert convert(worm, InMillimetres).spec.size == 37
    worm.spec.size = 4
    assert convert(worm, InMillimetres).spec.size == 40


def manifest(**fields: Any) -> Unstructured:
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": "Fish", **fields}


@pytest.mark.parametrize("fields", [{}, {"spec": {}}, {"status": {"swims": True}}])
def test_parts_of_objects_are_converted(fields: Unstructured) -> None:
    part = manifest(metadata={"name": "a"}, **fields)
    assert convert_json(part, f"{GROUP}/v1") == {**part, "apiVersion": f"{GROUP}/v1"}


def test_conversions_change_labels_and_annotations_but_no_other_metadata() -> None:
    @kind(group=GROUP, version="v1", name="Crab")
    class Old(Object[FirstSpec, Status]): ...

    @kind(group=GROUP, version="v2", name="Crab")
    class New(Object[FirstSpec, Status]): ...

    @converts(Old, New)
    def upgrade(crab: Unstructured) -> None:
        crab["metadata"] = {"name": "other", "uid": "2", "labels": {"a": "b"}}

    @converts(New, Old)
    def downgrade(crab: Unstructured) -> None: ...

    metadata = {"name": "a", "uid": "1", "annotations": {"c": "d"}}
    crab = {"apiVersion": f"{GROUP}/v1", "kind": "Crab", "metadata": metadata}
    converted = convert_json(crab, f"{GROUP}/v2")
    assert converted["metadata"] == {"name": "a", "uid": "1", "labels": {"a": "b"}}
    assert metadata == {"name": "a", "uid": "1", "annotations": {"c": "d"}}


@pytest.mark.parametrize(
    "kept",
    [
        *("", "{", "[]", '{"v1": 1}', '{"v1": [{}]}', '{"v1": [{"path": []}]}'),
        '{"v1": [{"path": ["spec", "weight"], "after": "much"}]}',
        '{"v1": [{"path": ["spec", "body", "fins"], "before": 2, "after": -1}]}',
        '{"v1": [{"path": ["spec", "absent", "x"], "after": 1}]}',
    ],
)
def test_an_annotation_of_a_user_makes_no_object_unreadable(kept: str) -> None:
    fish = manifest(metadata={"name": "a", "annotations": {DATA: kept}}, spec={"fins": 2})
    converted = convert_json(fish, f"{GROUP}/v1")
    assert converted["spec"] == {"body": {"fins": 2}}
    assert "annotations" not in converted["metadata"]


def test_templates_are_converted_like_their_objects() -> None:
    template = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "FishTemplate",
        "metadata": {"name": "a"},
        "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"fins": 3}}},
    }
    converted = convert_json(template, f"{GROUP}/v1")
    inside = {"metadata": {"labels": {"a": "b"}}, "spec": {"body": {"fins": 3}}}
    assert converted["spec"] == {"template": inside}
    assert convert_json(converted, f"{GROUP}/v1alpha1") == template


@pytest.mark.parametrize(
    ("obj", "version", "message"),
    [
        (manifest(), "other.group/v1", "are not of one group"),
        (manifest(), f"{GROUP}/v9", "nothing converts Fish from v1alpha1 to v9"),
        ({"apiVersion": f"{GROUP}/v1", "kind": "Bird"}, f"{GROUP}/v2", "nothing converts Bird"),
        ({}, f"{GROUP}/v2", "are not of one group"),
    ],
)
def test_an_object_that_cannot_be_converted(obj: Any, version: str, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        convert_json(obj, version)


def test_an_error_names_the_versions_and_the_cause() -> None:
    @kind(group=GROUP, version="v1", name="Eel")
    class Old(Object[FirstSpec, Status]): ...

    @kind(group=GROUP, version="v2", name="Eel")
    class New(Object[FirstSpec, Status]): ...

    @converts(Old, New)
    def upgrade(eel: Unstructured) -> None:
        del eel["spec"]["size"]

    eel: Unstructured = {"apiVersion": f"{GROUP}/v1", "kind": "Eel", "spec": {}}
    with pytest.raises(ConversionError, match="from v1 to v2 failed with KeyError: 'size'"):
        convert_json(eel, f"{GROUP}/v2")
    with pytest.raises(SchemaError, match="@converts is missing for Eel from v2 to v1"):
        crd(Old, New, client_config=SERVICE)


def test_converts_needs_two_versions_of_one_kind() -> None:
    with pytest.raises(TypeError, match="two versions of one kind"):
        converts(First, First)


def test_a_crd_with_a_webhook() -> None:
    definition = crd(First, Second, Third, client_config=SERVICE)
    assert definition["spec"]["conversion"] == {
        "strategy": "Webhook",
        "webhook": {"clientConfig": SERVICE, "conversionReviewVersions": ["v1"]},
    }
    assert definition["metadata"]["labels"]["cluster.x-k8s.io/v1beta1"] == "v1alpha1"
    assert definition["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] == "v1beta1_v1"
    with pytest.raises(SchemaError, match="need a conversion webhook: pass client_config"):
        crd(First, Third)


def test_versions_may_be_deprecated_or_not_served() -> None:
    @kind(group=GROUP, version="v1", name="Ray", definition=Definition(served=False))
    class Gone(Object[FirstSpec, Status]):
        """A ray."""

    @kind(group=GROUP, version="v2", name="Ray", definition=Definition(deprecated="use v3"))
    class Old(Object[FirstSpec, Status]):
        """A ray."""

    @kind(group=GROUP, version="v3", name="Ray")
    class New(Object[FirstSpec, Status]):
        """A ray."""

    gone, old, new = crd(Gone, Old, New)["spec"]["versions"]
    assert (gone["served"], old["served"], new["served"]) == (False, True, True)
    assert (old["deprecated"], old["deprecationWarning"]) == (True, "use v3")
    assert "deprecated" not in new
