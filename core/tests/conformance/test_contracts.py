"""The tables hold together: ids, sources and words, and the pointers from code to rules."""

import re

import capelin.contract
import pytest
from capelin.conformance import contracts as rules
from capelin.conformance.contracts import (
    CLUSTERCTL,
    CONTRACTS,
    CONTROL_PLANE,
    INFRA_MACHINE_POOL,
    ContractRule,
)
from capelin.conformance.contracts.rule import Contract

ALL = [(contract, rule) for contract in CONTRACTS for rule in contract]
IDS = {rule.id for _, rule in ALL}
NAMES = {
    name: value
    for name, value in vars(capelin.contract).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str)
}
WORDS = set(NAMES.values())
PAGES = "https://cluster-api.sigs.k8s.io/developer/providers/contracts"


def test_every_rule_has_an_id_of_its_own_under_its_contract() -> None:
    assert len(IDS) == len(ALL)
    for contract, rule in ALL:
        assert re.fullmatch(rf"{contract.name}/[a-z-]+", rule.id)


def test_a_rule_is_found_by_either_name() -> None:
    assert CONTROL_PLANE["kubeconfig"].title == "Kubeconfig"
    assert CONTROL_PLANE["control-plane/kubeconfig"] is CONTROL_PLANE["kubeconfig"]
    with pytest.raises(KeyError, match="control-plane/nonsense"):
        _ = CONTROL_PLANE["nonsense"]


def names(contract: Contract, *, mandatory: bool) -> list[str]:
    return [r.id.partition("/")[2] for r in contract if r.mandatory is mandatory]


EVERY = ["scope", "type-meta", "contract-labels", "definition"]


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        (CONTROL_PLANE, ["initialization", "kubeconfig"]),
        (INFRA_MACHINE_POOL, ["provider-id-list", "initialization", "replicas"]),
        (rules.INFRA_MACHINE, ["provider-id", "initialization", "template"]),
        (rules.INFRA_CLUSTER, ["initialization"]),
    ],
)
def test_the_mandatory_rules_are_those_of_the_documents(
    contract: Contract, expected: list[str]
) -> None:
    assert names(contract, mandatory=True) == EVERY + expected
    assert [rule.id for rule in contract.mandatory()] == [
        f"{contract.name}/{name}" for name in EVERY + expected
    ]


def test_no_rule_is_both_mandatory_and_only_sometimes_so() -> None:
    assert not [rule.id for _, rule in ALL if rule.mandatory and rule.mandatory_if]


def test_every_rule_says_what_it_asks_in_a_sentence() -> None:
    for _, rule in ALL:
        assert re.fullmatch(r"[A-Z].+\.|metadata\.yaml .+\.", rule.says), rule.id
        assert rule.title
        assert rule.applies_to


@pytest.mark.parametrize(
    ("contract", "name", "source"),
    [
        (
            CONTROL_PLANE,
            "endpoint",
            f"{PAGES}/control-plane#controlplane-endpoint",
        ),
        (
            CONTROL_PLANE,
            "node-metadata",
            "https://cluster-api.sigs.k8s.io/reference/api/metadata-propagation#machine",
        ),
        (
            CLUSTERCTL,
            "namespace-flag",
            f"{PAGES}/clusterctl#controllers--watching-namespace",
        ),
        (
            CLUSTERCTL,
            "classes-namespace",
            f"{PAGES}/clusterctl#target-namespace-2",
        ),
    ],
)
def test_a_rule_knows_where_it_is_stated(contract: Contract, name: str, source: str) -> None:
    assert contract.source(contract[name]) == source


def test_fields_that_the_generations_have_in_different_places_name_both() -> None:
    moved = {
        field.path: field.v1beta1
        for rule in CONTROL_PLANE
        for field in rule.fields
        if field.path.startswith("status.") and field.v1beta1
    }
    assert moved == {
        "status.availableReplicas": "status.unavailableReplicas",
        "status.upToDateReplicas": "status.updatedReplicas",
        "status.versions": "status.version",
        "status.initialization.controlPlaneInitialized": "status.initialized",
        "status.ready": "status.ready",
    }


def test_only_what_came_later_is_of_one_generation() -> None:
    newer = [rule.id for _, rule in ALL if rule.generations == ("v1beta2",)]
    assert newer == [
        "control-plane/rollout-after",
        "control-plane/in-place-updates",
        "infra-machine/in-place-updates",
    ]


@pytest.mark.parametrize("rule", [rule for _, rule in ALL], ids=lambda rule: rule.id)
def test_the_words_of_a_rule_are_labels_or_conditions(rule: ContractRule) -> None:
    contracts = {"cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"}
    domains = {"node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io"}
    for word in rule.words:
        assert word in WORDS | contracts | domains or word.startswith("${"), word


def test_each_label_and_condition_is_named_once() -> None:
    seen: dict[str, str] = {}
    for name, value in NAMES.items():
        # Core uses the same words for a Node's annotations as for labels.
        if name.isupper() and not (name.startswith("NODE_") or name.endswith("_KEY")):
            assert value not in seen, f"{name} and {seen[value]} are the same"
            seen[value] = name
