"""Backups as the command lists, chooses and prunes them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.embedded.management import Environment, Settings
from capelin.errors import MissingError
from capelin_control_plane.api import (
    BackupDestination,
    BackupRetention,
    EtcdBackup,
    LastBackup,
    SecretKey,
)
from capelin_control_plane.backup_readers import StoredBackup, stored_backups
from capelin_control_plane.backups import Manifest
from capelin_infra.clusters.backups import (
    Persistent,
    age_text,
    choose_backup,
    delete_backups,
    expired_of,
    next_second,
)
from capelin_infra.clusters.cluster_verbs import ClusterName
from pydantic import TypeAdapter

from ..command import capelin  # noqa: TID252 - a folder without a name

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
DEMO = ClusterName("demo")
_ADAPTER = TypeAdapter(Manifest)


def manifest(hours: int = 0, authority: str = "a") -> Manifest:
    return Manifest(
        namespace="default",
        cluster="demo",
        control_plane="demo",
        authority=authority,
        kubernetes_version="v1.34.4",
        etcd_version="3.6.5",
        revision=700 - hours,
        taken_at=NOW - timedelta(hours=hours),
        seconds=1.0,
        snapshot_bytes=3 * 2**20,
    )


def write(root: Path, backup: Manifest, cluster: str = "demo") -> Path:
    folder = root / "default" / "etcd" / cluster
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{backup.name}.json").write_bytes(_ADAPTER.dump_json(backup))
    for part in ("authorities", "snapshot"):
        (folder / f"{backup.name}.{part}").write_bytes(b"")
    return folder


def test_backups_of_all_clusters_are_listed(tmp_path: Path) -> None:
    root = tmp_path / "backups"
    environment = Environment(tmp_path / "capelin" / "default")
    environment.make_folders()
    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    ended = capelin("backups", home=tmp_path)
    assert (ended.returncode, "has no folder for backups" in ended.stderr) == (2, True)
    environment.write_settings(Settings(kubernetes_version="v1.34.4", backup_folder=root))
    assert "does not exist" in capelin("backups", home=tmp_path).stderr

    folder = write(root, manifest())
    write(root, manifest(1))
    write(root, manifest(2), "other")
    (folder / f"{manifest(1).name}.snapshot").unlink()
    rows = capelin("backups", home=tmp_path).stdout.splitlines()
    assert rows[0].split()[:5] == ["NAMESPACE", "CLUSTER", "BACKUP", "AGE", "REVISION"]
    assert [row.split()[1:3] + row.split()[-1:] for row in rows[1:]] == [
        ["demo", "20260329T120000Z", "complete"],
        ["demo", "20260329T110000Z", "damaged"],
        ["other", "20260329T100000Z", "complete"],
    ]
    assert "3.0 MiB" in rows[1]
    data = json.loads(capelin("backups", "-c", "other", "-o", "json", home=tmp_path).stdout)
    assert [(entry["name"], entry["revision"]) for entry in data] == [("20260329T100000Z", 698)]


def test_the_newest_complete_backup_is_chosen(tmp_path: Path) -> None:
    damaged = StoredBackup(tmp_path, "20260329T130000Z", None)
    found = [damaged, *(StoredBackup(tmp_path, m.name, m) for m in (manifest(), manifest(1)))]
    assert choose_backup(found, DEMO, None) == found[1]
    assert choose_backup(found, DEMO, found[2].name) == found[2]
    with pytest.raises(MissingError, match="no complete backup 20260329T130000Z"):
        choose_backup(found, DEMO, damaged.name)
    with pytest.raises(MissingError, match="no complete backup"):
        choose_backup([damaged], DEMO, None)


def test_only_backups_of_the_same_control_plane_replace_older_ones(tmp_path: Path) -> None:
    settings = EtcdBackup(
        destination=BackupDestination(folder="etcd"),
        encryption_key=SecretKey(name="key"),
        retention=BackupRetention(last=1),
    )
    manifests = [manifest(), manifest(1), manifest(2, "earlier"), manifest(3, "earlier")]
    found = [StoredBackup(tmp_path, each.name, each) for each in manifests]
    found.append(StoredBackup(tmp_path, "20260101T000000Z", None))
    old = expired_of(found, settings, NOW)
    assert [backup.name for backup in old] == [manifests[1].name, manifests[3].name]
    elsewhere = replace(found[1], folder=tmp_path / "other")
    assert expired_of([found[0], elsewhere], settings, NOW) == []


async def test_pruned_backups_are_gone(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    write(tmp_path, manifest(1))
    newer, older = stored_backups(tmp_path)
    await delete_backups([older])
    assert stored_backups(tmp_path) == [newer]
    assert {path.stem for path in folder.iterdir()} == {newer.name}


def test_the_folder_may_have_other_files(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "README").write_text("mine")
    write(tmp_path, manifest())
    assert [backup.cluster for backup in stored_backups(tmp_path)] == ["demo"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (-3, "0 s"), (150, "2 min"), (7300, "2 h"), (400_000, "4 d")]
)
def test_ages_have_one_unit(seconds: int, text: str) -> None:
    assert age_text(timedelta(seconds=seconds)) == text


def test_only_a_failure_that_stays_counts() -> None:
    now = [0.0]
    failing = Persistent(lambda: now[0])
    assert not failing.stays("no key")
    now[0] = 4.0
    assert not failing.stays(None)
    assert not failing.stays("no key")
    now[0] = 9.5
    assert failing.stays("no key")


def test_the_time_in_a_status_is_not_before_the_request() -> None:
    now = datetime(2026, 1, 31, 3, 0, 9, 570379, tzinfo=UTC)
    taken_at = next_second(now) + timedelta(microseconds=200)
    status = LastBackup(name="20260131T030010Z", time=taken_at, revision=7, bytes=1)
    assert now < next_second(now) == status.time
