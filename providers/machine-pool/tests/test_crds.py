"""The CRDs of the provider."""

from typing import Any

import pytest
from capelin.api import crd
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool, MachinePoolSpec, Simulated
from capelin_machine_pool.provider import provider
from pydantic import ValidationError


def schema(manifest: dict[str, Any], *path: str) -> dict[str, Any]:
    found = manifest["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
    for step in path:
        found = found["properties"][step]
    return found


@pytest.mark.parametrize("manifest", provider().crds, ids=lambda crd: crd["metadata"]["name"])
def test_every_kind_is_labelled_with_its_contract_and_provider(manifest: dict[str, Any]) -> None:
    kind = manifest["spec"]["names"]["kind"]
    assert manifest["metadata"]["name"] == (f"{kind.lower()}s.infrastructure.cluster.x-k8s.io")
    labels = manifest["metadata"]["labels"]
    assert labels["cluster.x-k8s.io/v1beta2"] == "v1alpha1"
    # v1beta2 has a list of failure domains, v1beta1 a map.
    assert "cluster.x-k8s.io/v1beta1" not in labels
    assert labels["cluster.x-k8s.io/provider"] == "infrastructure-capelin"
    assert manifest["spec"]["scope"] == "Namespaced"
    assert manifest["spec"]["names"]["listKind"] == f"{kind}List"
    assert manifest["spec"]["names"]["categories"] == ["cluster-api"]


def test_a_pool_allows_as_many_provider_ids_as_the_contract() -> None:
    listed = schema(crd(CapelinMachinePool), "spec", "providerIDList")
    assert listed["maxItems"] == 10_000
    assert listed["x-kubernetes-list-type"] == "atomic"
    assert (listed["items"]["minLength"], listed["items"]["maxLength"]) == (1, 512)


def test_the_fields_that_core_reads_have_its_names() -> None:
    pool = crd(CapelinMachinePool)
    assert schema(pool, "status", "initialization", "provisioned")["type"] == "boolean"
    assert schema(pool, "status", "ready")["type"] == "boolean"
    assert schema(pool, "status", "replicas")["type"] == "integer"
    assert schema(pool, "status", "infrastructureMachineKind")["type"] == "string"
    assert not {"failureReason", "failureMessage"} & set(schema(pool, "status")["properties"])
    machine = crd(CapelinMachine)
    assert schema(machine, "spec", "providerID")["maxLength"] == 512
    assert schema(machine, "status", "failureDomain")["type"] == "string"
    assert set(schema(machine, "status", "addresses")["items"]["properties"]) == {
        "type",
        "address",
    }


def test_the_shares_of_faults_have_a_common_limit_and_defaults() -> None:
    faults = schema(crd(CapelinMachinePool), "spec", "simulated", "faults")
    (found,) = faults["x-kubernetes-validations"]
    assert found["rule"] == "self.neverBoots + self.dies + self.flaps <= 100"
    # All shares have defaults, so the rule never reads a missing field.
    assert {name: field.get("default") for name, field in faults["properties"].items()} == {
        "neverBoots": 0,
        "dies": 0,
        "flaps": 0,
        "afterSeconds": 60,
    }


@pytest.mark.parametrize(
    "simulated",
    [
        {"faults": {"dies": 101}},
        {"faults": {"flaps": -1}},
        {"startupSeconds": -1},
        {"startupSeconds": 86_401},
        {"capacity": {"cpu": "many"}},
        {"labels": {"team": "x" * 64}},
        {"taints": [{"key": "a", "effect": "Never"}]},
    ],
)
def test_invalid_simulated_machines_are_rejected(simulated: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Simulated.model_validate(simulated)


@pytest.mark.parametrize("value", [-1, "25", "-5%", "1000%", "x%"])
def test_a_surge_must_be_a_number_or_percentage(value: int | str) -> None:
    with pytest.raises(ValidationError):
        MachinePoolSpec.model_validate({"rollingUpdate": {"maxSurge": value}})


def test_the_provider_installs_every_kind_and_may_use_it() -> None:
    made = provider()
    assert {crd["spec"]["names"]["kind"] for crd in made.crds} == {
        "CapelinCluster",
        "CapelinClusterTemplate",
        "CapelinHost",
        "CapelinMachine",
        "CapelinMachinePool",
        "CapelinMachinePoolTemplate",
        "CapelinMachineTemplate",
    }
    allowed = {
        (group, resource, verb)
        for rule in made.rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("cluster.x-k8s.io", "machines", "delete") in allowed
    assert ("infrastructure.cluster.x-k8s.io", "capelinmachines", "create") in allowed
    assert not {verb for _, resource, verb in allowed if resource == "secrets"} - {"get"}
    assert ("bootstrap.cluster.x-k8s.io", "*", "get") not in allowed
    assert not {group for group, resource, _ in allowed if resource == "*"}
