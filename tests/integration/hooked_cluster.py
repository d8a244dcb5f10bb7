"""A cluster of Cluster API's own tests that hooks block, and its conditions about them."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capelin.api.capi import (
    Cluster,
    ClusterClass,
    ExtensionConfig,
    KubeadmControlPlane,
    Machine,
    MachineDeployment,
)
from capelin.api.core import ConfigMap
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_embedded.testing.management import ManagementCluster

from tests.extensions import HOST, certificates, drop_in
from tests.integration.recorder import Recorder

TEMPLATES = "e2e/data/infrastructure-docker/main"
START = "v1.33.12"
PROGRAMS = (
    "kubeadm-bootstrap-controller",
    "kubeadm-control-plane-controller",
    "capd-manager",
)
"""The providers of such a cluster."""
PATIENCE = 300.0
"""Seconds for each step, since Cluster API retries with growing delays."""

Check = Callable[[], Awaitable[bool]]
"""A condition of the cluster that a test checks."""


@dataclass
class Life:
    """A cluster and the extension that blocks it."""

    client: Client
    name: str
    url: str
    ca: bytes
    recorder: Recorder
    released: list[str] = field(default_factory=list[str])

    async def cluster(self) -> Cluster:
        return await self.client.get(Cluster, self.name, self.name)

    async def blocking_message(self) -> str:
        """Why Cluster API does not reconcile the topology."""
        conditions = (await self.cluster()).status.conditions
        return "".join(each.message for each in conditions if each.type == "TopologyReconciled")

    async def statuses(self) -> dict[str, str]:
        """The last response of each hook."""
        name = f"{self.name}-{self.name}-test-extension-hookresponses"
        found = await self.client.find(ConfigMap, name, self.name)
        ending = "-actualResponseStatus"
        responses = found.data.items() if found else ()
        return {key.removesuffix(ending): value for key, value in responses if key.endswith(ending)}

    def calls(self, hook: str) -> int:
        return sum(each.hook.id.name == hook for each in self.recorder.exchanges)

    async def assert_blocks(
        self, hook: str, *versions: str, still: Check, is_reported: bool = True
    ) -> None:
        """Check that the first and a repeated call of a hook block."""
        key = "-".join((hook, *versions))

        async def blocks() -> bool:
            return not is_reported or hook in await self.blocking_message()

        async def called() -> bool:
            return key in await self.statuses() and await blocks()

        await until(called, within=PATIENCE)
        calls = self.calls(hook)
        while self.calls(hook) == calls:
            assert await still(), f"{hook} does not block the cluster"
            assert await blocks(), f"no condition of the cluster names {hook}"
            await asyncio.sleep(0.2)

    async def release(self, hook: str, *versions: str) -> None:
        """Let a hook answer with success from now on."""
        key = "-".join((hook, *versions))
        name = f"{self.name}-{self.name}-test-extension-hookresponses"
        answer = {"data": {f"{key}-preloadedResponse": '{"Status": "Success"}'}}
        await self.client.patch(ConfigMap, name, self.name, answer)
        self.released.append(key)

    async def assert_blocks_and_release(self, hook: str, *versions: str, still: Check) -> None:
        """Check that a hook blocks, and let the cluster continue."""
        await self.assert_blocks(hook, *versions, still=still)
        await self.release(hook, *versions)

        async def over() -> bool:
            return (await self.statuses())["-".join((hook, *versions))].endswith(": 0")

        await until(over, within=PATIENCE)

    def on(self, control_plane: str, workers: str) -> Check:
        """Whether exactly these versions are in the specs of control plane and workers."""

        async def check() -> bool:
            planes = (await self.client.list(KubeadmControlPlane, self.name)).items
            workers_ = (await self.client.list(MachineDeployment, self.name)).items
            return [each.spec.version for each in planes] == [control_plane] and [
                each.spec.template.spec.version for each in workers_
            ] == [workers]

        return check

    def reached(self, control_plane: str, workers: str) -> Check:
        """Whether every machine has the version of its role."""

        async def check() -> bool:
            machines = (await self.client.list(Machine, self.name)).items
            role = "cluster.x-k8s.io/control-plane"
            return len(machines) == 2 and all(
                each.spec.version == (control_plane if role in each.metadata.labels else workers)
                and each.status.phase == "Running"
                for each in machines
            )

        return check


@asynccontextmanager
async def recorded(
    client: Client, name: str, management_cluster: ManagementCluster, folder: Path
) -> AsyncGenerator[Life]:
    """The extension as a process, behind a recorder of its calls."""
    await management_cluster.require("kubeadm", "dev")
    ca = certificates(folder)
    async with drop_in(folder, management_cluster.kubeconfig) as running:
        recorder = Recorder(f"https://{HOST}:{running.port}", folder)
        async with recorder.listening(HOST) as port:
            yield Life(client, name, f"https://{HOST}:{port}", ca, recorder)


@asynccontextmanager
async def registered(
    life: Life, *, blocking: bool = True, in_place: bool = False
) -> AsyncGenerator[None]:
    """The registered extension, with blocking hooks and in-place updates switched on or off."""
    config = {
        "apiVersion": ExtensionConfig.resource.api_version,
        "kind": "ExtensionConfig",
        "metadata": {"name": life.name},
        "spec": {
            "clientConfig": {"url": life.url, "caBundle": base64.b64encode(life.ca).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": life.name}},
            "settings": {
                "extensionConfigName": life.name,
                "defaultAllHandlersToBlocking": str(blocking).lower(),
                "disableInPlaceUpdates": str(not in_place).lower(),
            },
        },
    }
    await life.client.apply(config)

    async def discovered() -> bool:
        found = await life.client.get(ExtensionConfig, life.name)
        return len(found.status.handlers) == 16

    await until(discovered, within=PATIENCE)
    try:
        yield
    finally:
        await life.client.delete(ExtensionConfig, life.name)


async def manifests(file: str, name: str, **more: str) -> list[dict[str, Any]]:
    folder = await Binaries().module_dir("cluster-api/test")
    text = await asyncio.to_thread((folder / TEMPLATES / file).read_text)
    values = {
        "CLUSTER_NAME": name,
        "NAMESPACE": name,
        "EXTENSION_CONFIG_NAME": name,
        "KUBERNETES_VERSION": START,
        "CONTROL_PLANE_MACHINE_COUNT": "1",
        "WORKER_MACHINE_COUNT": "1",
        "DOCKER_POD_CIDRS": "192.168.0.0/16",
        "DOCKER_SERVICE_CIDRS": "10.128.0.0/12",
        "DOCKER_SERVICE_DOMAIN": "cluster.local",
        **more,
    }
    found = render_template(text, values)
    for manifest in found:
        manifest["metadata"]["namespace"] = name
    return found


async def create(life: Life, **variables: str) -> None:
    """The ClusterClass and the Cluster of Cluster API's tests of hooks."""
    for manifest in await manifests("clusterclass-in-memory.yaml", life.name):
        if manifest["kind"] == "ClusterClass":
            external = manifest["spec"]["patches"][0]["external"]
            external["validateTopologyExtension"] = f"validate-topology.{life.name}"
        if manifest["kind"] == "DevMachineTemplate":
            parts = manifest["spec"]["template"]["spec"]["backend"]["inMemory"].values()
            for part in parts:
                part["provisioning"] = {"startupDuration": "1s", "startupJitter": "0.2"}
        await life.client.apply(manifest)
    (cluster,) = await manifests("cluster-template-in-memory-topology.yaml", life.name, **variables)
    topology = cluster["spec"]["topology"]
    topology["classRef"]["namespace"] = life.name
    for part in (topology["controlPlane"], topology["workers"]["machineDeployments"][0]):
        # They need a feature gate that is off by default.
        part.pop("taints")

    async def described() -> bool:
        found = await life.client.get(ClusterClass, "in-memory", life.name)
        return "imageRepository" in {variable.name for variable in found.status.variables}

    await until(described, within=PATIENCE)
    await life.client.apply(cluster)
