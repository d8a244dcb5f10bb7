"""A real etcd that reached its quota accepts writes again."""

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, ClientError
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.desired.control_plane import ComponentSettings
from capelin_control_plane.etcd.api import DEFAULT_QUOTA
from capelin_control_plane.operations.space import SpaceTasks

from .rig import KEY, NEW, Rig, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_QUOTA = 8 * 2**20


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

    management = FakeClient()
    recorder = Recorder(management, "test", "test", now=lambda: datetime.now(UTC))
    ctx = Context(management, logging.getLogger(), recorder)
    mine = CapelinControlPlane.of(KEY.name, KEY.namespace, spec=Spec(version=NEW))
    async with rig.client() as client:
        await client.create(ConfigMap.of("large", "default"))
        with pytest.raises(ClientError, match="space exceeded"):
            await _fill(client)
        tasks = SpaceTasks(wake)
        try:
            etcd, lock = partial(rig.backend.etcd, KEY), asyncio.Lock()
            tasks.reconcile(ctx, mine, 3, etcd, lock=lock)
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
