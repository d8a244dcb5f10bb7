"""The smallest example of an extension, called by the real core of Cluster API."""

import base64
from pathlib import Path

import pytest
from capelin.api.capi import Cluster, ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import Client, NotFound
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster

from tests.extensions import HOST, certificates, example
from tests.integration.hooked_cluster import PATIENCE, manifests

pytestmark = pytest.mark.timeout(600)

NAME = "keep-example"
ANNOTATION = "example.com/keep"
PROGRAM = Path(__file__).parents[2] / "examples" / "02-extension" / "keep.py"


async def create(client: Client) -> None:
    """A Cluster of a class without patches, which is protected."""
    for manifest in await manifests("clusterclass-in-memory.yaml", NAME):
        if manifest["kind"] == "ClusterClass":
            for field in ("patches", "variables"):
                manifest["spec"].pop(field, None)
        await client.apply(manifest)
    (cluster,) = await manifests("cluster-template-in-memory-topology.yaml", NAME)
    cluster["metadata"]["annotations"] = {ANNOTATION: "production"}
    topology = cluster["spec"]["topology"]
    topology["classRef"]["namespace"] = NAME
    topology.pop("variables", None)
    for part in (topology["controlPlane"], topology["workers"]["machineDeployments"][0]):
        part.pop("taints", None)
        part.pop("variables", None)
    await client.apply(cluster)


@pytest.mark.representative
async def test_a_protected_cluster_is_deleted_only_after_its_release(
    management: Client, management_cluster: ManagementCluster, tmp_path: Path
) -> None:
    await management_cluster.require("kubeadm", "dev")
    await management.create(Namespace.of(NAME))
    ca = certificates(tmp_path)
    async with example(PROGRAM, tmp_path) as running:
        config = {
            "apiVersion": ExtensionConfig.resource.api_version,
            "kind": "ExtensionConfig",
            "metadata": {"name": NAME},
            "spec": {
                "clientConfig": {
                    "url": f"https://{HOST}:{running.port}",
                    "caBundle": base64.b64encode(ca).decode(),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAME}},
            },
        }
        await management.apply(config)

        async def discovered() -> bool:
            found = await management.get(ExtensionConfig, NAME)
            return [handler.name for handler in found.status.handlers] == [f"not-protected.{NAME}"]

        await until(discovered, within=PATIENCE)
        await create(management)

        async def provisioned() -> bool:
            cluster = await management.get(Cluster, NAME, NAME)
            return bool(cluster.spec.infrastructure_ref)

        await until(provisioned, within=PATIENCE)
        await management.delete(Cluster, NAME, NAME)

        async def blocked() -> bool:
            cluster = await management.get(Cluster, NAME, NAME)
            messages = [condition.message for condition in cluster.status.conditions]
            return any("the cluster is protected: production" in text for text in messages)

        await until(blocked, within=PATIENCE)
        assert "blocks BeforeClusterDelete of Cluster" in (tmp_path / "example.log").read_text()
        release = {"metadata": {"annotations": {ANNOTATION: None}}}
        await management.patch(Cluster, NAME, NAME, release)

        async def deleted() -> bool:
            try:
                await management.get(Cluster, NAME, NAME)
            except NotFound:
                return True
            return False

        await until(deleted, within=PATIENCE)
        await management.delete(ExtensionConfig, NAME)
