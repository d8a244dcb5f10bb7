"""When a backup is due, which ones expire, and the files of backups."""

import hashlib
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from capelin_control_plane.api import (
    BackupDestination,
    BackupRetention,
    CapelinControlPlane,
    EtcdBackup,
    SecretKey,
    Spec,
)
from capelin_control_plane.backup import files as backup_files
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import (
    BackupWriter,
    delete_backup,
    delete_leftovers,
    list_backups,
    open_backup,
    read_authorities,
    read_backups,
    read_objects,
    read_snapshot,
)
from capelin_control_plane.backup.manifests import (
    BACKUP_ANNOTATION,
    Manifest,
    NeededBackup,
    due,
    epoch_of,
    expired,
)
from capelin_control_plane.backup.stores import FolderStore, StoreError, Workers
from capelin_control_plane.desired.control_plane import InvalidSpecError
from capelin_control_plane.open_backup import main

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
KEY = b"k" * 32
DATA = b"\7" * (2 * 2**20 + 512 * 3)
SNAPSHOT = DATA + hashlib.sha256(DATA).digest()


def manifest(taken_at: datetime) -> Manifest:
    return Manifest(
        namespace="default",
        cluster="one",
        control_plane="one",
        authority="a",
        kubernetes_version="v1.34.4",
        etcd_version="3.6.8",
        revision=7,
        taken_at=taken_at,
        seconds=1.0,
        snapshot_bytes=len(SNAPSHOT),
    )


def backup(**fields: object) -> EtcdBackup:
    present = EtcdBackup(
        destination=BackupDestination(folder="etcd"), encryption_key=SecretKey(name="backup-key")
    )
    return present.model_copy(update=fields)


def control_plane(requested: str | None = None) -> CapelinControlPlane:
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    if requested is not None:
        mine.metadata.annotations = {BACKUP_ANNOTATION: requested}
    return mine


def test_a_schedule_follows_its_time_zone() -> None:
    # Clocks in Berlin went forward this morning: 03:30 was 01:30 in UTC, and yesterday 02:30.
    moments = due(control_plane(), backup(schedule="30 3 * * *", time_zone="Europe/Berlin"), NOW)
    assert moments.last == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert moments.next == datetime(2026, 3, 30, 1, 30, tzinfo=UTC)
    assert moments.includes(None)
    assert moments.includes(manifest(NOW - timedelta(days=1)))
    assert not moments.includes(manifest(NOW - timedelta(hours=10)))


def test_an_annotation_requests_a_backup_once() -> None:
    moments = due(control_plane("2026-03-29T11:00:00Z"), backup(), NOW)
    assert moments.includes(manifest(NOW - timedelta(hours=2)))
    assert not moments.includes(manifest(NOW))
    later = due(control_plane("2026-03-30T11:00:00Z"), backup(), NOW)
    assert not later.includes(manifest(NOW - timedelta(days=9)))
    assert later.next == datetime(2026, 3, 30, 11, tzinfo=UTC)
    assert not due(control_plane(), backup(), NOW).includes(None)


def test_the_archive_requests_a_backup_with_a_revision() -> None:
    def is_due(needed: NeededBackup, newest: Manifest | None) -> bool:
        return due(control_plane(), backup(), NOW, needed).includes(newest)

    assert is_due(NeededBackup(0, ""), None)
    assert is_due(NeededBackup(8, ""), manifest(NOW))
    assert is_due(NeededBackup(7, "other"), manifest(NOW))
    assert not is_due(NeededBackup(7, ""), manifest(NOW))


def test_another_key_or_version_begins_another_epoch() -> None:
    epochs = {
        epoch_of("v1.34.4", "off", "cas"),
        epoch_of("v1.35.0", "off", "cas"),
        epoch_of("v1.34.4", "key", "cas"),
        epoch_of("v1.34.4", "off", "other"),
    }
    assert len(epochs) == 4


@pytest.mark.parametrize(
    ("fields", "requested", "message"),
    [
        ({"schedule": "often"}, None, "not a cron expression"),
        ({"schedule": "0 0 30 2 *"}, None, "spec.etcd.backup.schedule"),
        ({"schedule": "0 3 * * *", "time_zone": "../../etc/passwd"}, None, "timeZone"),
        ({}, "soon", "is not a moment"),
    ],
)
def test_unreadable_settings_are_reported(
    fields: dict[str, object], requested: str | None, message: str
) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        due(control_plane(requested), backup(**fields), NOW)


def test_retention_keeps_what_restores_and_the_archive_need() -> None:
    manifests = [manifest(NOW - timedelta(hours=6 * number)) for number in range(4)]
    last = BackupRetention(last=1)
    rewound = replace(manifest(NOW - timedelta(hours=1)), rewound=True)

    def kept(*others: Manifest, **options: Any) -> list[int]:
        gone = expired([*others, *manifests], last, NOW, **options)
        return [number for number, it in enumerate(manifests) if it not in gone]

    assert kept() == [0]
    assert kept(named={manifests[3].name}) == [0, 3]
    assert kept(continuous=True) == [0, 1]
    assert kept(rewound, continuous=True) == [0, 1], "it was taken for a restore"
    future = manifest(NOW + timedelta(days=300))
    assert kept(future) == [0]
    assert future not in expired([future, *manifests], last, NOW)


def test_retention_keeps_the_newest_backups_and_one_of_each_day() -> None:
    manifests = [manifest(NOW - timedelta(hours=6 * number)) for number in range(20)]
    old = expired(manifests, BackupRetention(last=2, days=3), NOW)
    kept = {present.name for present in manifests} - {present.name for present in old}
    assert kept == {"20260329T120000Z", "20260329T060000Z", "20260328T180000Z", "20260327T180000Z"}


def store(root: Path) -> FolderStore:
    return FolderStore(root, Path("default/etcd/one"), Workers(1))


async def pieces() -> AsyncGenerator[bytes]:
    for start in range(0, len(SNAPSHOT), 32768):
        yield SNAPSHOT[start : start + 32768]


async def write(root: Path, published: Manifest | None, name: str) -> Path:
    writer = BackupWriter(store(root), name, KEY, "a")
    await writer.authorities(b"secrets")
    assert await writer.snapshot(pieces()) == len(SNAPSHOT)
    if published is not None:
        await writer.publish(published)
    return root / "default" / "etcd" / "one"


async def test_a_backup_is_encrypted_and_can_be_opened(tmp_path: Path) -> None:
    taken = manifest(NOW)
    folder = await write(tmp_path, taken, taken.name)
    assert list_backups(folder).manifests == (taken,)
    assert await read_backups(store(tmp_path)) == list_backups(folder)
    assert all(b"\7" * 64 not in path.read_bytes() for path in folder.iterdir())
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (tmp_path / "key").write_bytes(KEY)
    source = folder / f"{taken.name}.json"
    arguments = [str(source), str(tmp_path / "opened"), "--key-file", str(tmp_path / "key")]
    assert main(arguments) == 0
    assert (tmp_path / "opened" / "etcd.db").read_bytes() == SNAPSHOT
    assert (tmp_path / "opened" / "authorities.json").read_bytes() == b"secrets"
    with pytest.raises(BackupError, match="another one"):
        open_backup(source, b"x" * 32, tmp_path / "other")


async def read(root: Path, taken: Manifest, key: bytes = KEY) -> bytes:
    return b"".join([piece async for piece in read_snapshot(store(root), taken, key)])


@pytest.mark.parametrize("change", ["cut", "flip", "swap", "chunk"])
async def test_a_changed_file_is_detected(tmp_path: Path, change: str) -> None:
    taken = manifest(NOW)
    folder = await write(tmp_path, taken, taken.name)
    path = folder / f"{taken.name}.snapshot"
    content = bytearray(path.read_bytes())
    header = len(content) - len(SNAPSHOT) - 3 * 16
    encrypted_chunk = 2**20 + 16
    match change:
        case "cut":
            del content[header + encrypted_chunk :]
        case "flip":
            content[-100] ^= 1
        case "swap":
            content[:] = (folder / f"{taken.name}.authorities").read_bytes()
        case _:
            first = content[header : header + encrypted_chunk]
            content[header + encrypted_chunk : header + 2 * encrypted_chunk] = first
    path.write_bytes(content)
    with pytest.raises(BackupError, match="damaged"):
        open_backup(folder / f"{taken.name}.json", KEY, tmp_path / "opened")
    with pytest.raises(BackupError, match="damaged"):
        await read(tmp_path, taken)


async def test_the_other_files_of_a_backup_are_readable(tmp_path: Path) -> None:
    taken, stored = manifest(NOW), store(tmp_path)
    folder = await write(tmp_path, taken, taken.name)
    assert await read_authorities(stored, taken, KEY) == b"secrets"
    # An earlier release took it.
    assert await read_objects(stored, taken, KEY) is None
    await BackupWriter(stored, taken.name, KEY, "a").objects(b"objects")
    assert await read_objects(stored, taken, KEY) == b"objects"
    with pytest.raises(BackupError, match="another one"):
        await read_objects(stored, taken, b"x" * 32)
    await delete_backup(stored, taken.name)
    assert list(folder.iterdir()) == []


async def test_a_snapshot_is_readable_in_pieces(tmp_path: Path) -> None:
    taken = manifest(NOW)
    folder = await write(tmp_path, taken, taken.name)
    assert await read(tmp_path, taken) == SNAPSHOT
    with pytest.raises(BackupError, match="another one"):
        await read(tmp_path, taken, b"x" * 32)
    (folder / f"{taken.name}.snapshot").write_bytes(b"short")
    with pytest.raises(BackupError, match="not part of a backup"):
        await read(tmp_path, taken)
    (folder / f"{taken.name}.snapshot").unlink()
    with pytest.raises(StoreError, match="No such file"):
        await read(tmp_path, taken)


async def test_a_backup_without_a_manifest_does_not_exist(tmp_path: Path) -> None:
    first, second = manifest(NOW), manifest(NOW + timedelta(hours=1))
    folder = await write(tmp_path, first, first.name)
    await write(tmp_path, None, second.name)
    assert list_backups(folder).manifests == (first,)
    await delete_leftovers(store(tmp_path))
    assert {path.stem for path in folder.iterdir()} == {first.name}
    await delete_backup(store(tmp_path), first.name)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("killed_at", range(5))
async def test_a_killed_provider_leaves_a_complete_backup_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    taken, writes = manifest(NOW), 0

    def killed(*_: object, **__: object) -> None:
        nonlocal writes
        writes += 1
        if writes > killed_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            await write(tmp_path, taken, taken.name)
    folder = tmp_path / "default" / "etcd" / "one"
    assert list_backups(folder) == backup_files.Listed((), ())
    await delete_leftovers(store(tmp_path))
    await write(tmp_path, taken, taken.name)
    assert list_backups(folder).manifests == (taken,)


async def test_a_damaged_manifest_hides_no_other_backup(tmp_path: Path) -> None:
    good, bad, lacking = (manifest(NOW + timedelta(hours=hours)) for hours in range(3))
    for taken in (good, bad, lacking):
        folder = await write(tmp_path, taken, taken.name)
    (folder / f"{bad.name}.json").write_bytes(b"{")
    (folder / f"{lacking.name}.snapshot").unlink()
    await delete_leftovers(store(tmp_path))
    listed = list_backups(folder)
    assert listed.manifests == (good,)
    assert listed.damaged == (lacking.name, bad.name)
    assert (folder / f"{bad.name}.snapshot").exists()


async def test_a_folder_has_a_largest_number_of_backups(tmp_path: Path) -> None:
    for number in range(5001):
        (tmp_path / f"{number:08d}T000000Z.json").touch()
    with pytest.raises(StoreError, match="more than 5000 backups"):
        list_backups(tmp_path)


async def test_a_missing_root_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="--backup-folder"):
        await write(tmp_path / "unmounted", None, manifest(NOW).name)


async def test_a_name_must_match_its_manifest(tmp_path: Path) -> None:
    taken = manifest(NOW)
    folder = await write(tmp_path, replace(taken, taken_at=NOW - timedelta(days=1)), taken.name)
    assert list_backups(folder).damaged == (taken.name,)
