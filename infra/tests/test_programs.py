"""Resources of programs and components: order, parents and secrets."""

from pathlib import Path

import pulumi
import pytest
import yaml
from capelin.errors import MissingError
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from capelin_infra.components import (
    ClusterClass,
    ClusterClassArgs,
    ManagementCluster,
    ManagementClusterArgs,
    release_objects,
    with_hook_client,
)
from capelin_infra.resources import KindCluster

from .graph import OUTPUTS, PAGES, diagram, picture, with_picture
from .recorded import Registered, program, project_config, registered


@pytest.fixture(autouse=True)
def authority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CA of core's certificate, without a cluster."""

    async def read(_: str) -> str:
        return "CA of hooks"

    monkeypatch.setattr("capelin_infra.components.hook_client._read", read)


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
    resources = registered(program("dev", name="here"), OUTPUTS)
    assert {each.type for each in resources.values()} >= {
        "capelin:components:ManagementCluster",
        "capelin:index:Environment",
        "pulumi:providers:kubernetes",
        "capelin:components:ClusterClass",
        "kubernetes:cluster.x-k8s.io/v1beta2:ClusterClass",
        "capelin:index:WorkloadCluster",
    }
    assert "capelin-clusterclass-capelin" in before(resources, "demo")
    environment = resources["management-environment"]
    assert environment.inputs["name"] == "here"
    assert environment.parent == "management"
    # An environment keeps its version, whatever version its clusters have.
    assert not {"existingKubeconfig", "kubernetesVersion"} & environment.inputs.keys()
    assert resources["demo"].inputs["kubernetesVersion"] == DEFAULT_KUBERNETES


def test_resources_of_a_cluster_name_it_by_its_uid() -> None:
    resources = registered(program("dev"), OUTPUTS)
    assert resources["management-api-server"].inputs["clusterIdentifier"] == "u"
    assert resources["demo"].inputs["managementUID"] == "u"


def test_kubeconfigs_are_secrets_everywhere() -> None:
    resources = registered(program("dev"), OUTPUTS)
    workload = resources["demo"]
    assert workload.inputs["kubeconfig"] == "admin"
    assert "kubeconfig" in workload.secrets
    assert "kubeconfig" in resources["management-api-server"].secrets


def test_controllers_on_kind_use_the_cluster_of_the_program() -> None:
    resources = registered(program("dev", target="kind", name="here", nodeImage="node:v1"), OUTPUTS)
    kind, environment = resources["management-kind"], resources["management-environment"]
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
    resources = registered(lambda: _keep(ClusterClass("capelin")))
    cluster_class = resources["capelin-clusterclass-capelin"]
    templates = {each.name for each in resources.values() if each.type.endswith("Template")}
    assert len(templates) == 5
    assert templates <= cluster_class.dependencies
    assert {resources[name].parent for name in templates} == {"capelin"}


def test_manifests_without_a_class_are_rejected() -> None:
    with pytest.raises(ValueError, match="exactly one ClusterClass, and have 0"):
        registered(lambda: _keep(ClusterClass("none", ClusterClassArgs(manifests=()))))


@pytest.mark.parametrize(
    ("target", "reason"),
    [("existing", "the target existing needs a kubeconfig"), ("moon", "and not moon")],
)
def test_a_target_that_cannot_be_used_is_rejected(target: str, reason: str) -> None:
    args = ManagementClusterArgs(name="here", target=target)
    with pytest.raises(ValueError, match=reason):
        registered(lambda: _keep(ManagementCluster("management", args)))


@pytest.mark.parametrize("folder", ["dev", "e2e"])
def test_a_project_has_the_default_version_and_describes_its_settings(folder: str) -> None:
    config = project_config(folder)
    assert config["kubernetesVersion"]["default"] == DEFAULT_KUBERNETES
    assert all(setting["description"] for setting in config.values())


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


def a_release(folder: Path) -> Path:
    """A release with a chart, and with two versions of each provider, one of them empty."""
    (folder / "capelin-0.10.0.tgz").touch()
    for label in ("cert-manager", "cluster-api", "bootstrap-kubeadm", *OURS):
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": label}}
        name = "cert-manager" if label == "cert-manager" else "some-components"
        for version, objects in (("v0.9.0", []), ("v0.10.0", [config_map])):
            file = folder / "clusterctl" / label / version / f"{name}.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(yaml.safe_dump_all(objects))
    return folder


OURS = ("control-plane-capelin", "infrastructure-capelin", "runtime-extension-lifecycle")
CHART = {"capelin-charts": "kubernetes:helm.sh/v4:Chart"}
COMPONENTS = dict.fromkeys(OURS, "kubernetes:yaml/v2:ConfigGroup")


@pytest.mark.parametrize(("install", "providers"), [("charts", CHART), ("components", COMPONENTS)])
def test_parts_of_a_release_depend_on_the_parts_that_they_need(
    tmp_path: Path, install: str, providers: dict[str, str]
) -> None:
    release = str(a_release(tmp_path))
    run = program("e2e", release=release, install=install, images="a.tar,b.tar")
    resources = registered(run, OUTPUTS)
    assert resources["kind"].inputs["images"] == ["a.tar", "b.tar"]
    assert "cert-manager" in before(resources, "cert-manager-webhook")
    assert "cert-manager-webhook" in before(resources, "cluster-api")
    assert {"cluster-api", "bootstrap-kubeadm"} <= before(resources, "cluster-api-webhooks")
    core, *certificates = resources["cluster-api"].inputs["objs"]
    assert core["metadata"]["name"] == "cluster-api"
    assert [each["kind"] for each in certificates] == ["Issuer", "Certificate"] * 2
    for name, type_ in providers.items():
        charts = [it for it in resources.values() if it.type == type_ and it.name == name]
        assert len(charts) == 1
        assert "cluster-api-webhooks" in before(resources, name)
        assert name in before(resources, "capelin-clusterclass-capelin")
    assert "capelin-clusterclass-capelin" in before(resources, "demo")
    assert resources["demo"].inputs["variables"] == {"backend": "Pods", "exposure": "NodePort"}


def test_the_program_shows_the_role_that_it_aggregates_to_edit(tmp_path: Path) -> None:
    resources = registered(program("e2e", release=str(a_release(tmp_path))), OUTPUTS)
    role = resources["clusters-edit"]
    assert role.type == "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole"
    assert role.inputs["metadata"]["labels"] == {
        "rbac.authorization.k8s.io/aggregate-to-edit": "true"
    }


@pytest.mark.parametrize("install", ["charts", "components"])
def test_the_lifecycle_extension_gets_the_ca_of_its_caller(tmp_path: Path, install: str) -> None:
    run = program("e2e", release=str(a_release(tmp_path)), install=install)
    resources = registered(run, OUTPUTS)
    if install == "charts":
        authority = resources["capelin-charts-hook-client-ca"].inputs
        assert "capelin-charts-hook-client-ca" in before(resources, "capelin-clusterclass-capelin")
    else:
        _, authority = resources["runtime-extension-lifecycle"].inputs["objs"]
    assert authority["metadata"]["name"] == "runtime-extension-client-ca"
    assert authority["data"] == {"ca.crt": "CA of hooks"}


def test_core_presents_its_client_certificate() -> None:
    container = {"name": "manager", "args": ["--leader-elect"]}
    pod = {"containers": [container]}
    metadata = {"name": "capi-controller-manager", "namespace": "capi-system"}
    core = {"kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    changed, *_ = with_hook_client([core])
    pod = changed["spec"]["template"]["spec"]
    flag = "--runtime-extension-client-cert-file=/runtime-extension-client/tls.crt"
    assert pod["containers"][0]["args"][:2] == ["--leader-elect", flag]
    assert pod["containers"][0]["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]


def test_a_provider_that_a_release_lacks_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    folder = a_release(tmp_path) / "clusterctl"
    with pytest.raises(MissingError, match=r"has no bootstrap-moon\.") as refused:
        release_objects(folder, "bootstrap-moon")
    assert "bootstrap-kubeadm, cert-manager" in refused.value.reason
