"""Field types validate the objects that Python builds."""

from decimal import Decimal
from typing import Annotated, Any

import pytest
from annotated_types import MaxLen
from capelin.api import Model
from capelin.api.fields import (
    DNSLabel,
    IntOrPercent,
    KubernetesVersion,
    Quantity,
    amount,
    map_list,
    set_list,
)
from pydantic import TypeAdapter, ValidationError


class Item(Model):
    name: DNSLabel
    zone_id: Annotated[str, MaxLen(9)] = ""


class Lists(Model):
    items: Annotated[list[Item], map_list("name", "zoneID")] = []
    tags: Annotated[list[str], set_list()] = []


def reads(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (DNSLabel, ["a", "a-1", "1"], ["", "A", "-a", "a.b", "a" * 64]),
        (IntOrPercent, [0, 3, "0%", "250%"], [-1, "3", "%", "-1%", "1.5%", "1000%"]),
        (Quantity, [0, "1", "1.5Gi", "500m", ".5", "1e3"], [-1, "-1", "1 Gi", "1GiB", "", "e3"]),
        (KubernetesVersion, ["v1.34.4", "1.34.4", "v1.34.0-rc.1+k3s1"], ["v1.34", "1", "v1.34.x"]),
    ],
)
def test_fields_reject_invalid_values(kind: Any, right: list[Any], wrong: list[Any]) -> None:
    assert [value for value in right if not reads(kind, value)] == []
    assert [value for value in wrong if reads(kind, value)] == []


def test_a_version_without_its_v_gets_one() -> None:
    version: TypeAdapter[str] = TypeAdapter(KubernetesVersion)
    assert [version.validate_python(text) for text in ("1.34.4", "v1.34.4")] == ["v1.34.4"] * 2


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        (4, "4"),
        ("500m", "0.5"),
        ("1.5Ki", "1536"),
        ("2E", "2e18"),
        ("2e3", "2000"),
        ("1Ei", "1152921504606846976"),
        ("7n", "7e-9"),
        (".5k", "500"),
    ],
)
def test_a_quantity_is_an_amount(quantity: int | str, number: str) -> None:
    assert amount(quantity) == Decimal(number)


def test_a_duplicate_item_of_a_map_list_fails_with_its_keys() -> None:
    Lists(items=[Item(name="a"), Item(name="a", zone_id="1")])
    with pytest.raises(ValidationError, match="a, 1 is in the list twice"):
        Lists(items=[Item(name="a", zone_id="1"), Item(name="a", zone_id="1")])


def test_a_duplicate_value_of_a_set_fails() -> None:
    with pytest.raises(ValidationError, match="b is in the list twice"):
        Lists(tags=["a", "b", "b"])
