"""A real etcd gets space, also while a snapshot of it is read."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, ClientError
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.desired.control_plane import ComponentSettings
from capelin_control_plane.etcd.api import DEFAULT_QUOTA, Change, EtcdApi, MemberStatus
from capelin_control_plane.operations.space import SpaceTasks

from .rig import KEY, NEW, Rig, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_QUOTA = 8 * 2**20
_LARGE = Change(1, b64encode(b"/large").decode(), b64encode(bytes(2**19)).decode())
MINE = CapelinControlPlane.of(KEY.name, KEY.namespace, spec=Spec(version=NEW))


def _context() -> Context:
    management = FakeClient()
    recorder = Recorder(management, "test", "test", now=lambda: datetime.now(UTC))
    return Context(management, logging.getLogger(), recorder)


async def _fill(client: Client) -> None:
    """Change an object until its history fills the quota."""
    for number in range(100):
        content = {"content": f"{number % 10}" * 400_000}
        await client.patch(ConfigMap, "large", "default", {"data": content})


async def test_a_full_etcd_accepts_writes_again(rig: Rig) -> None:
    present = control_plane(NEW)
    etcd = ComponentSettings(arguments={"quota-backend-bytes": str(_QUOTA)})
    desired = replace(present, etcd_replicas=3, settings={**present.settings, "etcd": etcd})
    await rig.until(desired, settled)
    woken = asyncio.Event()

    def wake(_: ObjectKey) -> None:
        woken.set()

    async with rig.client() as client:
        await client.create(ConfigMap.of("large", "default"))
        with pytest.raises(ClientError, match="space exceeded"):
            await _fill(client)
        tasks = SpaceTasks(wake)
        try:
            etcd, lock = partial(rig.backend.etcd, KEY), asyncio.Lock()
            tasks.reconcile(_context(), MINE, 3, etcd, lock=lock)
            async with asyncio.timeout(60):
                await woken.wait()
            last = tasks.last(KEY)
            condition = last and last.result
            assert condition is not None
            assert condition.status == "True", condition.message
        finally:
            await tasks.close()
        for index in range(3):
            async with rig.backend.etcd(KEY, index) as member:
                assert (await member.status()).size < _QUOTA * 0.9
                assert await member.members_without_space() == []
        await client.patch(ConfigMap, "large", "default", {"data": {"content": "small"}})


async def test_an_etcd_without_a_flag_for_its_quota_has_space(rig: Rig) -> None:
    await rig.until(control_plane(NEW), settled)
    async with rig.backend.etcd(KEY, 0) as member:
        status = await member.status()
    assert status.quota == DEFAULT_QUOTA


async def test_writes_continue_while_a_slow_backup_reads_a_fragmented_member(rig: Rig) -> None:
    """A member that defragments waits for open snapshots, and answers nothing meanwhile."""
    await rig.until(replace(control_plane(NEW), etcd_replicas=3), settled)
    lock, observed, etcd = asyncio.Lock(), asyncio.Event(), partial(rig.backend.etcd, KEY)

    @asynccontextmanager
    async def watched(index: int) -> AsyncGenerator[EtcdApi]:
        async with etcd(index) as member:
            yield member
        if index == 2:
            observed.set()

    async def status(index: int) -> MemberStatus:
        async with etcd(index) as member:
            return await member.status()

    statuses = [await status(index) for index in range(3)]
    # The first member to defragment.
    follower = next(index for index, it in enumerate(statuses) if it.leader != it.id)
    tasks = SpaceTasks(lambda _: None)
    async with etcd(follower) as member:
        # Versions of one key: all but the last are unused space after a compaction.
        for _ in range(260):
            await member.write([_LARGE])
        await member.compact(await member.last_revision())
        async with aclosing(member.snapshot()) as pieces, lock:
            await anext(pieces)
            before = await until(partial(status, follower), _is_fragmented)
            tasks.reconcile(_context(), MINE, 3, watched, lock=lock)
            await observed.wait()
            async with asyncio.timeout(20), rig.client() as client:
                for number in range(20):
                    await client.create(ConfigMap.of(f"meanwhile-{number}", "default"))
            assert (await status(follower)).size >= before.size
        await until(partial(status, follower), lambda found: found.size < before.size / 2)
    await tasks.close()


def _is_fragmented(status: MemberStatus) -> bool:
    """Whether the compaction, which etcd does in the background, has freed the space."""
    return status.size - status.used > 110 * 2**20
