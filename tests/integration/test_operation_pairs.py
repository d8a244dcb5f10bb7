"""Two operations that are requested at once, on real servers: both end, and nothing is lost."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client
from capelin.contract import find_condition, is_condition_true
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backup.restores import restore_request
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION as ROTATE_KEY
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATING
from capelin_control_plane.operations.rotation import ROTATE_ANNOTATION as ROTATE_CAS
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION

from .homes import Home
from .test_restore import VERSION, configure, control_plane, done, management, workload_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs("etcdutl")]

KEPT = Secret.of("kept", "default", data={"a": b"tuna"})


async def status(client: Client) -> Status:
    return (await control_plane(client)).status or Status()


async def annotate(client: Client, **annotations: str | None) -> None:
    name = (await control_plane(client)).name
    patch = {"metadata": {"annotations": annotations}}
    await client.patch(CapelinControlPlane, name, "default", patch)


async def change(client: Client, **spec: object) -> None:
    name = (await control_plane(client)).name
    await client.patch(CapelinControlPlane, name, "default", {"spec": spec})


def moment() -> str:
    return datetime.now(UTC).isoformat()


async def key_of(client: Client) -> str:
    encryption = (await status(client)).encryption
    return encryption.key if encryption and encryption.key and not encryption.stage else ""


async def is_restored(client: Client) -> bool:
    mine = await control_plane(client)
    restoring = find_condition((await status(client)).conditions, "Restoring")
    return RESTORE_ANNOTATION not in mine.metadata.annotations and restoring is None


async def is_rotated(client: Client) -> bool:
    """Whether a rotation of the CAs waits for nothing but a person."""
    condition = find_condition((await status(client)).conditions, ROTATING)
    return condition is not None and condition.reason == "WaitingForClients"


async def is_not_rotating(client: Client) -> bool:
    return find_condition((await status(client)).conditions, ROTATING) is None


async def restore_value(client: Client) -> str:
    backup = (await status(client)).backup
    assert backup is not None
    assert backup.name is not None
    return restore_request(backup.name, datetime.now(UTC))


@pytest.fixture
async def client(home: Home, tmp_path: Path) -> object:
    root = tmp_path / "backups"
    root.mkdir()
    await done(home, "up", "--management-only", "--backup-folder", str(root))
    shape = ("--workers", "0", "--kubernetes-version", VERSION)
    await done(home, "create", "cluster", "one", *shape)
    async with management(home) as client:
        await configure(client)
        await done(home, "wait", "cluster", "one")
        await until(lambda: key_of(client))
        async with workload_of(client, "one") as workload:
            await workload.apply(KEPT)
        await done(home, "backup", "cluster", "one")
        yield client


async def nothing_is_lost(home: Home, client: Client) -> None:
    """Stored objects are readable, and a backup that is taken now can be restored."""
    await until(lambda: is_healthy(client))
    async with workload_of(client, "one") as workload:
        assert (await workload.get(Secret, "kept", "default")).data == {"a": b"tuna"}
    await done(home, "backup", "cluster", "one")
    assert "keys" in await done(home, "backups", "verify", "one")
    async with workload_of(client, "one") as workload:
        await workload.apply(ConfigMap.of("after", "default"))
    await done(home, "restore", "cluster", "one", "--yes")
    async with workload_of(client, "one") as workload:
        assert (await workload.get(Secret, "kept", "default")).data == {"a": b"tuna"}
        assert await workload.find(ConfigMap, "after", "default") is None
    await done(home, "status", "--exit-code")


async def is_healthy(client: Client) -> bool:
    found = (await status(client)).conditions
    return is_condition_true(found, "Available") and is_condition_true(found, "BackupHealthy")


async def restore_and_rotate_key(client: Client) -> Callable[[], Awaitable[object]]:
    before = await key_of(client)
    value = await restore_value(client)
    await annotate(client, **{RESTORE_ANNOTATION: value, ROTATE_KEY: moment()})

    async def both() -> bool:
        key = await key_of(client)
        return bool(key) and key != before and await is_restored(client)

    return both


async def restore_and_rotate_authorities(client: Client) -> Callable[[], Awaitable[object]]:
    value = await restore_value(client)
    await annotate(client, **{RESTORE_ANNOTATION: value, ROTATE_CAS: moment()})
    await until(lambda: is_rotated(client), within=300)
    await until(lambda: is_restored(client), within=300)
    await annotate(client, **{DROP_ANNOTATION: f"force@{moment()}"})
    return lambda: is_not_rotating(client)


async def rotate_both(client: Client) -> Callable[[], Awaitable[object]]:
    before = await key_of(client)
    await annotate(client, **{ROTATE_KEY: moment(), ROTATE_CAS: moment()})
    await until(lambda: is_rotated(client), within=300)
    await annotate(client, **{DROP_ANNOTATION: f"force@{moment()}"})

    async def both() -> bool:
        key = await key_of(client)
        return bool(key) and key != before and await is_not_rotating(client)

    return both


async def rotate_key_and_sleep(client: Client) -> Callable[[], Awaitable[object]]:
    before = await key_of(client)
    await annotate(client, **{ROTATE_KEY: moment(), SLEEP_ANNOTATION: moment()})

    async def is_asleep() -> bool:
        return is_condition_true((await status(client)).conditions, "Asleep")

    await until(is_asleep)
    await annotate(client, **{WAKE_ANNOTATION: moment()})

    async def both() -> bool:
        key = await key_of(client)
        return bool(key) and key != before

    return both


async def change_encryption_and_restore(client: Client) -> Callable[[], Awaitable[object]]:
    before = await key_of(client)
    value = await restore_value(client)
    encryption = {"provider": "aesgcm", "rotateAfterDays": 30}
    await change(client, apiServer={"encryption": encryption})
    await annotate(client, **{RESTORE_ANNOTATION: value})

    async def both() -> bool:
        key = await key_of(client)
        return bool(key) and key != before and await is_restored(client)

    return both


PAIRS = (
    restore_and_rotate_key,
    restore_and_rotate_authorities,
    rotate_both,
    rotate_key_and_sleep,
    change_encryption_and_restore,
)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
async def test_two_operations_end(
    home: Home,
    client: Client,
    pair: Callable[[Client], Awaitable[Callable[[], Awaitable[object]]]],
    record_property: Callable[[str, object], None],
) -> None:
    begin = time.monotonic()
    both = await pair(client)
    await until(both, within=300)
    record_property("seconds until both have ended", round(time.monotonic() - begin, 1))
    await nothing_is_lost(home, client)
