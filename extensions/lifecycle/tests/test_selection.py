"""Which policies are for a Cluster, a hook and a version."""

from typing import Any

import pytest
from capelin_lifecycle.api.policies import Selector
from capelin_lifecycle.policies.memory import from_text, to_text
from capelin_lifecycle.policies.selection import KnownPolicy, in_range, matches, selected, selects
from capelin_lifecycle.reconcilers.registration import TOPOLOGY_HANDLERS, needed_handlers

from .factories import known, occurrence


@pytest.mark.parametrize(
    ("wanted", "version", "is_in"),
    [
        (">=1.33 <1.35", "v1.34.4", True),
        (">=1.33 <1.35", "v1.35.0", False),
        ("<=1.34", "v1.34.4", True),
        (">1.34", "v1.34.4", False),
        ("1.34", "v1.34.4", True),
        ("1.34", "v1.33.13", False),
        ("=1.34.4", "v1.34.4", True),
        (">=1.34.5", "v1.34.4", False),
        (">=1.34.0", "v1.34.0-rc.1", True),
        (">=1.9", "v1.10.0", True),
        (">=1.33", "unknown", False),
        (">=1.34.0", "v1.34", True),
        (">=1.34.1", "v1.34", False),
        ("latest", "v1.34.4", False),
    ],
)
def test_versions_are_compared_as_numbers(wanted: str, version: str, is_in: bool) -> None:
    assert in_range(wanted, version) is is_in


@pytest.mark.parametrize(
    ("operator", "values", "is_selected"),
    [
        ("In", ["prod", "dev"], True),
        ("In", ["dev"], False),
        ("NotIn", ["prod"], False),
        ("NotIn", ["dev"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_label_selectors(operator: str, values: list[str], is_selected: bool) -> None:
    requirement = {"key": "tier", "operator": operator, "values": values}
    selector = Selector.read({"matchExpressions": [requirement]})
    assert selects(selector, {"tier": "prod"}) is is_selected


@pytest.mark.parametrize(
    ("spec", "is_match"),
    [
        ({}, True),
        ({"hook": "BeforeClusterDelete"}, False),
        ({"suspend": True}, False),
        ({"namespace": "other"}, False),
        ({"namespace": None}, True),
        ({"namespace": None, "namespaceSelector": {"matchLabels": {"env": "prod"}}}, True),
        ({"namespace": None, "namespaceSelector": {"matchLabels": {"env": "dev"}}}, False),
        ({"classes": ["small"]}, False),
        ({"classes": ["large"]}, True),
        ({"clusterSelector": {"matchLabels": {"tier": "prod"}}}, True),
        ({"clusterSelector": {"matchLabels": {"tier": "dev"}}}, False),
        ({"versions": {"from": "1.33", "to": ">=1.34"}}, True),
        ({"versions": {"to": "<1.34"}}, False),
    ],
)
def test_policy_needs_all_selectors(spec: dict[str, Any], is_match: bool) -> None:
    upgrade = occurrence(labels={"tier": "prod"}, cluster_class="large")
    assert matches(known(**spec), upgrade, {"env": "prod"}) is is_match


def test_policies_start_in_their_order() -> None:
    policies = [known("a", order=2), known("b"), known("c", order=-1), known("d")]
    names = [policy.name for policy in selected(policies, occurrence(), None)]
    assert names == ["c", "b", "d", "a"]


def test_discovery_reports_what_policies_need() -> None:
    policies = [
        known("gate"),
        known("notice", hook="AfterClusterUpgrade", onFailure="Continue"),
        known("suspended", hook="BeforeClusterDelete", suspend=True),
        known("patches", hook="GeneratePatches"),
    ]
    assert needed_handlers(policies) - set(TOPOLOGY_HANDLERS.values()) == {
        "before-cluster-upgrade-gate",
        "after-cluster-upgrade-notice",
    }


def test_the_remembered_text_keeps_the_selectors_of_policies() -> None:
    policies = [
        known("a", classes=["large"], versions={"to": ">=1.34"}),
        known("b", namespace=None, namespaceSelector={"matchLabels": {"env": "prod"}}),
    ]
    remembered = from_text(to_text(policies)) or []
    assert to_text(remembered) == to_text(policies)
    for number, cluster_class in enumerate(("large", "small")):
        upgrade = occurrence(cluster_class=cluster_class)
        for labels in ({"env": "prod"}, {}):
            names = [policy.name for policy in selected(remembered, upgrade, labels)]
            assert names == [policy.name for policy in selected(policies, upgrade, labels)]
            assert ("a" in names) is (number == 0)


@pytest.mark.parametrize(("text", "remembered"), [("", None), ("{", None), ("[]", [])])
def test_empty_store_is_unknown(text: str, remembered: list[KnownPolicy] | None) -> None:
    assert from_text(text) == remembered
