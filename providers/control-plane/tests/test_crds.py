"""The CRDs, as core reads them."""

import pytest
from capelin.api import BaseObject, crd
from capelin_control_plane.api import CapelinControlPlane, CapelinControlPlaneTemplate
from capelin_control_plane.provider import LABEL, provider


@pytest.mark.parametrize("kind", [CapelinControlPlane, CapelinControlPlaneTemplate])
def test_crds_list_only_the_implemented_contract(kind: type[BaseObject]) -> None:
    definition = crd(kind, provider=LABEL)
    resource = kind.resource
    assert definition["metadata"]["name"] == f"{resource.kind.lower()}s.{resource.group}"
    labels = definition["metadata"]["labels"]
    # Core would wait for the condition Ready of v1beta1, which control planes do not have.
    assert "cluster.x-k8s.io/v1beta1" not in labels
    assert labels["cluster.x-k8s.io/v1beta2"] == "v1alpha1"
    assert labels["cluster.x-k8s.io/provider"] == "control-plane-capelin"
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"]["listKind"] == f"{resource.kind}List"


def test_the_scale_subresource_has_the_paths_of_the_autoscaler() -> None:
    (version,) = crd(CapelinControlPlane)["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_a_template_has_neither_version_nor_replicas() -> None:
    (version,) = crd(CapelinControlPlaneTemplate)["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    made = spec["properties"]["template"]["properties"]["spec"]["properties"]
    assert {"version", "replicas", "controlPlaneEndpoint"} & made.keys() == set()


def test_the_provider_requests_no_wildcards_and_no_updates_of_secrets() -> None:
    rules = provider().rules
    assert all("*" not in rule["verbs"] and "*" not in rule["resources"] for rule in rules)
    secrets = next(rule for rule in rules if "secrets" in rule["resources"])
    assert "update" not in secrets["verbs"]
