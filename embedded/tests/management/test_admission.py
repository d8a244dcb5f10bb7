"""The API server rejects unavailable Kubernetes versions."""

from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.client import ApiError, Client, Config
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.management.admission import version_policies
from capelin_embedded.management.manifests import apply_manifests

KNOWN = ("v1.33.13", "v1.34.4")
CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1"


def crd(group: str, kind: str, version: str) -> Unstructured:
    """A kind with arbitrary fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    plural = f"{kind.lower()}s" if not kind.endswith("Class") else f"{kind.lower()}es"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": APPROVED},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


APPROVED = {"api-approved.kubernetes.io": "unapproved, for a test"}
FISH = crd("controlplane.cluster.x-k8s.io", "FishPlane", "v1")
PROVIDER = Provider(
    "fish", "ControlPlaneProvider", "v1", "fish", crds=[FISH], programs=["kube-apiserver"]
)


def test_control_planes_without_local_binaries_get_no_policy() -> None:
    elsewhere = Provider("sky", "ControlPlaneProvider", "v1", "sky", crds=[FISH])
    machines = Provider("m", "InfrastructureProvider", "v1", "m", programs=["kube-apiserver"])
    assert version_policies([elsewhere, machines], "kube-apiserver", KNOWN) == []


def control_plane(name: str, version: str) -> Unstructured:
    return {
        "apiVersion": CONTROL_PLANE,
        "kind": "FishPlane",
        "metadata": {"name": name},
        "spec": {"version": version},
    }


def cluster(name: str, version: str, class_name: str) -> Unstructured:
    topology = {"classRef": {"name": class_name}, "version": version}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {"topology": topology},
    }


def cluster_class(name: str, kind: str) -> Unstructured:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "ClusterClass",
        "metadata": {"name": name},
        "spec": {"controlPlane": {"templateRef": {"kind": kind}}},
    }


async def test_the_api_server_rejects_unavailable_versions(own_api_server: ApiServer) -> None:
    config = Config.from_kubeconfig(own_api_server.kubeconfig)
    async with Client(config, manager="test") as client:
        await _check_policies(client, "default")


async def _check_policies(client: Client, namespace: str) -> None:
    core = [crd("cluster.x-k8s.io", kind, "v1beta2") for kind in ("Cluster", "ClusterClass")]
    policies = version_policies([PROVIDER], "kube-apiserver", KNOWN)
    await apply_manifests(client, [FISH, *core, *policies])

    async def create(manifest: Unstructured, **options: Any) -> str:
        """The error of the API server, or nothing."""
        manifest["metadata"]["namespace"] = namespace
        try:
            await client.create(manifest, **options)
        except ApiError as error:
            return str(error)
        return ""

    for name, kind in (("ours", "FishPlaneTemplate"), ("theirs", "KubeadmControlPlaneTemplate")):
        assert await create(cluster_class(name, kind)) == ""

    async def rejects() -> bool:
        planes = await create(control_plane("no", "v1.99.0"), dry_run=True)
        clusters = await create(cluster("no", "v1.99.0", "ours"), dry_run=True)
        return bool(planes and clusters)

    await until(rejects)
    words = "v1.99.0 is not a Kubernetes version that Capelin provides (known: v1.33.13, v1.34.4"
    assert words in await create(control_plane("no", "v1.99.0"))
    assert words in await create(cluster("no", "v1.99.0", "ours"))
    assert await create(cluster("theirs", "v1.99.0", "theirs")) == ""
    for version in ("v1.33.13", "1.34.4"):
        assert await create(control_plane(f"yes{version}", version)) == ""
    assert await create(cluster("yes", "v1.34.4", "ours")) == ""
    resource = await client.resource_of(cluster("yes", "v1.34.4", "ours"))
    later = {"spec": {"topology": {"version": "v1.35.1"}}}
    with pytest.raises(ApiError, match="is not a Kubernetes version"):
        await client.patch(resource, "yes", namespace, later)
    same = {"metadata": {"labels": {"a": "b"}}}
    await client.patch(resource, "yes", namespace, same)
