"""What the programs and components register: resources, order, parents, secrets."""

from pathlib import Path

import pulumi
import pytest
import yaml
from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.management_cluster import ManagementCluster, ManagementClusterArgs
from capelin_infra.programs import DevConfig, dev
from capelin_infra.programs.settings import project_config, settings

from .graph import OUTPUTS, PAGE, diagram, with_picture
from .recorded import Registered, registered


def before(resources: dict[str, Registered], name: str) -> set[str]:
    """All that has to be there before a resource, directly or not."""
    found: set[str] = set()
    left = [name]
    while left:
        resource = resources.get(left.pop())
        for other in resource.dependencies if resource else ():
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def test_a_process_environment_comes_before_its_class_and_that_before_the_cluster() -> None:
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


def test_kubeconfigs_are_secrets_wherever_they_go() -> None:
    resources = registered(lambda: dev(DevConfig(target="process")), OUTPUTS)
    workload = resources["demo"]
    assert workload.inputs["kubeconfig"] == "admin"
    assert "kubeconfig" in workload.secrets
    provider = next(each for each in resources.values() if each.type.startswith("pulumi:providers"))
    assert "kubeconfig" in provider.secrets


def test_on_kind_the_controllers_use_the_cluster_that_was_made_for_them() -> None:
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


def test_templates_come_before_the_class_that_refers_to_them() -> None:
    resources = registered(lambda: _keep(ClusterClass("capelin", ClusterClassArgs())))
    cluster_class = resources["capelin-clusterclass-capelin"]
    templates = {each.name for each in resources.values() if each.type.endswith("Template")}
    assert len(templates) == 4
    assert templates <= cluster_class.dependencies
    assert {resources[name].parent for name in templates} == {"capelin"}
    policies = [
        resources[name].inputs["metadata"]["annotations"]
        for name in (*templates, cluster_class.name)
    ]
    assert all(each["pulumi.com/deletionPropagationPolicy"] == "background" for each in policies)


def test_manifests_without_a_class_are_refused() -> None:
    with pytest.raises(ValueError, match="the manifests have 0 ClusterClasses"):
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


def test_the_project_file_has_the_settings_of_the_program() -> None:
    file = Path(__file__).parents[2] / "dev" / "Pulumi.yaml"
    assert yaml.safe_load(file.read_text())["config"] == project_config(DevConfig), (
        "write it anew: python -m capelin_infra.programs.settings"
    )


def _keep(resource: pulumi.Resource) -> None:
    del resource


def test_the_picture_in_the_guide_is_fresh() -> None:
    """`python -m infra.tests.pulumi.graph` draws it anew."""
    assert with_picture(PAGE.read_text()) == PAGE.read_text()


def test_a_picture_leaves_out_what_is_waited_for_by_way_of_something_else() -> None:
    def made(name: str, *dependencies: str) -> Registered:
        return Registered(name, "a:index:Made", "", frozenset(dependencies), {}, frozenset())

    resources = {each.name: each for each in (made("a"), made("b", "a"), made("c", "a", "b"))}
    assert [line.strip() for line in diagram(resources).splitlines() if "-->" in line] == [
        "a --> b",
        "b --> c",
    ]
