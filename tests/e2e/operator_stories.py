"""An environment with the lifecycle extension and machines that run pods."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import ClusterClass
from capelin.api.core import ConfigMap, Node, Pod
from capelin.client import Client, ClientError, Config, WorkloadClients
from capelin.yaml import read_all_yaml
from capelin_cli.clusters.demo import ClusterRequest, on_containers
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_cli.environments.containers import ContainerMachines
from capelin_embedded.management import UpRequest
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult

from tests.integration.homes import Home
from tests.integration.lifecycle_stories import Stories, stories_in
from tests.registry.distribution import Registry, distribution

from .container_environment import STORAGE, container_environment, helper_image
from .hosted import is_ready
from .machines import node_is_ready

NAMESPACE = "shops"
PAGES = Path(__file__).parents[2] / "docs" / "lifecycle"
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


@dataclass
class Bed:
    """A running environment, with a registry that its extension may use."""

    stories: Stories
    registry: Registry
    machines: ContainerMachines
    workloads: WorkloadClients

    @property
    def client(self) -> Client:
        return self.stories.client

    async def create(self, name: str, **variables: Any) -> None:
        """Create a Cluster with a machine that runs pods."""
        await self.stories.create_from(await self.prepare(name, **variables))

    async def prepare(self, name: str, **variables: Any) -> Unstructured:
        """A Cluster with a machine that runs pods. It creates the objects that this one needs."""
        options = ClusterOptions(DEMO_CLASS, workers=1, variables=variables)
        request = on_containers(ClusterRequest(name, NAMESPACE, options), self.machines, None)
        for manifest in request.manifests:
            if manifest["kind"] == ConfigMap.resource.kind:
                # The storage is an add-on of the stories.
                del manifest["data"][STORAGE]
            await self.client.apply(manifest)
        cluster_class = await self.client.get(ClusterClass, DEMO_CLASS, NAMESPACE)
        version = str(request.options.version)
        return new_cluster(name, NAMESPACE, version, request.options, cluster_class)

    @asynccontextmanager
    async def workload(self, name: str) -> AsyncGenerator[Client]:
        async with self.workloads.client(name, NAMESPACE) as client:
            yield client

    async def ready_nodes(self, name: str) -> dict[str, Node]:
        """The Ready nodes of a Cluster. None before its API server responds."""
        try:
            async with self.workload(name) as client:
                nodes = (await client.list(Node)).items
        except ClientError:
            return {}
        return {node.name: node for node in nodes if node_is_ready(node)}

    async def running_versions(self, name: str) -> list[str]:
        """The versions that the control plane of a Cluster runs."""
        status = (await self.stories.cluster(name)).status.control_plane
        return [entry.version for entry in status.versions] if status is not None else []

    async def result(self, policy: str) -> str:
        """The message of the only result of a policy."""
        (status,) = [
            result.status
            for result in (await self.client.list(LifecycleResult, NAMESPACE)).items
            if result.spec.policy.name == policy
        ]
        return status.message if status else ""

    def helper_image(self) -> str:
        """The image of the node with a shell."""
        return helper_image(self.machines)

    async def push(self, name: str, manifests: str) -> Unstructured:
        """Push manifests to the registry. Returns the source for a policy."""
        file = self.registry.folder / f"{name}.yaml"
        file.write_text(manifests)
        reference = await self.registry.push_files(f"addons/{name}", file)
        return {"oci": {"reference": reference, "caBundle": self.registry.ca}}

    async def ready_pods(self, name: str, namespace: str, app: str) -> list[Pod]:
        try:
            async with self.workload(name) as client:
                pods = (await client.list(Pod, namespace, labels={"app": app})).items
        except ClientError:
            return []
        return [pod for pod in pods if is_ready(pod) and pod.metadata.deletion_timestamp is None]


def documented_policy(
    page: str, name: str, kind: str = LifecyclePolicy.resource.kind
) -> Unstructured:
    """A policy on a page of docs/lifecycle, or its source, in the namespace of the stories."""
    blocks = _BLOCK.findall((PAGES / page).read_text())
    (policy,) = (
        manifest
        for block in blocks
        for manifest in read_all_yaml(block)
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    )
    policy["metadata"]["namespace"] = NAMESPACE
    return policy


@asynccontextmanager
async def operator_bed(
    folder: Path, images: Sequence[str], helm: Path | None = None
) -> AsyncGenerator[Bed]:
    """An environment without clusters. It is removed with its containers.

    Args:
        folder: A folder for its files.
        images: The images of machines. New ones have the first image.
        helm: The program that renders charts, if a story needs it.
    """
    async with distribution(folder / "registry") as registry:
        settings = {"CAPELIN_REGISTRIES": registry.endpoint}
        if helm is not None:
            settings["CAPELIN_HELM"] = str(helm)
        request = UpRequest(
            providers=("lifecycle", "kubeadm-bootstrap"), durable=False, variables=settings
        )
        home = Home(folder / "home")
        async with container_environment(home, ",".join(images), request) as (running, machines):
            config = Config.from_kubeconfig(running.kubeconfig)
            async with Client(config) as client, stories_in(client, NAMESPACE) as stories:
                workloads = WorkloadClients(client)
                yield Bed(stories, registry, machines, workloads)
                await workloads.close()
