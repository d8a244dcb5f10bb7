"""Makes a backup of an earlier moment from a snapshot and the archived changes after it."""

from collections.abc import AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from capelin_control_plane.backup.archive import Batch, read_changes
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import (
    BackupWriter,
    read_authorities,
    read_backups,
    read_objects,
    read_snapshot,
    write_snapshot,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.snapshots import throw_away_etcd
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.etcd.api import Change, EtcdApi, MembershipError

_MOST_OPERATIONS: Final = 100
_MOST_BYTES: Final = 1 << 20
_TOLERANCE: Final = timedelta(minutes=2)
"""The provider archives at least this often that nothing has changed."""
_LEASE: Final = timedelta(hours=1)
"""Kubernetes deletes events after an hour. etcd does not archive how long a lease is valid."""


async def backup_as_of(
    store: Store, key: bytes, moment: datetime | None, programs: tuple[Path, Path], work: Path
) -> Manifest:
    """Create a backup with every change up to a moment, from the last backup before it.

    Without changes after the newest backup, that backup has all of them, and is returned.

    Args:
        store: The backups and the archive of a control plane.
        key: The key that encrypts them.
        moment: The last moment to include. None includes all archived changes.
        programs: etcd and etcdutl.
        work: A private, empty folder with room for three copies of the snapshot.

    Raises:
        BackupError: no backup is old enough, or the archive has no changes.
    """
    manifests = (await read_backups(store)).manifests
    base = base_backup(manifests, moment)
    path = work / "etcd.db"
    await write_snapshot(path, read_snapshot(store, base, key))
    try:
        async with throw_away_etcd(*programs, path) as etcd:
            changes = read_changes(store, key, base.authority, (await etcd.status()).revision)
            reached = await replay(etcd, changes, base.taken_at, moment)
            taken_at = backup_moment(base.taken_at, reached, moment)
            if taken_at is None:
                return base
            status = await etcd.status()
            manifest = replace(
                base, taken_at=taken_at, revision=status.revision, seconds=0, rewound=True
            )
            present = next((it for it in manifests if it.name == manifest.name), None)
            if present is not None:
                # An earlier command created it, or the provider took one at this moment.
                return present
            writer = BackupWriter(store, manifest.name, key, base.authority)
            await writer.authorities(await read_authorities(store, base, key))
            objects = await read_objects(store, base, key)
            if objects is not None:
                await writer.objects(objects)
            async with aclosing(etcd.snapshot()) as pieces:
                size = await writer.snapshot(pieces)
    except MembershipError as error:
        raise BackupError(f"the throw-away etcd does not answer: {error}") from error
    manifest = replace(manifest, snapshot_bytes=size)
    await writer.publish(manifest)
    return manifest


def backup_moment(base: datetime, reached: datetime, moment: datetime | None) -> datetime | None:
    """The moment of the new backup. None if the base has every archived change.

    Args:
        base: The moment of the backup before it.
        reached: The last moment up to which the archive is complete.
        moment: The requested moment. None requests all archived changes.

    Raises:
        BackupError: the archive ends before the requested moment.
    """
    if moment is None:
        # The next second, since another backup may have the name of the present one.
        after = reached.replace(microsecond=0) + timedelta(seconds=1)
        return None if reached == base else after
    if moment - reached > _TOLERANCE:
        end = f"{reached.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        raise BackupError(f"the archive is not complete after {end}")
    return moment


def base_backup(manifests: Sequence[Manifest], moment: datetime | None) -> Manifest:
    """The last backup before a moment, or the newest one.

    Raises:
        BackupError: all are later, or none exists.
    """
    # Its snapshot may have all writes until its end.
    before = [
        it
        for it in manifests
        if moment is None or it.taken_at + timedelta(seconds=it.seconds) <= moment
    ]
    if not before:
        oldest = min((it.name for it in manifests), default="none")
        raise BackupError(f"no backup is as old as this moment. The oldest one: {oldest}")
    return max(before, key=lambda manifest: manifest.taken_at)


async def replay(
    etcd: EtcdApi, batches: AsyncIterable[Batch], start: datetime, moment: datetime | None
) -> datetime:
    """Apply archived changes to an etcd, up to a moment if there is one.

    Returns the last moment before it up to which the archive is complete.
    """
    reached, pending, leases = start, Pending(), set[int]()
    async for batch in batches:
        if moment is not None and batch.received_at > moment:
            # Otherwise, the provider did not run and received the changes later.
            if batch.received_at - reached <= _TOLERANCE:
                reached = moment
            break
        for change in batch.changes:
            if not pending.accepts(change):
                await etcd.write(pending.take())
            if change.lease and change.lease not in leases:
                await etcd.grant_lease(change.lease, int(_LEASE.total_seconds()))
                leases.add(change.lease)
            pending.add(change)
        reached = batch.received_at
    if remaining := pending.take():
        await etcd.write(remaining)
    return reached


class Pending:
    """Changes for the next transaction, which may write each key only once."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._bytes = 0

    def accepts(self, change: Change) -> bool:
        """Whether the change fits into the transaction."""
        size = self._bytes + len(change.value or "")
        is_small = len(self._changes) < _MOST_OPERATIONS and size <= _MOST_BYTES
        return not self._changes or (is_small and change.key not in self._changes)

    def add(self, change: Change) -> None:
        """Append a change."""
        self._changes[change.key] = change
        self._bytes += len(change.value or "")

    def take(self) -> list[Change]:
        """The changes, which are then gone from here."""
        changes, self._changes, self._bytes = list(self._changes.values()), {}, 0
        return changes
