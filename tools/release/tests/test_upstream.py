"""Cluster API and cert-manager in a release, for installation without a network."""

import re
from pathlib import Path

import pytest
from capelin.yaml import read_all_yaml, read_yaml
from capelin_embedded.binaries import CLUSTER_API, Binaries
from capelin_release.build import installation_entries
from capelin_release.components import helm
from capelin_release.oci import REFERENCE, Store
from capelin_release.repository import write_upstream
from capelin_release.tools import CERT_MANAGER, HELM
from capelin_release.upstream import as_released

pytestmark = [pytest.mark.needs_programs(HELM, "kubectl"), pytest.mark.timeout(300)]


async def test_a_release_contains_upstream_components_for_clusterctl(tmp_path: Path) -> None:
    written = await write_upstream(tmp_path / "dist", modified=1_700_000_000)
    again = await write_upstream(tmp_path / "again", modified=1_700_000_000)
    assert [file.read_bytes() for file in written] == [file.read_bytes() for file in again]
    core, manager = CLUSTER_API.versions[-1], CERT_MANAGER.default_version
    assert [str(file.relative_to(tmp_path / "dist")) for file in written] == [
        f"cert-manager-{manager}.tgz",
        f"clusterctl/cluster-api/{core}/core-components.yaml",
        f"clusterctl/cluster-api/{core}/metadata.yaml",
        f"clusterctl/bootstrap-kubeadm/{core}/bootstrap-components.yaml",
        f"clusterctl/bootstrap-kubeadm/{core}/metadata.yaml",
        f"clusterctl/cert-manager/{manager}/cert-manager.yaml",
    ]
    images = {
        image
        for file in written
        if file.name.endswith(("-components.yaml", "cert-manager.yaml"))
        for image in re.findall(r"image: [\"']?([^\s\"']+)", file.read_text())
    }
    assert images == {
        f"registry.k8s.io/cluster-api/cluster-api-controller:{core}",
        f"registry.k8s.io/cluster-api/kubeadm-bootstrap-controller:{core}",
        *(f"quay.io/jetstack/cert-manager-{name}:{manager}" for name in ("controller", "webhook")),
        f"quay.io/jetstack/cert-manager-cainjector:{manager}",
    }
    kinds = {obj["kind"] for obj in read_all_yaml(written[-1].read_text()) if obj}
    assert {"Namespace", "CustomResourceDefinition", "Deployment"} <= kinds
    shown = read_yaml(await helm(Binaries(), "show", "chart", str(written[0])))
    assert (shown["version"], shown["appVersion"]) == (manager, manager)

    entries = installation_entries(Store(tmp_path / "store"), tmp_path / "dist", 0)
    assert {entry["annotations"][REFERENCE] for entry in entries} == {
        f"charts/cert-manager:{manager}",
        f"components/cert-manager:{manager}",
        f"components/cluster-api:{core}",
        f"components/bootstrap-kubeadm:{core}",
    }


def test_upstream_manifests_use_released_images() -> None:
    text = "image: gcr.io/k8s-staging-cluster-api/a-controller:main\nimagePullPolicy: Always\n"
    expected = (
        "image: registry.k8s.io/cluster-api/a-controller:v1.2.3\nimagePullPolicy: IfNotPresent\n"
    )
    assert as_released(text, "v1.2.3") == expected
