"""Archives the changes of etcd every few seconds."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from capelin.client import ClientError
from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, LastBackup
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.archive import (
    Batch,
    Segment,
    SegmentId,
    delete_segments,
    expired_segments,
    newest_segment,
    next_segments,
    segments_of,
    write_segment,
)
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import read_backups
from capelin_control_plane.backup.manifests import NeededBackup
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.etcd.api import CompactedError, EtcdApi, MembershipError
from capelin_control_plane.operations.backup import BackupState, ControlPlaneData, encryption_key
from capelin_control_plane.operations.engine import Declaration, Engine, Run

ARCHIVE_HEALTHY: Final = "ArchiveHealthy"
_WRITE_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 5.0
_IDLE_CHECKS: Final = 10
"""After so many writes without changes, compare the revision of etcd."""
_MOST_WAITING: Final = 4
"""How many answers of etcd may wait for the store. Each has about 1.5 MiB at most."""
_MOST_SEGMENTS: Final = 5000
"""With more, the archive begins again with the next backup."""
_FINE: Final = ConditionSpec(ARCHIVE_HEALTHY, "True", ARCHIVE_HEALTHY)
_STARTING: Final = ConditionSpec(
    ARCHIVE_HEALTHY, "Unknown", Reason.STARTING, "the archive is being read"
)


@dataclass(frozen=True, slots=True)
class Archive:
    """The observed state of an archive."""

    condition: ConditionSpec
    needed: NeededBackup | None
    """The backup that it continues."""

    def condition_with(self, backup: BackupState | None) -> ConditionSpec:
        """Its condition, which depends on the newest backup."""
        if self.condition.status != "True" or self.needed is None:
            return self.condition
        if backup is not None and backup.meets(self.needed):
            return self.condition
        message = "earlier changes are missing, so the archive continues only the next backup"
        return ConditionSpec(ARCHIVE_HEALTHY, "False", Reason.ARCHIVE_INTERRUPTED, message)


@dataclass(slots=True)
class _Progress:
    newest: LastBackup | None
    """The newest backup."""
    needed: NeededBackup | None = None
    progressed: bool = False
    """Whether the present attempt has archived changes."""


class Archives(Engine[_Progress]):
    """Archives the changes of control planes.

    The segments in the store are the only state: after a crash, any provider continues after the
    last one.
    """

    operation = Declaration(
        name="the archive",
        condition=ARCHIVE_HEALTHY,
        reason=Reason.ARCHIVE_FAILED,
        expected=(BackupError, ClientError, MembershipError, ValueError),
        retry=timedelta(seconds=_RETRY_SECONDS),
        repeats=True,
    )

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        super().__init__(wake)
        self._stores = stores

    def reconcile(self, ctx: Context, data: ControlPlaneData) -> Archive | None:
        """Start the task of a control plane that has an archive. Returns its state.

        Args:
            ctx: The context of the reconcile.
            data: The control plane.
        """
        key, obj, backup = data.key, data.obj, data.obj.spec.etcd.backup
        if backup is None or not backup.continuous:
            self.forget(key)
            return None
        newest = obj.status.backup if obj.status else None
        settings, run = (backup, data.authority, data.epoch), self.last(key)
        if run is None or run.settings != settings or not run.is_running:
            run = Run(_Progress(newest), ctx.now(), settings, _STARTING)
            report, wake = partial(self.report, key, run), partial(self.wake, key)
            job = _Job(ctx, data, backup, self._stores, run.result, report, wake)
            self.start(ctx, obj, run, job.run)
        run.result.newest = newest
        return Archive(run.condition or _STARTING, run.result.needed)

    def failed(
        self, ctx: Context, obj: CapelinControlPlane, run: Run[_Progress], error: Exception
    ) -> None:
        """Report a failure. A member that restarts ends one attempt, and the next one succeeds."""
        if not run.result.progressed:
            super().failed(ctx, obj, run, error)


@dataclass(frozen=True, slots=True)
class _Job:
    ctx: Context
    data: ControlPlaneData
    backup: EtcdBackup
    stores: Stores
    state: _Progress
    report: Callable[[ConditionSpec], None]
    wake: Callable[[], None]

    async def run(self) -> _Progress:
        """Archive changes until etcd, the store or the key fails."""
        while True:
            self.state.progressed = False
            await self._attempt()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _attempt(self) -> None:
        place = self.data.place
        key = await encryption_key(self.ctx.client, self.backup, place[0])
        async with (
            self.stores.open(self.ctx.client, self.backup.destination, *place) as store,
            self.data.etcd() as etcd,
        ):
            try:
                newest, archived = await newest_segment(store, key, self.data.authority)
            except BackupError as error:
                # With another key, for example. The archive begins again.
                self.ctx.log.warning("the archive of %s: %s", self.data.obj.name, error)
                newest, archived = None, 0
            present = await etcd.last_revision()
            for segment in next_segments(newest, archived, present, self.data.epoch):
                with suppress(CompactedError):
                    await self._archive(store, key, etcd, segment)

    async def _archive(self, store: Store, key: bytes, etcd: EtcdApi, first: SegmentId) -> None:
        """Archive changes from the beginning of a segment on."""
        arrived: asyncio.Queue[Batch] = asyncio.Queue(_MOST_WAITING)
        reader = asyncio.create_task(self._read(etcd, first.first, arrived))
        segment = Segment(first, self.ctx.now())
        self._need(first.chain - 1)
        newest, count, idle, expected = None, 0, 0, 0
        try:
            is_read = False
            while not is_read:
                await asyncio.wait({reader}, timeout=_WRITE_SECONDS)
                is_read, idle = reader.done(), idle + 1
                if not arrived.empty():
                    begun = segment.id
                    segment = await self._write(store, key, segment, arrived)
                    self.state.progressed, idle = True, 0
                    count += segment.id != begun
                elif segment.last < expected:
                    raise MembershipError(f"etcd does not send its changes after {segment.last}")
                elif idle >= _IDLE_CHECKS:
                    # Silence is normal in an idle cluster. The archive records that it is complete.
                    expected = await etcd.last_revision()
                    if expected == segment.last:
                        segment.add(Batch(self.ctx.now(), ()))
                        await write_segment(store, key, self.data.authority, segment)
                        idle = 0
                if not is_read:
                    self.report(_FINE)
                if self.state.newest != newest:
                    newest = self.state.newest
                    count = await self._delete_expired(store)
                if count > _MOST_SEGMENTS:
                    self._need(segment.last)
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _need(self, revision: int) -> None:
        """Have the reconciler take a backup with this revision, unless it exists."""
        needed = NeededBackup(revision, self.data.epoch)
        if self.state.needed != needed:
            self.state.needed = needed
            self.wake()

    async def _read(self, etcd: EtcdApi, first: int, arrived: asyncio.Queue[Batch]) -> None:
        async with aclosing(etcd.changes(first)) as answers:
            async for changes in answers:
                await arrived.put(Batch(self.ctx.now(), tuple(changes)))

    async def _write(
        self, store: Store, key: bytes, segment: Segment, arrived: asyncio.Queue[Batch]
    ) -> Segment:
        """Write the changes that have arrived. Returns the segment for the next ones."""
        while not arrived.empty():
            # Compression of large changes takes a while.
            await asyncio.to_thread(segment.add, arrived.get_nowait())
            if segment.is_full(self.ctx.now()):
                await write_segment(store, key, self.data.authority, segment)
                segment = segment.following(self.ctx.now())
        await write_segment(store, key, self.data.authority, segment)
        return segment

    async def _delete_expired(self, store: Store) -> int:
        """Delete the changes before the last backup but one. Returns how many segments remain."""
        listed = await read_backups(store)
        own = [it for it in listed.manifests if it.authority == self.data.authority]
        segments = segments_of(listed.names, self.data.authority)
        for backup in reversed(own[:2]):
            expired = expired_segments(segments, backup.revision)
            await delete_segments(store, self.data.authority, expired)
            segments = [segment for segment in segments if segment not in expired]
            if len(segments) <= _MOST_SEGMENTS:
                break
        return len(segments)
