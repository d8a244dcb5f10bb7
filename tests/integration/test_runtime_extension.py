"""An extension on the Runtime SDK, called by the real core for a cluster of its own providers."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Resource
from capelin.api.views.capi import Cluster, ExtensionConfig
from capelin.api.views.core import Namespace
from capelin.client import Client
from capelin.embedded.addresses import free_port
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.components import parse
from capelin.pki import issue, new_ca
from capelin.runtime import AnyHook
from capelin.runtime.messages import read_json
from capelin.runtime.v1alpha1 import CLUSTER_API

pytestmark = pytest.mark.timeout(900)

NAME = "hooked"
CONTROL_PLANES = Resource(
    "controlplane.cluster.x-k8s.io",
    "v1beta2",
    "KubeadmControlPlane",
    "kubeadmcontrolplanes",
)
TEMPLATES = "infrastructure/docker/templates"
VARIABLES = {
    "CLUSTER_NAME": NAME,
    "NAMESPACE": NAME,
    "KUBERNETES_VERSION": "v1.34.0",
    "CONTROL_PLANE_MACHINE_COUNT": "1",
    "WORKER_MACHINE_COUNT": "0",
}


@dataclass(frozen=True, slots=True)
class Running:
    """The extension."""

    url: str
    ca: bytes
    requests: Path
    gate: Path

    def corpus(self) -> dict[str, list[bytes]]:
        """The requests so far, by their kind."""
        found: dict[str, list[bytes]] = {}
        for file in sorted(self.requests.iterdir()):
            body = file.read_bytes()
            found.setdefault(json.loads(body)["kind"].removesuffix("Request"), []).append(body)
        return found


@pytest.fixture
async def extension(tmp_path: Path) -> AsyncGenerator[Running]:
    """The extension, as a program."""
    now = datetime.now(UTC)
    ca = new_ca("hooked", now=now)
    shown = issue(ca, common_name="hooked", usages=["server"], addresses=["127.0.0.1"], now=now)
    (tmp_path / "tls.crt").write_bytes(shown.certificate_pem)
    (tmp_path / "tls.key").write_bytes(shown.private_key_pem)
    requests = tmp_path / "requests"
    requests.mkdir()
    port = free_port("127.0.0.1", 9443)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("hooked.py")),
        str(requests),
        "--host=127.0.0.1",
        f"--port={port}",
        "--probes-port=0",
        f"--cert-dir={tmp_path}",
        "--drain-seconds=0",
    )
    yield Running(f"https://127.0.0.1:{port}", ca.certificate_pem, requests, tmp_path / "gate")
    process.terminate()
    assert await process.wait() == 0


@asynccontextmanager
async def registered(client: Client, running: Running) -> AsyncGenerator[None]:
    """The extension, known to the core for the test's own namespace."""
    await client.apply(
        {
            "apiVersion": ExtensionConfig.resource.api_version,
            "kind": "ExtensionConfig",
            "metadata": {"name": NAME},
            "spec": {
                "clientConfig": {
                    "url": running.url,
                    "caBundle": base64.b64encode(running.ca).decode(),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAME}},
                "settings": {"gate": str(running.gate)},
            },
        },
        resource=ExtensionConfig.resource,
    )
    try:
        yield
    finally:
        await client.delete(ExtensionConfig, NAME)


async def until(true: Callable[[], Awaitable[object]]) -> None:
    """Wait for something to become true; the test's own limit is the end of patience."""
    while not await true():  # noqa: ASYNC110 - what is waited for happens elsewhere
        await asyncio.sleep(0.2)


async def manifests(file: str) -> list[dict[str, Any]]:
    folder = await Binaries().module_dir("cluster-api/test")
    text = await asyncio.to_thread((folder / TEMPLATES / file).read_text)
    found = parse(text, VARIABLES)
    for manifest in found:
        manifest["metadata"]["namespace"] = NAME
    return found


async def apply_cluster(client: Client) -> None:
    """A ClusterClass with our patches, and a Cluster that sets our variable."""
    for manifest in await manifests("clusterclass-in-memory.yaml"):
        if manifest["kind"] == "ClusterClass":
            external = {
                "generatePatchesExtension": f"motto-v1.{NAME}",
                "discoverVariablesExtension": f"variables-v1.{NAME}",
                "validateTopologyExtension": f"has-a-motto.{NAME}",
            }
            manifest["spec"]["patches"] = [{"name": "motto", "external": external}]
        await client.apply(manifest)
    for manifest in await manifests("cluster-template-in-memory.yaml"):
        topology = manifest["spec"]["topology"]
        topology["variables"] = [{"name": "motto", "value": "small fish, big shoal"}]

        async def accepted(cluster: dict[str, Any] = manifest) -> bool:
            # The variable is not known before the class has been reconciled.
            try:
                await client.apply(cluster)
            except Exception:  # noqa: BLE001 - it is tried until the test's own limit
                return False
            return True

        await until(accepted)


async def test_the_real_core_calls_an_extension(management: Client, extension: Running) -> None:
    async with registered(management, extension):

        async def discovered() -> list[str]:
            config = await management.get(ExtensionConfig, NAME)
            return [handler.name for handler in config.status.handlers]

        await until(discovered)
        names = ("motto-v1", "variables-v1", "has-a-motto", "gate", "initialized", "deleted")
        assert sorted(await discovered()) == sorted(f"{name}.{NAME}" for name in names)

        await management.apply(Namespace.of(NAME))
        await apply_cluster(management)

        async def said(words: str) -> bool:
            cluster = await management.get(Cluster, NAME, NAME)
            return any(words in condition.message for condition in cluster.status.conditions)

        await until(lambda: said("BeforeClusterCreate: the gate of hooked is closed"))
        await asyncio.to_thread(extension.gate.touch)

        async def called(hook: str) -> bool:
            return hook in await asyncio.to_thread(extension.corpus)

        await until(lambda: called("AfterControlPlaneInitialized"))
        made = await management.request(
            "GET",
            f"/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/{NAME}/kubeadmcontrolplanes",
        )
        files = made["items"][0]["spec"]["kubeadmConfigSpec"]["files"]
        assert [file["content"] for file in files] == ["small fish, big shoal"]

        await management.delete(Cluster, NAME, NAME)

        async def gone() -> bool:
            return await management.find(Cluster, NAME, NAME) is None

        await until(gone)
        await management.delete(Namespace, NAME)

    corpus = extension.corpus()
    assert set(corpus) == {
        "AfterControlPlaneInitialized",
        "BeforeClusterCreate",
        "BeforeClusterDelete",
        "DiscoverVariables",
        "Discovery",
        "GeneratePatches",
        "ValidateTopology",
    }
    hooks = {hook.id.name: hook for hook in CLUSTER_API}
    for name, bodies in corpus.items():
        for body in bodies:
            assert passes_through(hooks[name], body) == json.loads(body)


def passes_through(hook: AnyHook, body: bytes) -> dict[str, Any]:
    """A request, read as its type and written again."""
    return read_json(hook.request_type(), body).dump()
