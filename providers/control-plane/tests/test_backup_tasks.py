"""When a backup's task begins: by schedule, after a failure, or because the archive needs it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.api import (
    BackupDestination,
    CapelinControlPlane,
    Etcd,
    EtcdBackup,
    LastBackup,
    SecretKey,
    Spec,
)
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.manifests import NeededBackup
from capelin_control_plane.etcd.api import EtcdApi, MemberStatus
from capelin_control_plane.operations.backup import (
    BACKUP_HEALTHY,
    BackupJob,
    Backups,
    BackupState,
    ControlPlaneData,
)
from capelin_control_plane.operations.space import SpaceTasks

from .factories import desired_control_plane

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
IDENTITY = ObjectKey("default", "one")
FINE = ConditionSpec(BACKUP_HEALTHY, "True", BACKUP_HEALTHY)
DAMAGED = ConditionSpec(BACKUP_HEALTHY, "False", Reason.BACKUP_DAMAGED, "1 of them: x")
FAILED = ConditionSpec(BACKUP_HEALTHY, "False", Reason.BACKUP_FAILED, "the disk is full")
BACKUP = EtcdBackup(
    continuous=True,
    schedule="0 3 * * *",
    destination=BackupDestination(folder="etcd"),
    encryption_key=SecretKey(name="backup-key"),
)


def no_etcd() -> AbstractAsyncContextManager[EtcdApi]:
    raise AssertionError


class Scene:
    """A control plane with an archive, a clock, and the results of tasks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.began = NOW, list[datetime]()
        self.result = BackupState(FINE, next=NOW + timedelta(hours=15))
        self.backups = Backups(Stores(), lambda _: None)
        spec = Spec(version="v1.34.4", etcd=Etcd(backup=BACKUP))
        self.mine = CapelinControlPlane.of("one", "default", spec=spec)

        async def run(_: BackupJob) -> BackupState:
            self.began.append(self.now)
            return self.result

        def now(_: Context) -> datetime:
            return self.now

        monkeypatch.setattr(Context, "now", now)
        monkeypatch.setattr(BackupJob, "run", run)

    async def reconcile(self, needed: NeededBackup | None = None) -> BackupState:
        client = FakeClient()
        ctx = Context(
            client, logging.getLogger(), Recorder(client, "test", "test", now=lambda: self.now)
        )
        desired = replace(desired_control_plane("v1.34.4"), now=self.now)
        data = ControlPlaneData(self.mine, desired, "a" * 64, no_etcd)
        state = self.backups.reconcile(ctx, data, needed)
        await until(lambda: not self.backups.is_running(IDENTITY))
        assert state is not None
        return state

    def take(self, revision: int) -> None:
        """Let the next task take a backup."""
        last = LastBackup(name="20261126T120000Z", time=self.now, revision=revision, bytes=1)
        self.result = replace(self.result, newest=last)


async def test_a_damaged_backup_does_not_stop_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.result = replace(scene.result, condition=DAMAGED)
    await scene.reconcile()
    scene.take(revision=7)
    await scene.reconcile(NeededBackup(7, ""))
    assert len(scene.began) == 2, "it would wait for the schedule"
    state = await scene.reconcile(NeededBackup(7, ""))
    assert state.condition == DAMAGED
    assert state.next == scene.result.next
    assert len(scene.began) == 2
    # Another gap.
    scene.take(revision=9)
    await scene.reconcile(NeededBackup(8, ""))
    assert len(scene.began) == 3


@pytest.mark.parametrize("condition", [FINE, DAMAGED])
async def test_a_store_that_damages_each_backup_gets_fewer_and_fewer(
    monkeypatch: pytest.MonkeyPatch, condition: ConditionSpec
) -> None:
    scene = Scene(monkeypatch)
    scene.result = replace(scene.result, condition=condition)
    await scene.reconcile()
    for _ in range(600):
        state = await scene.reconcile(NeededBackup(7, ""))
        assert state.next is not None
        scene.now = max(state.next, scene.now + timedelta(seconds=1))
        if scene.now - NOW > timedelta(hours=6):
            break
    waits = [round((moment - NOW).total_seconds() / 60) for moment in scene.began]
    assert waits[:7] == [0, 0, 1, 4, 11, 26, 57]
    assert 10 < len(waits) < 14


async def test_a_failure_is_retried_after_a_minute_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.result = BackupState(FAILED, next=NOW + timedelta(minutes=1))
    await scene.reconcile()
    await scene.reconcile(NeededBackup(7, ""))
    assert len(scene.began) == 1
    scene.now += timedelta(minutes=1)
    await scene.reconcile(NeededBackup(7, ""))
    assert len(scene.began) == 2


class Member:
    """A member of etcd that reached its quota."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    @asynccontextmanager
    async def connect(self, _: int) -> AsyncGenerator[EtcdApi]:
        yield cast("EtcdApi", self)

    async def status(self) -> MemberStatus:
        is_small = "defragment" in self.calls
        return MemberStatus(
            1, True, "1", 7, "3.6.5", "1", size=10 if is_small else 100, used=10, quota=100
        )

    async def members_without_space(self) -> list[str]:
        return [] if "accept" in self.calls else ["1"]

    async def compact(self, _: int) -> None:
        self.calls.append("compact")

    async def defragment(self) -> None:
        self.calls.append("defragment")

    async def accept_writes(self, _: str) -> None:
        self.calls.append("accept")


async def test_a_member_does_not_defragment_while_a_snapshot_is_read() -> None:
    calls, lock = list[str](), asyncio.Lock()
    member = Member(calls)
    client = FakeClient()
    ctx = Context(client, logging.getLogger(), Recorder(client, "test", "test", now=lambda: NOW))
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    tasks = SpaceTasks(lambda _: None)
    async with lock:
        tasks.reconcile(ctx, mine, 1, member.connect, lock=lock)
        await until(lambda: "compact" in calls)
        for _ in range(100):
            await asyncio.sleep(0)
        assert "defragment" not in calls
    await until(lambda: "defragment" in calls)
    await until(lambda: (last := tasks.last(IDENTITY)) and last.result)
    await tasks.close()
