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
    """A cluster-scoped kind."""


def body(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "sea", **metadata}, "spec": {"size": 3}}


def owner(kind_: str, name: str, api_version: str = "example.io/v1alpha9") -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind_, "name": name, "uid": "1"}


def test_for_maps_an_object_to_its_own_key() -> None:
    assert concerned(For(Shoal), Shoal.resource, body()) == [ObjectKey("sea", "a")]


def test_the_key_of_a_cluster_scoped_object_has_no_namespace() -> None:
    obj = {"metadata": {"name": "atlantic"}}
    assert concerned(For(Ocean), Ocean.resource, obj) == [ObjectKey("", "atlantic")]


def test_owns_maps_to_owners_of_the_kind_in_any_version() -> None:
    owners = [
        owner("Shoal", "b"),
        owner("Shoal", "other-group", "example.com/v1"),
        owner("Whale", "other-kind"),
    ]
    obj = body(ownerReferences=owners)
    assert concerned(Owns(ConfigMap), Shoal.resource, obj) == [ObjectKey("sea", "b")]


def test_owns_maps_to_a_cluster_scoped_owner() -> None:
    obj = body(ownerReferences=[owner("Ocean", "atlantic")])
    assert concerned(Owns(ConfigMap), Ocean.resource, obj) == [ObjectKey("", "atlantic")]


def test_owns_maps_an_object_without_owners_to_no_key() -> None:
    assert concerned(Owns(ConfigMap), Shoal.resource, body()) == []


def test_a_mapper_receives_an_instance_of_the_class() -> None:
    def by_size(shoal: Shoal) -> Iterable[ObjectKey]:
        return [ObjectKey(shoal.namespace or "", f"size-{shoal.spec['size']}")]

    assert concerned(Watches(Shoal, by_size), Ocean.resource, body()) == [
        ObjectKey("sea", "size-3")
    ]


def fields_of(obj: BaseObject) -> list[ObjectKey]:
    return [ObjectKey("", str(sorted(obj.model_fields_set)))]


@pytest.mark.parametrize(
    "watch",
    [
        Watches(Secret, fields_of),
        Watches(Shoal, fields_of, metadata_only=True),
    ],
)
def test_a_mapper_of_metadata_or_secrets_receives_only_metadata(watch: Watches[Any]) -> None:
    obj = {**body(), "data": {"password": "aHVudGVyMg=="}}
    assert concerned(watch, Shoal.resource, obj) == [ObjectKey("", "['metadata']")]


def test_only_mappers_of_other_kinds_than_secrets_read_contents() -> None:
    no_keys: Iterable[ObjectKey] = ()
    looking = {
        "for": looks_inside(For(Shoal)),
        "owns": looks_inside(Owns(ConfigMap)),
        "watches": looks_inside(Watches(Shoal, lambda _: no_keys)),
        "metadata": looks_inside(Watches(Shoal, lambda _: no_keys, metadata_only=True)),
        "secret": looks_inside(Watches(Secret, lambda _: no_keys)),
    }
    assert [name for name, inside in looking.items() if inside] == ["watches"]


def test_a_watch_with_labels_ignores_other_objects() -> None:
    watch = For(Shoal, labels={"team": "herring"})
    assert concerned(watch, Shoal.resource, body(labels={"team": "cod"})) == []
    assert concerned(watch, Shoal.resource, body(labels={"team": "herring"})) == [
        ObjectKey("sea", "a")
    ]


@pytest.mark.parametrize(
    ("labels", "actual", "expected"),
    [
        ({}, {}, True),
        ({"a": "1"}, {"a": "1", "b": "2"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": None}, {"a": "2"}, True),
        ({"a": None}, {"b": "2"}, False),
        ({"a": "1", "b": None}, {"a": "1"}, False),
    ],
)
def test_selects_compares_names_and_values_of_labels(
    labels: Labels, actual: dict[str, str], expected: bool
) -> None:
    assert selects(labels, actual) is expected


def test_selector_has_a_stable_order() -> None:
    assert selector({"b": None, "a": "1"}) == "a=1,b"
    assert selector({}) == ""
