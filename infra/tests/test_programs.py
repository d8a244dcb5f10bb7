"""Resources of programs and components: order, parents and secrets."""

from pathlib import Path

import pulumi
import pytest
import yaml
from capelin.api import Model
from capelin.errors import MissingError
from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.management_cluster import (
    ManagementCluster,
    ManagementClusterArgs,
)
from capelin_infra.components.objects import WAIT_FOR
from capelin_infra.components.repository import ComponentRepository
from capelin_infra.programs import DevConfig, E2EConfig, dev, e2e
from capelin_infra.programs.settings import project_config, settings
from capelin_infra.resources import KindCluster

from .graph import OUTPUTS, PAGES, diagram, picture, with_picture
from .recorded import Registered, registered


def before(resources: dict[str, Registered], name: str) -> set[str]:
    """All direct and indirect dependencies of a resource."""
    found: set[str] = set()
    left = [name]
    while left:
        resource = resources.get(left.pop())
        for other in resource.dependencies if resource else ():
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def test_a_program_creates_environment_then_class_then_cluster() -> None:
    resources = registered(lambda: dev(DevConfig(target="process", name="here")), OUTPUTS)
    assert {each.type for each in resources.values()} >= {
        "capelin:components:ManagementCluster",
        "capelin:index:Environment",
        "pulumi:providers:kubernetes",
        "capelin:components:ClusterClass",
        "kubernetes:cluster.x-k8s.io/v1beta2:ClusterClass",
        "capelin:index:WorkloadCluster",
    }
    assert "capelin-clusterclass-capelin" in before(resources, "demo")
    environment = next(
        each for each in resources.values() if each.type == "capelin:index:Environment"
    )
    assert environment.inputs["name"] == "here"
    assert environment.parent == "management"
    assert "existingKubeconfig" not in environment.inputs


def test_kubeconfigs_are_secrets_everywhere() -> None:
    resources = registered(lambda: dev(DevConfig(target="process")), OUTPUTS)
    workload = resources["demo"]
    assert workload.inputs["kubeconfig"] == "admin"
    assert "kubeconfig" in workload.secrets
    provider = next(each for each in resources.values() if each.type.startswith("pulumi:providers"))
    assert "kubeconfig" in provider.secrets


def test_controllers_on_kind_use_the_cluster_of_the_program() -> None:
    resources = registered(
        lambda: dev(DevConfig(target="kind", name="here", node_image="node:v1")), OUTPUTS
    )
    kind = next(each for each in resources.values() if each.type == "capelin:index:KindCluster")
    environment = next(
        each for each in resources.values() if each.type == "capelin:index:Environment"
    )
    assert (kind.inputs["name"], kind.inputs["image"]) == ("here", "node:v1")
    assert environment.inputs["existingKubeconfig"] == "kind-admin"
    assert "existingKubeconfig" in environment.secrets
    assert kind.name in environment.dependencies


def test_a_kind_cluster_has_the_nodes_that_a_program_describes() -> None:
    """The SDK checks values against the types of the outputs."""
    resources = registered(
        lambda: _keep(KindCluster("kind", name="here", nodes=[{"role": "control-plane"}]))
    )
    assert resources["kind"].inputs["nodes"] == [{"role": "control-plane"}]


def test_templates_come_before_the_class_that_refers_to_them() -> None:
    resources = registered(lambda: _keep(ClusterClass("capelin", ClusterClassArgs())))
    cluster_class = resources["capelin-clusterclass-capelin"]
    templates = {each.name for each in resources.values() if each.type.endswith("Template")}
    assert len(templates) == 5
    assert templates <= cluster_class.dependencies
    assert {resources[name].parent for name in templates} == {"capelin"}
    policies = [
        resources[name].inputs["metadata"]["annotations"]
        for name in (*templates, cluster_class.name)
    ]
    assert all(each["pulumi.com/deletionPropagationPolicy"] == "background" for each in policies)


def test_manifests_without_a_class_are_rejected() -> None:
    with pytest.raises(ValueError, match="exactly one ClusterClass, and have 0"):
        registered(lambda: _keep(ClusterClass("none", ClusterClassArgs(manifests=()))))


def test_an_existing_cluster_needs_its_kubeconfig() -> None:
    args = ManagementClusterArgs(name="here", target="existing")
    with pytest.raises(ValueError, match="the target existing needs a kubeconfig"):
        registered(lambda: _keep(ManagementCluster("management", args)))


def test_settings_are_checked_all_at_once() -> None:
    pulumi.runtime.set_all_config({"project:workers": "many", "project:target": "moon"})
    with pytest.raises(pulumi.RunError, match=r"(?s)target: .*workers: "):
        settings(DevConfig, pulumi.Config("project"))


def test_settings_are_read_from_text() -> None:
    pulumi.runtime.set_all_config({"project:workers": "5", "project:kubernetesVersion": "v1.33.13"})
    config = settings(DevConfig, pulumi.Config("project"))
    assert (config.workers, config.kubernetes_version) == (5, "v1.33.13")


@pytest.mark.parametrize(("folder", "config"), [("dev", DevConfig), ("e2e", E2EConfig)])
def test_a_project_file_has_the_settings_of_its_program(folder: str, config: type[Model]) -> None:
    file = Path(__file__).parents[1] / folder / "Pulumi.yaml"
    assert yaml.safe_load(file.read_text())["config"] == project_config(config)


def _keep(resource: pulumi.Resource) -> None:
    del resource


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_diagram_on_the_page_is_current(page: Path) -> None:
    """Update it with `python -m infra.tests.graph`."""
    text = page.read_text()
    assert picture() in text
    assert with_picture(text) == text


def test_a_diagram_omits_indirect_dependencies() -> None:
    def made(name: str, *dependencies: str) -> Registered:
        return Registered(name, "a:index:Made", "", frozenset(dependencies), {}, frozenset())

    resources = {each.name: each for each in (made("a"), made("b", "a"), made("c", "a", "b"))}
    assert [line.strip() for line in diagram(resources).splitlines() if "-->" in line] == [
        "a --> b",
        "b --> c",
    ]


def a_repository(folder: Path) -> Path:
    """A release's folder with one object of each stage, for each provider."""
    kinds = ("ValidatingWebhookConfiguration", "Deployment", "Service", "CustomResourceDefinition")
    labels = ("cert-manager", "cluster-api", "bootstrap-kubeadm", *OURS, EXTENSION)
    for label in labels:
        there = [*kinds, *(["ExtensionConfig"] if label == EXTENSION else [])]
        objects = [
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": label}} for kind in there
        ]
        name = "cert-manager" if label == "cert-manager" else "some-components"
        for version, written in (("v0.9.0", objects[:0]), ("v0.10.0", objects)):
            file = folder / label / version / f"{name}.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(yaml.safe_dump_all(written))
    return folder


OURS = ("control-plane-capelin", "infrastructure-capelin")
EXTENSION = "runtime-extension-lifecycle"


def test_parts_of_a_release_depend_on_the_parts_that_they_need(tmp_path: Path) -> None:
    config = E2EConfig(repository=str(a_repository(tmp_path)), images="a.tar,b.tar")
    resources = registered(lambda: e2e(config), OUTPUTS)
    assert resources["kind"].inputs["images"] == ["a.tar", "b.tar"]

    def deployment(label: str, component: str | None = None) -> str:
        return f"{component or label}-deployment-{label}"

    cert_manager = deployment("cert-manager", "cert-manager-objects")
    core = deployment("cluster-api", "cluster-api-objects")
    assert cert_manager in before(resources, "cert-manager-webhook")
    assert "cert-manager-webhook" in before(resources, core)
    assert core in before(resources, "cluster-api-webhooks")
    for label in (*OURS, EXTENSION):
        assert "cluster-api-webhooks" in before(resources, deployment(label))
        assert deployment(label) in before(resources, "capelin-clusterclass-capelin")
        crd, service = f"{label}-customresourcedefinition-{label}", f"{label}-service-{label}"
        assert crd in before(resources, service)
        assert service in before(resources, deployment(label))
        assert deployment(label) in before(
            resources, f"{label}-validatingwebhookconfiguration-{label}"
        )
    registration = resources[f"{EXTENSION}-extensionconfig-{EXTENSION}"]
    assert registration.inputs["metadata"]["annotations"][WAIT_FOR] == "condition=Discovered"
    assert deployment(EXTENSION) in registration.dependencies
    assert "capelin-clusterclass-capelin" in before(resources, "demo")
    assert resources["demo"].inputs["variables"] == {"backend": "Pods", "exposure": "NodePort"}


def test_a_missing_provider_version_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    repository = ComponentRepository(a_repository(tmp_path))
    with pytest.raises(MissingError, match=r"has no cluster-api v1.0.0\.") as refused:
        repository.manifests("cluster-api", version="v1.0.0")
    assert "v0.10.0, v0.9.0" in refused.value.reason
