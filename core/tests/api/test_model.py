"""How types are read, built and written."""

from typing import Any

import pytest
from capelin.api import Model, ObjectMeta
from capelin.api.model import wire_name
from pydantic import Field, ValidationError


class Inner(Model):
    labels: dict[str, str] = {}
    count: int = 0


class Outer(Model):
    provider_id: str | None = None
    inner: Inner = Inner()
    made: Inner = Field(default_factory=Inner)
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    class_: str | None = None


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("api_version", "apiVersion"),
        ("provider_id_list", "providerIDList"),
        ("pod_cidrs", "podCIDRs"),
        ("external_ips", "externalIPs"),
        ("ca_bundle", "caBundle"),
        ("non_resource_urls", "nonResourceURLs"),
        ("holder_identity", "holderIdentity"),
        ("uid", "uid"),
        ("class_", "class"),
    ],
)
def test_fields_are_named_as_kubernetes_names_them(name: str, wire: str) -> None:
    assert wire_name(name) == wire


def test_reading_passes_over_what_is_not_known_at_any_depth() -> None:
    data: dict[str, Any] = {"new": 1, "inner": {"count": 2, "new": 3}, "many": [{"new": 4}]}
    assert Outer.read(data).inner.count == 2


def test_reading_json_is_as_reading() -> None:
    assert Outer.read_json('{"providerID": "a", "new": {}}').provider_id == "a"


def test_building_refuses_a_name_that_does_not_exist() -> None:
    wrong: dict[str, Any] = {"provider": "a"}
    with pytest.raises(ValidationError, match="provider"):
        Outer(**wrong)


@pytest.mark.parametrize("wrong", ["3", 3.0, True])
def test_what_is_nearly_a_number_is_not_one(wrong: object) -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        Inner.read({"count": wrong})


def test_only_what_was_said_is_written() -> None:
    assert Outer(provider_id="a").dump() == {"providerID": "a"}


def test_none_is_not_written_and_a_default_that_was_said_is() -> None:
    assert Outer(provider_id=None, inner=Inner(count=0)).dump() == {"inner": {"count": 0}}


def test_what_is_changed_inside_a_default_is_written() -> None:
    outer = Outer(many=[Inner()], named={"a": Inner()})
    outer.inner.labels["a"] = "b"
    outer.made.count = 1
    outer.many[0].labels["c"] = "d"
    outer.named["a"].labels["e"] = "f"
    assert outer.dump() == {
        "inner": {"labels": {"a": "b"}},
        "made": {"count": 1},
        "many": [{"labels": {"c": "d"}}],
        "named": {"a": {"labels": {"e": "f"}}},
    }


def test_a_change_in_one_object_is_in_no_other() -> None:
    Outer().inner.labels["a"] = "b"
    assert Outer().inner.labels == {}


def test_what_was_read_is_written_as_it_was() -> None:
    metadata: dict[str, Any] = {
        "name": "a",
        "labels": {"b": "c"},
        "finalizers": [],
        "generation": 3,
    }
    assert ObjectMeta.read(metadata).dump() == metadata


def test_words_of_python_lose_their_underscore_on_the_wire() -> None:
    assert Outer.read({"class": "a"}).class_ == "a"
    assert Outer(class_="a").dump() == {"class": "a"}
