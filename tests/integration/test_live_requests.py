"""Requests for a Cluster of a real API server, and previews of patches."""

from collections.abc import Callable
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.client import Client, NotFound
from capelin.runtime.fixtures import cluster_from, request_for
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import CLUSTER_API, GeneratePatches, GeneratePatchesRequest
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template

pytestmark = pytest.mark.timeout(600)

NAME = "live"
FILE = "infrastructure/docker/templates/clusterclass-in-memory.yaml"
CRDS = (
    "clusters.cluster.x-k8s.io",
    "clusterclasses.cluster.x-k8s.io",
    "kubeadmconfigtemplates.bootstrap.cluster.x-k8s.io",
    "kubeadmcontrolplanetemplates.controlplane.cluster.x-k8s.io",
    "devclustertemplates.infrastructure.cluster.x-k8s.io",
    "devmachinetemplates.infrastructure.cluster.x-k8s.io",
)


async def made(client: Client, namespace: str) -> dict[str, Any]:
    """A ClusterClass with its templates, and a Cluster of it."""
    folder = await Binaries().module_dir("cluster-api/test")
    shape: dict[str, Any] = {}
    for manifest in render_template(
        (folder / FILE).read_text(), {"NAMESPACE": namespace, "CLUSTER_NAME": NAME}
    ):
        manifest["metadata"]["namespace"] = namespace
        await client.apply(manifest)
        shape = manifest if manifest["kind"] == "ClusterClass" else shape
    workers = shape["spec"]["workers"]["machineDeployments"]
    topology = {
        "classRef": {"name": shape["metadata"]["name"]},
        "version": "v1.33.0",
        "controlPlane": {"replicas": 1},
        "workers": {
            "machineDeployments": [{"class": workers[0]["class"], "name": "md", "replicas": 2}]
        },
    }
    cluster = {
        "apiVersion": Cluster.resource.api_version,
        "kind": "Cluster",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"topology": topology},
    }
    await client.apply(cluster, resource=Cluster.resource)
    return shape


async def test_a_live_cluster_provides_requests_of_every_hook(
    client: Client, namespace: str, install_crds: Callable[..., None]
) -> None:
    install_crds(*CRDS)
    with pytest.raises(NotFound):
        await cluster_from(client, "none", namespace)
    shape = await made(client, namespace)
    scene = await cluster_from(client, NAME, namespace, to_version="v1.34.0")
    assert (scene.from_version, scene.to_version) == ("v1.33.0", "v1.34.0")
    assert "managedFields" not in scene.cluster["metadata"]
    for hook in CLUSTER_API:
        if "Machine" not in hook.id.name:
            request = request_for(hook, scene)
            assert read(hook.request_type(), request).dump() == request
    request = read(GeneratePatchesRequest, request_for(GeneratePatches, scene))
    places = [(item.object["kind"], item.holder_reference.kind) for item in request.items]
    assert places == [
        ("DevClusterTemplate", "Cluster"),
        ("KubeadmControlPlaneTemplate", "Cluster"),
        ("DevMachineTemplate", "KubeadmControlPlane"),
        ("KubeadmConfigTemplate", "MachineDeployment"),
        ("DevMachineTemplate", "MachineDeployment"),
    ]
    infrastructure = shape["spec"]["infrastructure"]["templateRef"]["name"]
    assert request.items[0].object["metadata"]["name"] == infrastructure
