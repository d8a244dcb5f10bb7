"""The templates and the ClusterClass that a release has for `clusterctl generate cluster`."""

from pathlib import Path
from typing import Any

import pytest
from capelin_cli.clusters.demo import demo_manifests
from capelin_embedded.management.providers import render_template

FOLDER = Path(__file__).parents[3] / "clusterctl"
VARIABLES = {"CLUSTER_NAME": "demo", "NAMESPACE": "sea", "KUBERNETES_VERSION": "v1.34.4"}


def control_plane(flavour: str, **variables: str) -> dict[str, Any]:
    text = (FOLDER / f"cluster-template-{flavour}.yaml").read_text()
    objects = render_template(text, {**VARIABLES, **variables})
    (spec,) = (obj["spec"] for obj in objects if obj["kind"] == "CapelinControlPlane")
    return spec


def cluster_class() -> dict[str, Any]:
    (spec,) = (obj["spec"] for obj in demo_manifests() if obj["kind"] == "ClusterClass")
    return spec


@pytest.mark.parametrize("flavour", ["pool", "machines"])
def test_a_flavour_takes_settings_of_pods(flavour: str) -> None:
    assert "pods" not in control_plane(flavour, CAPELIN_BACKEND="Processes")
    spec = control_plane(flavour, CAPELIN_PODS="pods: {exposure: {type: NodePort}}")
    assert (spec["backend"], spec["pods"]) == ("Pods", {"exposure": {"type": "NodePort"}})
    assert spec["etcd"] == {"replicas": 1}


def test_the_class_leaves_the_backend_to_the_provider() -> None:
    defaults = {
        variable["name"]: variable["schema"]["openAPIV3Schema"]["default"]
        for variable in cluster_class()["variables"]
    }
    assert defaults == {
        "backend": "",
        "encryption": True,
        "etcdReplicas": 1,
        "exposure": "",
        "konnectivity": False,
        "containers": {},
        "machines": {},
    }
    (template,) = (o for o in demo_manifests() if o["kind"] == "CapelinControlPlaneTemplate")
    assert template["spec"]["template"]["spec"] == {}


def test_the_class_has_pools_and_deployments_with_a_health_check() -> None:
    workers = cluster_class()["workers"]
    (pool,) = workers["machinePools"]
    (deployment,) = workers["machineDeployments"]
    assert pool["class"] == deployment["class"] == "default-worker"
    conditions = deployment["healthCheck"]["checks"]["unhealthyNodeConditions"]
    assert [condition["status"] for condition in conditions] == ["Unknown", "False"]
