"""Reading, building and writing models."""

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
def test_wire_names_follow_the_spelling_of_kubernetes(name: str, wire: str) -> None:
    assert wire_name(name) == wire


def test_read_ignores_unknown_fields_at_any_depth() -> None:
    data: dict[str, Any] = {"new": 1, "inner": {"count": 2, "new": 3}, "many": [{"new": 4}]}
    assert Outer.read(data).inner.count == 2


def test_read_json_ignores_unknown_fields() -> None:
    assert Outer.read_json('{"providerID": "a", "new": {}}').provider_id == "a"


def test_a_constructor_rejects_unknown_names() -> None:
    wrong: dict[str, Any] = {"provider": "a"}
    with pytest.raises(ValidationError, match="provider"):
        Outer(**wrong)


@pytest.mark.parametrize("wrong", ["3", 3.0, True])
def test_read_converts_no_other_type_to_an_integer(wrong: object) -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        Inner.read({"count": wrong})


def test_dump_contains_only_fields_that_were_set() -> None:
    assert Outer(provider_id="a").dump() == {"providerID": "a"}


def test_dump_omits_none_and_contains_explicit_defaults() -> None:
    assert Outer(provider_id=None, inner=Inner(count=0)).dump() == {"inner": {"count": 0}}


def test_dump_contains_changes_inside_defaults() -> None:
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


def test_objects_do_not_share_defaults() -> None:
    Outer().inner.labels["a"] = "b"
    assert Outer().inner.labels == {}


def test_metadata_survives_a_round_trip() -> None:
    metadata: dict[str, Any] = {
        "name": "a",
        "labels": {"b": "c"},
        "finalizers": [],
        "generation": 3,
    }
    assert ObjectMeta.read(metadata).dump() == metadata


def test_python_keywords_lose_their_underscore_on_the_wire() -> None:
    assert Outer.read({"class": "a"}).class_ == "a"
    assert Outer(class_="a").dump() == {"class": "a"}
