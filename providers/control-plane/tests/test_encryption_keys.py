"""The Secret with the keys of encryption at rest, and the stages of a provider that is killed."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api import Resource
from capelin.api.core import ConfigMap, Secret
from capelin.client import Config, NotServed, Server
from capelin.contract import CLUSTER_NAME_LABEL, KEYRING_KEY, is_controlled_by
from capelin.controller import Context, ObjectKey, Recorder
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.api import (
    ApiServer,
    CapelinControlPlane,
    Encryption,
    EncryptionStatus,
    SecretKey,
    Spec,
    Status,
)
from capelin_control_plane.keys.encryption import Goal, read_keyring
from capelin_control_plane.keys.encryption_keys import (
    ENCRYPTION_ANNOTATION,
    ROTATE_ANNOTATION,
    EncryptionKeys,
    find_encryption_keys,
)
from capelin_control_plane.operations import encryption as encryption_tasks
from capelin_control_plane.operations.encryption import (
    EncryptionReport,
    Encryptions,
    PluginChecks,
    rewritten_objects,
)

from tests.support.kills import MortalServer, killed_after_each_write

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
NAME = "one-encryption"


def control_plane(encryption: Encryption | None = None) -> CapelinControlPlane:
    spec = Spec(version="v1.34.4", api_server=ApiServer(encryption=encryption))
    mine = CapelinControlPlane.of("one", "default", spec=spec)
    mine.metadata.uid = "1234"
    return mine


async def keys_of(
    client: FakeClient, mine: CapelinControlPlane, *, is_new: bool = False
) -> EncryptionKeys | None:
    """The keys in a reconcile, which also annotates the control plane."""
    keys = await find_encryption_keys(client, mine, "one", NOW, is_new=is_new)
    mine.metadata.annotations.pop(ENCRYPTION_ANNOTATION, None)
    if keys is not None:
        mine.metadata.annotations |= keys.annotations
    return keys


async def test_a_control_plane_without_encryption_costs_no_request() -> None:
    client = FakeClient()
    assert await keys_of(client, control_plane()) is None
    assert client.requests == []


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_lost_annotation_and_setting_do_not_lose_the_keys(is_new: bool) -> None:
    client, mine = FakeClient(), control_plane(Encryption())
    first = await keys_of(client, mine, is_new=True)
    assert first is not None
    # As after kubectl replace, which keeps the status.
    mine.metadata.annotations.clear()
    mine.spec.api_server.encryption = None
    mine.status = Status(encryption=EncryptionStatus(key="key"))
    keys = await keys_of(client, mine, is_new=is_new)
    assert keys is not None
    assert keys.keyring == first.keyring
    assert keys.goal == Goal(), "encryption ends in its stages"
    assert mine.metadata.annotations[ENCRYPTION_ANNOTATION] == first.keyring.name


async def test_a_new_control_plane_begins_with_a_key() -> None:
    client, mine = FakeClient(), control_plane(Encryption())
    keys = await keys_of(client, mine, is_new=True)
    assert keys is not None
    secret = await client.get(Secret, NAME, "default")
    (ring,) = read_keyring(secret.data[KEYRING_KEY]).rings.values()
    assert ring == (*keys.keyring.keys,)
    assert len(ring) == 1
    assert is_controlled_by(secret, mine)
    assert secret.type == "cluster.x-k8s.io/secret"
    assert secret.metadata.labels[CLUSTER_NAME_LABEL] == "one"
    again = await keys_of(client, mine)
    assert again is not None
    assert again.keyring == keys.keyring


@pytest.mark.parametrize("given", [None, b"short", b"x" * 33])
async def test_an_unusable_key_blocks_only_a_new_control_plane(given: bytes | None) -> None:
    client = FakeClient()
    mine = control_plane(Encryption(keys_from=SecretKey(name="mine")))
    if given is not None:
        await client.create(Secret.of("mine", "default", data={"key": given}))
    with pytest.raises(Blocked) as raised:
        await keys_of(client, mine, is_new=True)
    assert raised.value.reason == "EncryptionKeyNotUsable"
    keys = await keys_of(client, mine)
    assert keys is not None
    assert keys.goal is None
    assert keys.problem is not None
    assert await client.find(Secret, NAME, "default") is None


async def test_keys_in_use_are_never_replaced() -> None:
    client, mine = FakeClient(), control_plane(Encryption())
    await keys_of(client, mine, is_new=True)
    secret = await client.get(Secret, NAME, "default")

    for other in (None, b"{}", b"\0"):
        await client.delete(Secret, NAME, "default")
        if other is not None:
            await client.create(Secret.of(NAME, "default", data={KEYRING_KEY: other}))
        used = mine.metadata.annotations[ENCRYPTION_ANNOTATION]
        with pytest.raises(Blocked) as raised:
            await keys_of(client, mine)
        assert raised.value.reason == "EncryptionKeysMissing"
        assert mine.metadata.annotations[ENCRYPTION_ANNOTATION] == used
    # The Secret comes back from a backup, without its owner.
    await client.delete(Secret, NAME, "default")
    restored = Secret.of(NAME, "default", data=secret.data)
    restored.metadata.annotations = secret.metadata.annotations
    await client.create(restored)
    keys = await keys_of(client, mine)
    assert keys is not None
    assert is_controlled_by(await client.get(Secret, NAME, "default"), mine)


class Scene:
    """A management cluster, a workload cluster, and the provider in sequential lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = MortalServer()
        self.management, self.workload = FakeClient(server=self.server), FakeClient()
        self.woken = asyncio.Event()
        self.mine = control_plane()

        def workload(*_: Any, **__: Any) -> AbstractAsyncContextManager[FakeClient]:
            return nullcontext(self.workload)

        monkeypatch.setattr(encryption_tasks, "Client", workload)

    def wake(self, _: ObjectKey) -> None:
        self.woken.set()

    async def live(self) -> EncryptionReport:
        """Reconcile until a write of the Secret kills the provider, or all is done."""
        encryptions = Encryptions(self.wake, PluginChecks(self.wake))
        recorder = Recorder(self.management, "test", "test", now=lambda: NOW)
        ctx = Context(self.management, logging.getLogger(), recorder)
        config = Config(Server("https://fake.invalid"))

        async def reconcile() -> EncryptionReport | None:
            keys = await keys_of(self.management, self.mine)
            report = await encryptions.reconcile(ctx, self.mine, keys, lambda: config)
            return report if report.status is None or report.status.stage is None else None

        try:
            return await until(reconcile)
        finally:
            await encryptions.close()

    async def through_kills(self) -> EncryptionReport:
        return await killed_after_each_write(self.live, self.server.life)

    async def rings(self) -> dict[str, tuple[str, ...]]:
        secret = await self.management.get(Secret, NAME, "default")
        return dict(read_keyring(secret.data[KEYRING_KEY]).rings)


async def test_a_provider_killed_after_every_write_completes_each_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for number in range(3):
        await scene.workload.create(ConfigMap.of(f"mine-{number}", "default"))
        await scene.workload.create(Secret.of(f"mine-{number}", "default"))
    resources = ["configmaps", "secrets", "widgets.example.com"]
    scene.mine.spec.api_server.encryption = Encryption(resources=resources)
    report = await scene.through_kills()
    first = await scene.rings()
    assert report.condition is not None
    assert report.condition.status == "True"
    assert report.status is not None
    assert first == dict.fromkeys(resources, (report.status.key,))
    assert scene.server.life.count >= 4
    rewritten = [write for write in scene.workload.writes if write.startswith("PATCH")]
    assert len(rewritten) >= 6

    scene.mine.metadata.annotations[ROTATE_ANNOTATION] = (NOW + timedelta(days=1)).isoformat()
    await scene.through_kills()
    assert await scene.rings() == first, "the moment is in the future"

    scene.mine.spec.api_server.encryption = None
    report = await scene.through_kills()
    assert report == EncryptionReport(None, None)
    assert await scene.rings() == {}
    await keys_of(scene.management, scene.mine)
    assert ENCRYPTION_ANNOTATION not in scene.mine.metadata.annotations


GROUP = "external-secrets.io"
SECRET_STORES = Resource(GROUP, "v1", "SecretStore", "secretstores")
PUSH_SECRETS = Resource(GROUP, "v1alpha1", "PushSecret", "pushsecrets")


async def test_custom_resources_outside_the_preferred_version_are_rewritten() -> None:
    workload = FakeClient(SECRET_STORES, PUSH_SECRETS)
    metadata = {"name": "mine", "namespace": "default"}
    await workload.create(
        {"apiVersion": f"{GROUP}/v1alpha1", "kind": "PushSecret", "metadata": metadata}
    )
    assert [count async for count in rewritten_objects(workload, f"pushsecrets.{GROUP}")] == [1]
    # Objects may be stored although the resource is missing now.
    with pytest.raises(NotServed, match="without widgets"):
        _ = [count async for count in rewritten_objects(workload, f"widgets.{GROUP}")]
    assert [count async for count in rewritten_objects(workload, "widgets.example.com")] == []
