"""Each static rule fails for manifests that break it, and no other rule does."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.errors import InvalidInputError
from capelin.yaml import write_yaml
from capelin_conformance.providers import (
    COMPONENT_RULES,
    KIND_RULES,
    Contract,
    ProviderManifests,
    Subject,
    check_manifests,
    load_manifests,
)
from capelin_conformance.providers.components import image_problem
from capelin_conformance.report import ConformanceReport

from .desks import release

Break = Callable[[ProviderManifests], None]
MACHINE = "DeskMachine"
CONTRACTS: list[tuple[Contract, str | None]] = [
    ("infra-cluster", None),
    ("infra-machine", MACHINE),
    ("infra-machine", "StandingMachine"),
    ("control-plane", None),
    ("clusterctl", None),
]


def definition(manifests: ProviderManifests, kind: str) -> Unstructured:
    found = manifests.find_kind(kind)
    assert found is not None
    return found.definition


def schema(manifests: ProviderManifests, kind: str, part: str) -> dict[str, Any]:
    """The properties of the spec or the status."""
    version = definition(manifests, kind)["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"][part]["properties"]


def object_of(manifests: ProviderManifests, kind: str) -> Unstructured:
    return manifests.of_kind(kind)[0]


def not_namespaced(manifests: ProviderManifests) -> None:
    definition(manifests, MACHINE)["spec"]["scope"] = "Cluster"


def odd_plural(manifests: ProviderManifests) -> None:
    definition(manifests, MACHINE)["metadata"]["name"] = "desks.infrastructure.cluster.x-k8s.io"


def odd_list(manifests: ProviderManifests) -> None:
    definition(manifests, MACHINE)["spec"]["names"]["listKind"] = "Desks"


def unserved_version(manifests: ProviderManifests) -> None:
    labels = definition(manifests, MACHINE)["metadata"]["labels"]
    labels["cluster.x-k8s.io/v1beta2"] = "v1alpha1_v9"


def old_contract(manifests: ProviderManifests) -> None:
    for kind in (MACHINE, f"{MACHINE}Template"):
        labels = definition(manifests, kind)["metadata"]["labels"]
        labels["cluster.x-k8s.io/v1beta1"] = labels.pop("cluster.x-k8s.io/v1beta2")


def no_status(manifests: ProviderManifests) -> None:
    definition(manifests, MACHINE)["spec"]["versions"][0]["subresources"] = {}


def no_provider_id(manifests: ProviderManifests) -> None:
    del schema(manifests, MACHINE, "spec")["providerID"]


def other_type(manifests: ProviderManifests) -> None:
    schema(manifests, MACHINE, "status")["failureDomain"] = {"type": "integer"}


def no_template(manifests: ProviderManifests) -> None:
    definition(manifests, f"{MACHINE}Template")["spec"]["names"]["kind"] = "DeskMachineMould"


def no_selector(manifests: ProviderManifests) -> None:
    version = definition(manifests, "DeskControlPlane")["spec"]["versions"][0]
    del version["subresources"]["scale"]["labelSelectorPath"]


def failure_reason(manifests: ProviderManifests) -> None:
    schema(manifests, MACHINE, "status")["failureReason"] = {"type": "string"}


def no_aggregation(manifests: ProviderManifests) -> None:
    for role in manifests.of_kind("ClusterRole"):
        role["metadata"]["labels"].pop("cluster.x-k8s.io/aggregate-to-manager", None)


BROKEN_KINDS: dict[str, tuple[Contract, str | None, Break]] = {
    "scope": ("infra-machine", MACHINE, not_namespaced),
    "crd-name": ("infra-machine", MACHINE, odd_plural),
    "list-kind": ("infra-machine", MACHINE, odd_list),
    "contract-label": ("infra-machine", MACHINE, unserved_version),
    "current-contract": ("infra-machine", MACHINE, old_contract),
    "status-subresource": ("infra-machine", MACHINE, no_status),
    "required-fields": ("infra-machine", MACHINE, no_provider_id),
    "field-types": ("infra-machine", MACHINE, other_type),
    "template": ("infra-machine", MACHINE, no_template),
    "scale-subresource": ("control-plane", None, no_selector),
    "terminal-failures": ("infra-machine", MACHINE, failure_reason),
    "core-permissions": ("infra-machine", "StandingMachine", no_aggregation),
}


def no_series(manifests: ProviderManifests) -> None:
    assert manifests.metadata is not None
    manifests.metadata["kind"] = "Release"


def other_contract(manifests: ProviderManifests) -> None:
    assert manifests.metadata is not None
    manifests.metadata["releaseSeries"][0]["contract"] = "v1alpha4"


def in_another_namespace(manifests: ProviderManifests) -> None:
    object_of(manifests, "ServiceAccount")["metadata"]["namespace"] = "default"


def no_label(manifests: ProviderManifests) -> None:
    object_of(manifests, "ServiceAccount")["metadata"]["labels"] = {}


def container(manifests: ProviderManifests) -> Unstructured:
    return object_of(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def other_container(manifests: ProviderManifests) -> None:
    container(manifests)["name"] = "controller"


def short_image(manifests: ProviderManifests) -> None:
    container(manifests)["image"] = "desk:latest"


def odd_variable(manifests: ProviderManifests) -> None:
    texts: Any = manifests.texts
    texts["infrastructure-components.yaml"] = "name: ${NAME$SIZE}"


def odd_file(manifests: ProviderManifests) -> None:
    texts: Any = manifests.texts
    texts["desk.yaml"] = texts.pop("infrastructure-components.yaml")


def wildcard(manifests: ProviderManifests) -> None:
    object_of(manifests, "ClusterRole")["rules"][0]["verbs"] = ["*"]


BROKEN_COMPONENTS: dict[str, Break] = {
    "metadata": no_series,
    "metadata-contract": other_contract,
    "crd-names": odd_plural,
    "namespace": in_another_namespace,
    "provider-labels": no_label,
    "manager-container": other_container,
    "canonical-images": short_image,
    "variables": odd_variable,
    "file-name": odd_file,
    "wildcards": wildcard,
}


def problems(report: ConformanceReport) -> dict[str, tuple[str, ...]]:
    return {result.name: result.problems for result in report.results if result.problems}


def broken_release(break_: Break) -> ProviderManifests:
    manifests = deepcopy(release())
    break_(manifests)
    return manifests


@pytest.mark.parametrize(("contract", "kind"), CONTRACTS)
def test_complete_provider_keeps_every_rule(contract: Contract, kind: str | None) -> None:
    assert problems(check_manifests(release(), contract, kind)) == {}


def test_every_rule_has_a_broken_counterpart() -> None:
    assert {rule.name for rule in KIND_RULES} == {*BROKEN_KINDS}
    assert {rule.name for rule in COMPONENT_RULES} == {*BROKEN_COMPONENTS}


@pytest.mark.parametrize("name", BROKEN_KINDS)
def test_broken_kind_breaks_exactly_one_rule(name: str) -> None:
    contract, kind, break_ = BROKEN_KINDS[name]
    report = check_manifests(broken_release(break_), contract, kind)
    assert [*problems(report)] == [name]


@pytest.mark.parametrize("name", BROKEN_COMPONENTS)
def test_broken_components_break_exactly_one_rule(name: str) -> None:
    report = check_manifests(broken_release(BROKEN_COMPONENTS[name]), "clusterctl")
    assert [*problems(report)] == [name]


def test_rule_that_does_not_apply_has_a_reason() -> None:
    report = check_manifests(release(), "infra-machine", MACHINE)
    reasons = {result.name: result.reason for result in report.results if result.reason}
    assert reasons == {
        "core-permissions": "core has all permissions in infrastructure.cluster.x-k8s.io",
        "behaviour": "only the manifests were checked",
    }
    assert report.named("untried") == ["behaviour"]


def test_kind_must_be_named_if_several_have_the_suffix() -> None:
    with pytest.raises(InvalidInputError, match="DeskMachine, StandingMachine"):
        Subject.of(release(), "infra-machine")


def test_unknown_kind_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="0 kinds have the name Chair"):
        Subject.of(release(), "infra-machine", "Chair")


def test_folder_of_a_release_is_read(tmp_path: Path) -> None:
    expected = release()
    documents = [write_yaml(dict(obj)) for obj in expected.components]
    (tmp_path / "infrastructure-components.yaml").write_text("---\n".join(documents))
    (tmp_path / "cluster-template.yaml").write_text("kind: Cluster\nmetadata: {}\n")
    (tmp_path / "metadata.yaml").write_text(write_yaml(expected.metadata))
    manifests = load_manifests(tmp_path)
    assert manifests.components == expected.components
    assert manifests.metadata == expected.metadata
    assert [*manifests.texts] == ["infrastructure-components.yaml"]


def test_folder_without_manifests_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no manifests"):
        load_manifests(tmp_path)


def test_file_that_is_not_yaml_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "components.yaml").write_text("a: [")
    with pytest.raises(InvalidInputError, match="not YAML"):
        load_manifests(tmp_path)


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("registry.example.com/desk:v1", None),
        ("localhost:5000/desk:v1", None),
        ("registry.example.com/desk@sha256:abc", None),
        ("registry.example.com/desk", "has no tag other than latest"),
        ("desk:v1", "names no registry"),
        ("library/desk:v1", "names no registry"),
    ],
)
def test_canonical_image(image: str, problem: str | None) -> None:
    assert image_problem(image) == problem
