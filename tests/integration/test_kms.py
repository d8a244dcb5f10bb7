"""Objects in etcd are encrypted through a real KMS v2 plugin, whose key changes and that fails."""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.core import Secret
from capelin.contract import ASLEEP, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_embedded.processes import Process

from tests.support.encryption_states import key_name
from tests.support.kms_plugin import KmsPlugin

from .test_control_plane_kills import Shoal, shoal
from .test_encryption_at_rest import (
    KILLS,
    SECONDS,
    VERSION,
    clients,
    is_encrypted,
    is_plain,
    stored,
    write_secrets,
)

__all__ = ["shoal"]  # a fixture
ENCRYPTED = {"provider": "kms", "kmsPlugin": "vault", "resources": ["secrets", "configmaps"]}
pytestmark = [
    pytest.mark.timeout(5 * SECONDS + 40 * KILLS),
    pytest.mark.needs_programs(
        *(f"kube-{name}@{VERSION}" for name in ("apiserver", "controller-manager", "scheduler"))
    ),
]


@pytest.fixture
async def plugin(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[KmsPlugin]:
    """A plugin that runs, and that the provider lists."""
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="kms-") as folder:
        plugin = KmsPlugin(Path(folder))
        monkeypatch.setenv("CAPELIN_KMS_PLUGINS", f"vault={plugin.socket}")
        plugin.use("first")
        await plugin.start()
        yield plugin
        await plugin.stop()


async def has_only(shoal: Shoal, key: str, plugin_key: str) -> bool:
    """Whether everything in etcd is encrypted with a key of the plugin."""
    for resource in ("secrets", "configmaps"):
        prefix = f"k8s:enc:kms:v2:{key}-{resource}:".encode()
        values = (await stored(shoal, resource)).values()
        assert all(value.startswith(prefix) for value in values)
        # The identifier of the key is not encrypted.
        if not all(plugin_key.encode() in value for value in values):
            return False
    return True


async def enable_rotate_and_disable(shoal: Shoal, plugin: KmsPlugin, kills: int) -> None:
    mine = shoal.mine
    await mine.create(VERSION, replicas=2, apiServer={"encryption": {}})
    await shoal.through_kills(is_encrypted(shoal, "secretbox"), 0, within=SECONDS)
    await write_secrets(shoal, 30)
    first = await key_name(mine)
    async with clients(shoal):
        await mine.change(apiServer={"encryption": ENCRYPTED})
        await shoal.through_kills(is_encrypted(shoal, "kms", first), kills, within=SECONDS)
        second = await key_name(mine)
        assert second is not None
        assert await has_only(shoal, second, "first")

        plugin.use("second")
        await mine.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
        await shoal.through_kills(is_encrypted(shoal, "kms", first, second), kills, within=SECONDS)
        third = await key_name(mine)
        assert third is not None
        assert await has_only(shoal, third, "second")
        plugin.retire("first")

        await mine.change(apiServer={"encryption": None})
        await shoal.through_kills(is_plain(shoal), kills, within=SECONDS)
    await plugin.stop()
    async with mine.workload() as workload:
        secrets = await workload.list(Secret, "default")
    assert sum(secret.data.get("a") == b"tuna" for secret in secrets.items) == 30


@pytest.mark.representative
async def test_encryption_changes_to_a_plugin_and_back(plugin: KmsPlugin, shoal: Shoal) -> None:
    await enable_rotate_and_disable(shoal, plugin, kills=0)


async def test_plugins_change_through_kills_of_the_provider(
    plugin: KmsPlugin, shoal: Shoal
) -> None:
    await enable_rotate_and_disable(shoal, plugin, KILLS)


def has_reason(shoal: Shoal, reason: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        status = (await shoal.mine.get()).status
        found = None if status is None else find_condition(status.conditions, "EncryptionAtRest")
        return found is not None and found.reason == reason

    return check


async def test_a_plugin_fails_and_its_key_changes_without_a_restart(
    plugin: KmsPlugin, shoal: Shoal
) -> None:
    mine = shoal.mine
    await plugin.stop()
    plugin.socket.unlink()
    await mine.create(VERSION, apiServer={"encryption": ENCRYPTED})
    async with shoal.mortal.undisturbed():
        await until(has_reason(shoal, "KMSPluginNotHealthy"), within=60)
        assert not shoal.running(), "it would store objects without encryption"
        await plugin.start()
        await until(is_encrypted(shoal, "kms"), within=SECONDS)
        await write_secrets(shoal, 30)
        name = await key_name(mine)
        assert name is not None
        assert await has_only(shoal, name, "first")

        await plugin.stop()
        await until(has_reason(shoal, "KMSPluginNotHealthy"), within=150)
        await plugin.start()
        await until(has_reason(shoal, "EncryptionAtRest"), within=150)

        (place,) = shoal.state.iterdir()
        server = Process.adopt(place / "run", "kube-apiserver-0")
        assert server is not None
        plugin.use("second")

        async def is_rewritten() -> bool:
            status = (await mine.get()).status
            return (
                status is not None
                and status.encryption is not None
                and status.encryption.stage is None
                and await has_only(shoal, name, "second")
            )

        # API servers ask each minute, and may use the earlier key for three more.
        await until(is_rewritten, within=2 * SECONDS)
        assert await key_name(mine) == name
        same = Process.adopt(place / "run", "kube-apiserver-0")
        assert same is not None
        assert same.pid == server.pid
        plugin.retire("first")
        async with mine.workload() as workload:
            secrets = await workload.list(Secret, "default")
        assert sum(secret.data.get("a") == b"tuna" for secret in secrets.items) == 30


async def test_a_user_takes_back_a_change_to_a_broken_plugin_awake_and_asleep(
    plugin: KmsPlugin, shoal: Shoal
) -> None:
    mine = shoal.mine
    # Its socket stays, so the provider lets API servers start with it. They never become ready.
    await plugin.stop()
    assert plugin.socket.exists()
    before = {"provider": "secretbox", "kmsPlugin": None, "resources": ["secrets"]}
    await mine.create(VERSION, replicas=2, apiServer={"encryption": {}})

    async def is_asleep() -> bool:
        return (await mine.conditions()).get(ASLEEP) == "True"

    async def is_stuck() -> bool:
        status = (await mine.get()).status
        stage = status and status.encryption and status.encryption.stage
        return stage == "Distributing" and "APIServersDegraded" in await mine.reasons()

    async with shoal.mortal.undisturbed():
        await until(is_encrypted(shoal, "secretbox"), within=SECONDS)
        await write_secrets(shoal, 30)
        key = await key_name(mine)
        async with clients(shoal) as loads:
            await mine.change(apiServer={"encryption": ENCRYPTED})
            await until(is_stuck)
            await mine.change(apiServer={"encryption": before})
            await until(is_encrypted(shoal, "secretbox"), within=SECONDS)
            assert await key_name(mine) == key
            for load in loads:
                await load.reaches(120)
        await mine.change(apiServer={"encryption": ENCRYPTED})
        await until(is_stuck)
        await mine.annotate(SLEEP_ANNOTATION, datetime.now(UTC).isoformat())
        await until(is_asleep)
        await mine.change(apiServer={"encryption": before})
        await mine.annotate(WAKE_ANNOTATION, datetime.now(UTC).isoformat())
        await until(is_encrypted(shoal, "secretbox"), within=SECONDS)
        assert await key_name(mine) == key
        async with mine.workload() as workload:
            secrets = await workload.list(Secret, "default")
    assert sum(secret.data.get("a") == b"tuna" for secret in secrets.items) == 30
