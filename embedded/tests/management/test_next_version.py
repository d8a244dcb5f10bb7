"""The programs of the next version, got in the background."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_embedded.management.next_version import (
    prefetch_by_default,
    upgradable_version,
    upgrades_of,
)

KNOWN = ("v1.33.13", "v1.34.4", "v1.34.9", "v1.35.4")


def cluster(version: str, available: str) -> Cluster:
    conditions: list[Any] = [
        {
            "type": "Available",
            "status": available,
            "reason": "Test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    return Cluster.read(
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "default"},
            "spec": {"topology": {"classRef": {"name": "capelin"}, "version": version}},
            "status": {"conditions": conditions},
        }
    )


def test_the_next_version_is_the_newest_patch_of_the_next_minor() -> None:
    assert upgrades_of("v1.33.13", KNOWN)[-1] == "v1.34.9"
    assert upgrades_of("v1.34.9", KNOWN) == ["v1.35.4"]
    assert upgrades_of("v1.35.4", KNOWN) == []


def test_it_waits_until_a_cluster_is_available() -> None:
    new, ready = cluster("v1.34.4", "False"), cluster("v1.33.13", "True")
    assert upgradable_version([]) is None
    assert upgradable_version([new]) is None
    assert upgradable_version([new, ready]) == "v1.33.13"


@pytest.mark.parametrize(("value", "expected"), [("true", False), ("1", False), ("false", True)])
def test_ci_does_not_prefetch(value: str, *, expected: bool) -> None:
    assert prefetch_by_default({"CI": value}) is expected
    assert prefetch_by_default({})
