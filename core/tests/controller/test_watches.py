from collections.abc import Iterable
from typing import Any

import pytest
from capelin.api import BaseObject, Object, kind
from capelin.api.core import ConfigMap, Secret
from capelin.controller import ObjectKey
from capelin.controller.reconciler import (
    For,
    Labels,
    Owns,
    Watches,
    concerned,
    looks_inside,
    selector,
    selects,
)


@kind(group="example.io", version="v1")
class Shoal(Object[dict[str, Any], dict[str, Any]]):
    """A namespaced kind."""


@kind(group="example.io", version="v1", namespaced=False)
class Ocean(Object[dict[str, Any], dict[str, Any]]):
    """A kind of the whole cluster."""


def body(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "sea", **metadata}, "spec": {"size": 3}}


def owner(kind_: str, name: str, api_version: str = "example.io/v1alpha9") -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind_, "name": name, "uid": "1"}


def test_an_object_of_its_own_kind_concerns_itself() -> None:
    assert concerned(For(Shoal), Shoal.resource, body()) == [ObjectKey("sea", "a")]


def test_what_belongs_to_the_whole_cluster_has_no_namespace_in_its_key() -> None:
    found = {"metadata": {"name": "atlantic"}}
    assert concerned(For(Ocean), Ocean.resource, found) == [ObjectKey("", "atlantic")]


def test_an_owned_object_concerns_its_owners_in_whatever_version_they_are_named() -> None:
    owners = [
        owner("Shoal", "b"),
        owner("Shoal", "other-group", "example.com/v1"),
        owner("Whale", "other-kind"),
    ]
    found = body(ownerReferences=owners)
    assert concerned(Owns(ConfigMap), Shoal.resource, found) == [ObjectKey("sea", "b")]


def test_an_owner_of_the_whole_cluster_is_found_from_a_namespace() -> None:
    found = body(ownerReferences=[owner("Ocean", "atlantic")])
    assert concerned(Owns(ConfigMap), Ocean.resource, found) == [ObjectKey("", "atlantic")]


def test_an_object_without_owners_concerns_nobody() -> None:
    assert concerned(Owns(ConfigMap), Shoal.resource, body()) == []


def test_a_mapper_gets_the_object_as_its_class() -> None:
    def by_size(shoal: Shoal) -> Iterable[ObjectKey]:
        return [ObjectKey(shoal.namespace or "", f"size-{shoal.spec['size']}")]

    assert concerned(Watches(Shoal, by_size), Ocean.resource, body()) == [
        ObjectKey("sea", "size-3")
    ]


def seen(obj: BaseObject) -> list[ObjectKey]:
    return [ObjectKey("", str(sorted(obj.model_fields_set)))]


@pytest.mark.parametrize(
    "watch",
    [
        Watches(Secret, seen),
        Watches(Shoal, seen, metadata_only=True),
    ],
)
def test_a_mapper_that_may_not_look_inside_gets_metadata_alone(watch: Watches[Any]) -> None:
    found = {**body(), "data": {"password": "aHVudGVyMg=="}}
    assert concerned(watch, Shoal.resource, found) == [ObjectKey("", "['metadata']")]


def test_only_a_mapper_looks_inside_and_never_inside_a_secret() -> None:
    nobody: Iterable[ObjectKey] = ()
    looking = {
        "for": looks_inside(For(Shoal)),
        "owns": looks_inside(Owns(ConfigMap)),
        "watches": looks_inside(Watches(Shoal, lambda _: nobody)),
        "metadata": looks_inside(Watches(Shoal, lambda _: nobody, metadata_only=True)),
        "secret": looks_inside(Watches(Secret, lambda _: nobody)),
    }
    assert [name for name, inside in looking.items() if inside] == ["watches"]


def test_an_object_without_the_labels_that_are_asked_for_concerns_nobody() -> None:
    watch = For(Shoal, labels={"team": "herring"})
    assert concerned(watch, Shoal.resource, body(labels={"team": "cod"})) == []
    assert concerned(watch, Shoal.resource, body(labels={"team": "herring"})) == [
        ObjectKey("sea", "a")
    ]


@pytest.mark.parametrize(
    ("labels", "found", "expected"),
    [
        ({}, {}, True),
        ({"a": "1"}, {"a": "1", "b": "2"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": None}, {"a": "2"}, True),
        ({"a": None}, {"b": "2"}, False),
        ({"a": "1", "b": None}, {"a": "1"}, False),
    ],
)
def test_labels_select(labels: Labels, found: dict[str, str], expected: bool) -> None:
    assert selects(labels, found) is expected


def test_labels_are_written_as_a_selector_in_a_stable_order() -> None:
    assert selector({"b": None, "a": "1"}) == "a=1,b"
    assert selector({}) == ""
