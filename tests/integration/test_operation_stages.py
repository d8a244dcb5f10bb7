"""A user requests a backup and a restore in each stage of a change of keys, on real servers.

A backup from any stage can be restored into an empty management cluster. In place, the provider
restores a backup during any stage, unless it drops its keys.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import get_args

import pytest
from capelin.api.core import Secret
from capelin.client import Client
from capelin.contract import find_condition
from capelin.testing.waiting import PATIENCE, until
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption import Stage
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION as ROTATE_KEY
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATING
from capelin_control_plane.operations.rotation import ROTATE_ANNOTATION as ROTATE_CAS

from tests.support.control_planes import ControlPlane

from .homes import Home
from .test_operation_pairs import (
    KEPT,
    annotate,
    client,
    is_healthy,
    is_not_rotating,
    is_restored,
    is_rotated,
    key_of,
    moment,
)
from .test_restore import control_plane, done, management, workload_of

__all__ = ["client"]  # a fixture
pytestmark = [pytest.mark.timeout(1800), pytest.mark.needs_programs("etcdutl")]
LONG = 300.0


async def first_status(client: Client, is_so: Callable[[Status], bool]) -> None:
    """Follow the control plane, without missing a stage, until its status meets the condition."""
    async with asyncio.timeout(PATIENCE), aclosing(client.watch(CapelinControlPlane)) as events:
        async for event in events:
            if event.object.status is not None and is_so(event.object.status):
                return


def is_in_stage(stage: str) -> Callable[[Status], bool]:
    return lambda found: found.encryption is not None and found.encryption.stage == stage


def has_reason(reason: str, type_: str = ROTATING) -> Callable[[Status], bool]:
    def is_so(found: Status) -> bool:
        condition = find_condition(found.conditions, type_)
        return condition is not None and condition.reason == reason

    return is_so


async def new_key(client: Client) -> Callable[[], Awaitable[object]]:
    before = await key_of(client)
    await annotate(client, **{ROTATE_KEY: moment()})

    async def is_over() -> bool:
        return await key_of(client) not in {"", before}

    return is_over


async def new_authorities(client: Client) -> Callable[[], Awaitable[object]]:
    await annotate(client, **{ROTATE_CAS: moment()})
    dropped = False

    async def is_over() -> bool:
        nonlocal dropped
        if not dropped and await is_rotated(client):
            dropped = True
            await annotate(client, **{DROP_ANNOTATION: f"force@{moment()}"})
        return dropped and await is_not_rotating(client)

    return is_over


CHANGES = {
    "a new key": (new_key, {stage: is_in_stage(stage) for stage in get_args(Stage)}),
    "new CAs": (
        new_authorities,
        {
            reason: has_reason(reason)
            for reason in ("TrustingAuthorities", "IssuingCertificates", "WaitingForClients")
        },
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_backup_of_any_stage_is_restored(
    home: Home,
    client: Client,
    tmp_path: Path,
    change: str,
    record_property: Callable[[str, object], None],
) -> None:
    begin, stages = CHANGES[change]
    mine = ControlPlane(client, "default", (await control_plane(client)).name, "Processes")
    await mine.change(etcd={"backup": {"retention": {"last": 20}}})
    backups: dict[str, str] = {}
    for stage, is_so in stages.items():
        began = monotonic()
        is_over = await begin(client)
        await first_status(client, is_so)
        requested = await mine.request_backup()
        await until(is_over, within=LONG)
        backups[stage] = await until(partial(mine.backup_since, requested))
        backup = backups[stage]
        if begin is new_key:
            # The other one needs the key that was dropped.
            backup = await until(partial(mine.backup_since, await mine.request_backup()))
        async with workload_of(client, "one") as workload:
            await workload.apply(Secret.of("after", "default"))

        is_over = await begin(client)
        await first_status(client, is_so)
        await annotate(client, **{RESTORE_ANNOTATION: backup})
        if stage == "Dropping":
            await first_status(client, has_reason("RestoreRefused", "Restoring"))
            async with workload_of(client, "one") as workload:
                await workload.delete(Secret, "after", "default")
            await annotate(client, **{RESTORE_ANNOTATION: None})
        await until(lambda: is_restored(client), within=LONG)
        await until(is_over, within=LONG)
        await until(lambda: is_healthy(client))
        async with workload_of(client, "one") as workload:
            assert (await workload.get(Secret, KEPT.name, "default")).data == KEPT.data
            assert await workload.find(Secret, "after", "default") is None, stage
        record_property(f"seconds of a backup and a restore in {stage}", round(monotonic() - began))

    key = tmp_path / "backup.key"
    key.write_bytes(b"k" * 32)
    for stage, backup in backups.items():
        await done(home, "down", "--yes")
        await done(home, "up", "--management-only", "--backup-folder", str(tmp_path / "backups"))
        lost = ("restore", "cluster", "one", "--backup", backup, "--key-file", str(key), "--yes")
        await done(home, *lost)
        async with management(home) as again, workload_of(again, "one") as workload:
            assert (await workload.get(Secret, KEPT.name, "default")).data == KEPT.data, stage
