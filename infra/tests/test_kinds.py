"""What kubectl says of the kinds of all our providers."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.embedded.management.providers import installed_providers

CRDS = [crd for provider in installed_providers() for crd in provider.crds]


def undescribed(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields of a schema about which `kubectl explain` would have nothing to say."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    for name, field in properties.items():
        if not path and name in {"apiVersion", "kind", "metadata"}:
            continue
        if not field.get("description"):
            yield f"{path}.{name}"
        yield from undescribed(field, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from undescribed(schema[part], f"{path}[]")


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_kubectl_explains_every_field(crd: Unstructured) -> None:
    for version in crd["spec"]["versions"]:
        assert list(undescribed(version["schema"]["openAPIV3Schema"])) == []


def test_short_names_are_not_those_of_others() -> None:
    names = [name for crd in CRDS for name in crd["spec"]["names"].get("shortNames", [])]
    assert len(names) == len({*names})
    assert not {*names} & {"cl", "cc", "ma", "md", "mp", "ms", "mhc", "kcp", "ext", "po", "no"}
