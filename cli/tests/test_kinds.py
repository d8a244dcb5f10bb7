"""The kinds of all providers in kubectl."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from capelin.api import Unstructured
from capelin_embedded.management.providers import installed_providers

VALUES = "additionalProperties"
CRDS = [crd for provider in installed_providers() for crd in provider.crds]


def undescribed(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields of a schema without a description."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    for name, field in properties.items():
        if not path and name in {"apiVersion", "kind", "metadata"}:
            continue
        if not field.get("description"):
            yield f"{path}.{name}"
        yield from undescribed(field, f"{path}.{name}")
    for part in ("items", VALUES):
        if isinstance(schema.get(part), dict):
            yield from undescribed(schema[part], f"{path}[]")


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_kubectl_explains_every_field(crd: Unstructured) -> None:
    for version in crd["spec"]["versions"]:
        assert list(undescribed(version["schema"]["openAPIV3Schema"])) == []


def quantities(schema: Mapping[str, Any], description: str = "") -> Iterator[str]:
    """Descriptions of fields with a quantity, whose type `kubectl explain` shows as Object."""
    description = schema.get("description", description)
    if "KMGTPE" in schema.get("pattern", ""):
        yield description
    parts = [*schema.get("properties", {}).values(), schema.get("items"), schema.get(VALUES)]
    for part in parts:
        if isinstance(part, dict):
            yield from quantities(cast("Mapping[str, Any]", part), description)


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_kubectl_explains_how_a_quantity_is_written(crd: Unstructured) -> None:
    for version in crd["spec"]["versions"]:
        for description in quantities(version["schema"]["openAPIV3Schema"]):
            assert re.search("`[0-9]+[A-Za-z]*`", description), description


def test_the_crds_contain_quantities() -> None:
    schemas = [crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in CRDS]
    assert sum(len([*quantities(schema)]) for schema in schemas) > 10


def test_short_names_do_not_conflict() -> None:
    names = [name for crd in CRDS for name in crd["spec"]["names"].get("shortNames", [])]
    assert len(names) == len({*names})
    assert not {*names} & {"cl", "cc", "ma", "md", "mp", "ms", "mhc", "kcp", "ext", "po", "no"}


def test_kubectl_get_cluster_api_lists_every_kind() -> None:
    for crd in CRDS:
        assert crd["spec"]["names"]["categories"] == ["cluster-api"]


def test_listed_kinds_have_a_short_name_and_a_state_column() -> None:
    states = {"Available", "Ready", "Phase", "Valid"}
    for crd in CRDS:
        names = crd["spec"]["names"]
        # Reservations are internal to the extension.
        if not names["kind"].endswith(("Template", "Reservation")):
            columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
            assert names["shortNames"]
            assert states & {column["name"] for column in columns}, names["kind"]


def test_a_control_plane_is_listed_with_its_endpoint() -> None:
    (crd,) = [crd for crd in CRDS if crd["spec"]["names"]["kind"] == "CapelinControlPlane"]
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    assert ".spec.controlPlaneEndpoint.host" in [column["jsonPath"] for column in columns]
