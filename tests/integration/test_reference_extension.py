"""A cluster's whole life with every lifecycle hook in its way: Cluster API's own test of them.

Ours stands in for Cluster API's reference extension.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from capelin.api.views.capi import (
    Cluster,
    ClusterClass,
    ExtensionConfig,
    KubeadmControlPlane,
    Machine,
    MachineDeployment,
    MachineSet,
)
from capelin.api.views.core import ConfigMap, Namespace
from capelin.client import Client, Invalid
from capelin.embedded.addresses import free_port
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.components import parse
from capelin.runtime.messages import read_json
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin.testing.management import ManagementCluster

from tests.extensions import HOST, certificates, drop_in
from tests.integration.recorder import Exchange, Recorder

pytestmark = pytest.mark.timeout(900)

TEMPLATES = "e2e/data/infrastructure-docker/main"
START = "v1.33.12"
STEPS = ("v1.34.8", "v1.35.5", "v1.36.1")
"""The newest version of each minor, as the extensions plan it."""
TARGET = STEPS[-1]
WORKERS_STEPS = (TARGET,)
"""Workers may trail by three minors, and go as seldom as they can."""
ANNOTATION = "before-upgrade.hook.cluster.cluster.x-k8s.io/test"

Check = Callable[[], Awaitable[bool]]
"""Something about the cluster that holds or does not."""


async def until(true: Check) -> None:
    """Wait for something to become true; the test's own limit is the end of patience."""
    while not await true():  # noqa: ASYNC110 - what is waited for happens elsewhere
        await asyncio.sleep(0.2)


@dataclass
class Life:
    """A cluster and the extension that holds it up."""

    client: Client
    name: str
    url: str
    ca: bytes
    recorder: Recorder
    released: list[str] = field(default_factory=list[str])

    async def cluster(self) -> Cluster:
        """The cluster as it is."""
        return await self.client.get(Cluster, self.name, self.name)

    async def said(self) -> str:
        """What keeps the topology from being reconciled."""
        conditions = (await self.cluster()).status.conditions
        return "".join(each.message for each in conditions if each.type == "TopologyReconciled")

    async def statuses(self) -> dict[str, str]:
        """How each hook was answered last."""
        name = f"{self.name}-{self.name}-test-extension-hookresponses"
        found = await self.client.find(ConfigMap, name, self.name)
        ending = "-actualResponseStatus"
        said = found.data.items() if found else ()
        return {key.removesuffix(ending): value for key, value in said if key.endswith(ending)}

    def calls(self, hook: str) -> int:
        """How often a hook was called."""
        return sum(each.hook.id.name == hook for each in self.recorder.exchanges)

    async def held(self, hook: str, *versions: str, still: Check, told: bool = True) -> None:
        """See that a hook is called and blocks, and that it does so when it is called again."""
        key = "-".join((hook, *versions))

        async def blocks() -> bool:
            return not told or hook in await self.said()

        async def called() -> bool:
            return key in await self.statuses() and await blocks()

        await until(called)
        calls = self.calls(hook)
        while self.calls(hook) == calls:
            assert await still(), f"{hook} does not hold the cluster"
            assert await blocks(), f"the cluster does not tell of {hook}"
            await asyncio.sleep(0.2)

    async def release(self, hook: str, *versions: str) -> None:
        """Have a hook answered with success from now on."""
        key = "-".join((hook, *versions))
        name = f"{self.name}-{self.name}-test-extension-hookresponses"
        answer = {"data": {f"{key}-preloadedResponse": '{"Status": "Success"}'}}
        await self.client.patch(ConfigMap, name, self.name, answer)
        self.released.append(key)

    async def held_and_released(self, hook: str, *versions: str, still: Check) -> None:
        """See that a hook blocks, and that the cluster goes on without that."""
        await self.held(hook, *versions, still=still)
        await self.release(hook, *versions)

        async def over() -> bool:
            return (await self.statuses())["-".join((hook, *versions))].endswith(": 0")

        await until(over)

    def on(self, control_plane: str, workers: str) -> Check:
        """Whether the control plane and the workers have these versions, all of them."""

        async def check() -> bool:
            planes = (await self.client.list(KubeadmControlPlane, self.name)).items
            workers_ = (await self.client.list(MachineDeployment, self.name)).items
            return [each.spec.version for each in planes] == [control_plane] and [
                each.spec.template.spec.version for each in workers_
            ] == [workers]

        return check

    def reached(self, control_plane: str, workers: str) -> Check:
        """Whether every machine has the version of the part that it belongs to."""

        async def check() -> bool:
            machines = (await self.client.list(Machine, self.name)).items
            role = "cluster.x-k8s.io/control-plane"
            return len(machines) == 2 and all(
                each.spec.version == (control_plane if role in each.metadata.labels else workers)
                and each.status.phase == "Running"
                for each in machines
            )

        return check


@pytest.fixture
async def life(
    management: Client, management_cluster: ManagementCluster, tmp_path: Path
) -> AsyncGenerator[Life]:
    """The extension as a program, behind somebody who writes down what is said."""
    ca = certificates(tmp_path)
    listening = free_port(HOST, 9445)
    async with drop_in(tmp_path, management_cluster.kubeconfig) as running:
        recorder = Recorder(f"https://{HOST}:{running.port}", tmp_path)
        async with recorder.listening(HOST, listening):
            yield Life(management, "life", f"https://{HOST}:{listening}", ca, recorder)


@asynccontextmanager
async def registered(life: Life) -> AsyncGenerator[None]:
    """The extension, known to Cluster API, with every hook blocking."""
    config = {
        "apiVersion": ExtensionConfig.resource.api_version,
        "kind": "ExtensionConfig",
        "metadata": {"name": life.name},
        "spec": {
            "clientConfig": {"url": life.url, "caBundle": base64.b64encode(life.ca).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": life.name}},
            "settings": {
                "extensionConfigName": life.name,
                "defaultAllHandlersToBlocking": "true",
                "disableInPlaceUpdates": "true",
            },
        },
    }
    await life.client.apply(config)

    async def discovered() -> bool:
        found = await life.client.get(ExtensionConfig, life.name)
        return len(found.status.handlers) == 16

    await until(discovered)
    try:
        yield
    finally:
        await life.client.delete(ExtensionConfig, life.name)


async def manifests(file: str, name: str) -> list[dict[str, Any]]:
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
    }
    found = parse(text, values)
    for manifest in found:
        manifest["metadata"]["namespace"] = name
    return found


async def create(life: Life) -> None:
    """The ClusterClass and the Cluster that Cluster API tests its hooks with."""
    for manifest in await manifests("clusterclass-in-memory.yaml", life.name):
        if manifest["kind"] == "ClusterClass":
            external = manifest["spec"]["patches"][0]["external"]
            external["validateTopologyExtension"] = f"validate-topology.{life.name}"
        if manifest["kind"] == "DevMachineTemplate":
            parts = manifest["spec"]["template"]["spec"]["backend"]["inMemory"].values()
            for part in parts:
                part["provisioning"] = {"startupDuration": "1s", "startupJitter": "0.2"}
        await life.client.apply(manifest)
    (cluster,) = await manifests("cluster-template-in-memory-topology.yaml", life.name)
    topology = cluster["spec"]["topology"]
    topology["classRef"]["namespace"] = life.name
    for part in (topology["controlPlane"], topology["workers"]["machineDeployments"][0]):
        # They are behind a feature gate that is off unless somebody asks for it.
        part.pop("taints")

    async def described() -> bool:
        found = await life.client.get(ClusterClass, "in-memory", life.name)
        return "imageRepository" in {variable.name for variable in found.status.variables}

    await until(described)
    await life.client.apply(cluster)


async def upgrade(life: Life) -> None:
    """One step after the other, each with the hooks around it, workers where they have to."""
    note: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION: ""}}}
    await life.client.patch(Cluster, life.name, life.name, note)
    version = {"spec": {"topology": {"version": TARGET}}}
    await life.client.patch(Cluster, life.name, life.name, version)

    async def annotated() -> bool:
        return f"annotation {ANNOTATION} is set" in await life.said()

    await until(annotated)
    assert life.calls("BeforeClusterUpgrade") == 0
    note["metadata"]["annotations"][ANNOTATION] = None
    await life.client.patch(Cluster, life.name, life.name, note)

    before, workers = START, START
    still = life.on(START, START)
    await life.held_and_released("BeforeClusterUpgrade", START, TARGET, still=still)
    for step in STEPS:
        still = life.on(before, workers)
        await life.held_and_released("BeforeControlPlaneUpgrade", before, step, still=still)
        await until(life.reached(step, workers))
        still = life.on(step, workers)
        if step == STEPS[0]:
            await life.held("AfterControlPlaneUpgrade", step, still=still)
            await no_old_machine_is_added(life)
        await life.held_and_released("AfterControlPlaneUpgrade", step, still=still)
        if step in WORKERS_STEPS:
            await life.held_and_released("BeforeWorkersUpgrade", workers, step, still=still)
            await until(life.reached(step, step))
            still = life.on(step, step)
            await life.held_and_released("AfterWorkersUpgrade", step, still=still)
            workers = step
        before = step

    async def no_further() -> bool:
        beyond = {"spec": {"topology": {"version": "v1.37.0"}}}
        try:
            await life.client.patch(Cluster, life.name, life.name, beyond, dry_run=True)
        except Invalid as refused:
            return '"AfterClusterUpgrade" hook is still blocking' in str(refused)
        return False

    await until(no_further)
    await life.held_and_released("AfterClusterUpgrade", TARGET, still=no_further)


async def no_old_machine_is_added(life: Life) -> None:
    """Workers behind the control plane get no further machine: the checks before that refuse."""
    (workers,) = (await life.client.list(MachineDeployment, life.name)).items
    await life.client.scale(MachineDeployment, workers.name, life.name, 2)

    async def refused() -> bool:
        sets = (await life.client.list(MachineSet, life.name)).items
        conditions = [one for each in sets for one in each.status.conditions]
        return any(
            one.type == "ScalingUp" and '"KubeadmVersionSkew" preflight check failed' in one.message
            for one in conditions
        )

    await until(refused)
    assert len((await life.client.list(Machine, life.name)).items) == 2
    await life.client.scale(MachineDeployment, workers.name, life.name, 1)


async def test_a_cluster_lives_with_every_hook_in_its_way(life: Life) -> None:
    await life.client.apply(Namespace.of(life.name))
    async with registered(life):
        await create(life)

        async def nothing_is_there() -> bool:
            spec = (await life.cluster()).spec
            return spec.infrastructure_ref is None and spec.control_plane_ref is None

        await life.held_and_released("BeforeClusterCreate", still=nothing_is_there)
        await until(life.reached(START, START))
        path = f"/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/{life.name}"
        made = await life.client.request("GET", f"{path}/kubeadmcontrolplanes")
        config = made["items"][0]["spec"]["kubeadmConfigSpec"]["clusterConfiguration"]
        assert config["scheduler"]["extraArgs"] == [{"name": "v", "value": "2"}]
        await upgrade(life)
        await until(life.reached(TARGET, TARGET))

        async def available() -> bool:
            conditions = (await life.cluster()).status.conditions
            return any(each.type == "Available" and each.status == "True" for each in conditions)

        await until(available)
        await life.client.delete(Cluster, life.name, life.name)

        async def is_there() -> bool:
            cluster = await life.cluster()
            done = "runtime.cluster.x-k8s.io/ok-to-delete" in cluster.metadata.annotations
            return not done and (await life.client.list(Machine, life.name)).items != []

        await life.held("BeforeClusterDelete", still=is_there, told=False)
        await life.release("BeforeClusterDelete")

        async def gone() -> bool:
            return await life.client.find(Cluster, life.name, life.name) is None

        await until(gone)
        statuses = await life.statuses()
    await life.client.delete(Namespace, life.name)

    assert statuses.pop("AfterControlPlaneInitialized") == "Success"
    assert statuses == dict.fromkeys(life.released, "Status: Success, RetryAfterSeconds: 0")
    exchanges = life.recorder.exchanges
    assert in_order(exchanges) == ["AfterControlPlaneInitialized", *life.released[1:]]
    assert {each.hook.id.name for each in exchanges} >= NAMES
    for exchange in exchanges:
        lossless(exchange)


NAMES = {hook.id.name for hook in CLUSTER_API if hook.tag == "Lifecycle Hooks"} | {
    "DiscoverVariables",
    "Discovery",
    "GeneratePatches",
    "GenerateUpgradePlan",
    "ValidateTopology",
}


def in_order(exchanges: list[Exchange]) -> list[str]:
    """The lifecycle hooks in the order of their first call, but for the first, with versions."""
    found: dict[str, None] = {}
    for exchange in exchanges:
        if exchange.hook.tag == "Lifecycle Hooks":
            asked = json.loads(exchange.request)
            said = ("fromKubernetesVersion", "toKubernetesVersion", "kubernetesVersion")
            versions = (asked[name] for name in said if name in asked)
            found["-".join((exchange.hook.id.name, *versions))] = None
    return [name for name in found if name != "BeforeClusterCreate"]


def lossless(exchange: Exchange) -> None:
    """Both messages come out of our types as they went in."""
    hook = exchange.hook
    read = read_json(hook.request_type(), exchange.request)
    assert read.dump() == json.loads(exchange.request)
    answer = read_json(hook.response_type(), exchange.response)
    assert answer.dump() == json.loads(exchange.response)
