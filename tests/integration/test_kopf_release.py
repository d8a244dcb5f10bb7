"""The example in plain kopf from its chart: two replicas on an API server, one of which dies."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from capelin.api import Resource
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Lease, Namespace, Secret
from capelin.client import Client, Config, User
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries
from capelin_release.components import helm
from capelin_release.repository import provider_installation, write_installation
from capelin_release.tools import HELM

from .repositories import ROOT

EXAMPLE = ROOT / "examples" / "06-kopf-handlers"
LABEL = "addon-greetings"
NAMESPACE = f"{LABEL}-system"
TEXT = "greetings.example.com/text"
"""The label with the greeting."""
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")

pytestmark = [pytest.mark.integration, pytest.mark.needs_programs(HELM), pytest.mark.timeout(300)]


@pytest.fixture
def provider() -> Generator[Provider]:
    """The provider of the example."""
    sys.path.insert(0, str(EXAMPLE))
    yield import_module("greetings").provider()
    sys.path.remove(str(EXAMPLE))


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncGenerator[Client]:
    async with Client(Config.from_kubeconfig(kubeconfig), manager="user") as client:
        yield client


async def install(provider: Provider, folder: Path, kubeconfig: Path) -> None:
    """Install the provider's chart with two replicas."""
    version = provider.version.removeprefix("v")
    installation = provider_installation(
        provider, version=version, registry="registry.example", description="Greetings."
    )
    sources = ROOT / "clusterctl"
    await write_installation(folder, installation, version=version, sources=sources, modified=0)
    where = (f"--namespace={NAMESPACE}", f"--kubeconfig={kubeconfig}", "--set=replicas=2")
    chart = str(folder / f"greetings-{version}.tgz")
    await helm(Binaries(), "upgrade", "--install", LABEL, chart, *where)


@asynccontextmanager
async def replicas(
    client: Client, config: Config, folder: Path
) -> AsyncGenerator[list[asyncio.subprocess.Process]]:
    """The pods of the Deployment as processes, with their service account."""
    (deployment,) = (await client.list(DEPLOYMENTS, namespace=NAMESPACE)).items
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    token = await client.create_token(pod["serviceAccountName"], NAMESPACE)
    kubeconfig = folder / "kubeconfig"
    user = replace(config, user=User(token=token.value), namespace=NAMESPACE)
    kubeconfig.write_bytes(user.flattened())
    running: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(deployment["spec"]["replicas"]):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "greetings", *container["args"]),
                *(f"--kubeconfig={kubeconfig}", "--metrics-address=0", "--health-address=0"),
                env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
            )
            running.append(process)
            # The first one leads.
            await until(lambda: holder_of(client))
        yield running
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_the_second_replica_greets_when_the_first_one_dies(
    client: Client,
    kubeconfig: Path,
    namespace: str,
    provider: Provider,
    install_crds: Callable[..., None],
    tmp_path: Path,
) -> None:
    install_crds("clusters.cluster.x-k8s.io")
    config = Config.from_kubeconfig(kubeconfig)
    await client.apply(Namespace.of(NAMESPACE))
    await install(provider, tmp_path, kubeconfig)
    async with replicas(client, config, tmp_path) as running:
        leader, _ = running
        holder = await holder_of(client)
        await make_cluster(client, config, namespace, "hello")
        await until(lambda: greeting(client), lambda text: text == "hello")
        leader.kill()
        label = {"metadata": {"labels": {TEXT: "goodbye"}}}
        await client.patch(Cluster, "demo", namespace, label)
        await until(lambda: greeting(client), lambda text: text == "goodbye")
        assert await holder_of(client) != holder


async def holder_of(client: Client) -> str:
    lease = await client.find(Lease, "capelin-greetings", NAMESPACE)
    return (lease.spec.holder_identity or "") if lease else ""


async def greeting(client: Client) -> str | None:
    found = await client.find(ConfigMap, "greeting", "default")
    return found.data["text"] if found else None


async def make_cluster(client: Client, config: Config, namespace: str, text: str) -> None:
    """A Cluster whose control plane answers: this API server."""
    labels = {TEXT: text}
    demo = {
        "metadata": {"name": "demo", "namespace": namespace, "labels": labels},
        "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
    }
    await client.create(Cluster.read(demo))
    await client.create(Secret.of("demo-kubeconfig", namespace, data={"value": config.flattened()}))
    status = {"status": {"initialization": {"controlPlaneInitialized": True}}}
    await client.patch(Cluster, "demo", namespace, status, subresource="status")
