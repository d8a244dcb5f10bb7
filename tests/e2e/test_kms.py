"""API servers in pods encrypt through a KMS v2 plugin, whose socket is on their nodes."""

import base64
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from uuid import uuid4

import pytest
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.contract import find_condition
from capelin.controller import ObjectKey
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api.policy import Plugin, Policy
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

from tests.support.kms_plugin import KmsPlugin

from .conftest import VERSIONS, namespace_in, prepared
from .hosted import Hosted, under_load
from .kind_cluster import kind_cluster

NODE_FOLDER = "/run/kms/vault"
ENCRYPTED = {"provider": "kms", "kmsPlugin": "vault"}
pytestmark = pytest.mark.timeout(1500)


@dataclass
class Scene:
    """A control plane on a cluster whose nodes have the socket of a plugin."""

    hosted: Hosted
    backend: PodsBackend
    plugin: KmsPlugin

    async def stored(self) -> list[bytes]:
        """The Secrets in etcd."""
        key = ObjectKey(self.hosted.namespace, self.hosted.name)
        first, end = b"/registry/secrets/", b"/registry/secrets0"
        body = {
            "key": base64.b64encode(first).decode(),
            "range_end": base64.b64encode(end).decode(),
        }
        async with (
            self.backend.etcd(key) as etcd,
            etcd.session.post(f"{etcd.url}/v3/kv/range", json=body) as response,
        ):
            found = (await response.json(content_type=None)).get("kvs", [])
        return [base64.b64decode(entry["value"]) for entry in found]

    async def uses(self, provider: str | None) -> bool:
        """Whether a change to a provider of encryption is complete."""
        status = (await self.hosted.get()).status
        encryption = status and status.encryption
        if provider is None or encryption is None:
            return encryption is None and provider is None
        return encryption.provider == provider and encryption.stage is None

    async def reason(self) -> str | None:
        status = (await self.hosted.get()).status
        found = status and find_condition(status.conditions, "EncryptionAtRest")
        return found.reason if found else None


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncGenerator[Scene]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="kms-") as folder:
        plugin = KmsPlugin(Path(folder))
        plugin.use("first")
        await plugin.start()
        mounts = {Path(folder): NODE_FOLDER}
        try:
            with kind_cluster(f"kms-{uuid4().hex[:6]}", tmp_path, mounts=mounts) as kind:
                await prepared(kind, tmp_path)
                config = Config.from_kubeconfig(kind.kubeconfig)
                backend = PodsBackend(Client(config))
                listed = Plugin("vault", PurePosixPath(NODE_FOLDER) / plugin.socket.name)
                reconciler = CapelinControlPlaneReconciler(
                    {"Pods": backend}, Policy(kms_plugins=(listed,))
                )
                async with (
                    namespace_in(kind) as hosted,
                    running(reconciler, config=config, namespace=hosted.namespace),
                ):
                    yield Scene(hosted, backend, plugin)
                    await hosted.delete_all()
        finally:
            await plugin.stop()


async def test_encryption_changes_to_a_plugin_and_back(scene: Scene, tmp_path: Path) -> None:
    hosted = scene.hosted
    await hosted.create(VERSIONS[-1], replicas=2, apiServer={"encryption": {}})
    await hosted.settles()
    async with hosted.workload() as workload:
        await workload.create(Secret.of("mine", "default", data={"a": b"tuna"}))
    async with under_load(hosted, tmp_path, most_closed=6) as clients:
        await hosted.change(apiServer={"encryption": ENCRYPTED})
        await until(lambda: scene.uses("kms"), within=480)
        await hosted.settles()
        assert clients.failed() == []
    values = await scene.stored()
    assert values
    assert all(value.startswith(b"k8s:enc:kms:v2:key-") for value in values)
    assert all(b"first" in value for value in values)

    await scene.plugin.stop()
    await until(scene.reason, lambda reason: reason == "KMSPluginNotHealthy", within=180)
    before = {pod.uid for pod in await hosted.pods("kube-apiserver")}
    await scene.plugin.start()
    await until(scene.reason, lambda reason: reason == "EncryptionAtRest", within=180)
    await hosted.settles()
    assert {pod.uid for pod in await hosted.pods("kube-apiserver")} == before
    async with hosted.workload() as workload:
        assert (await workload.get(Secret, "mine", "default")).data == {"a": b"tuna"}

    await hosted.change(apiServer={"encryption": None})
    await until(lambda: scene.uses(None), within=480)
    assert all(value.startswith(b"k8s\0") for value in await scene.stored())
