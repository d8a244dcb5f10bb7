"""Backups as the command lists, chooses and prunes them, and moments that users name."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from capelin.api import Condition
from capelin.errors import InvalidInputError, MissingError, NotReadyError
from capelin_cli.clusters.backups import (
    BackupPlace,
    FoundBackup,
    age_text,
    bucket_of,
    choose_backup,
    credentials_of,
    expired_of,
    next_second,
    parse_moment,
)
from capelin_cli.clusters.operations import (
    Persistent,
    check_awake,
    not_asleep_reason,
    not_awake_reason,
)
from capelin_cli.environments.connection import ClusterName
from capelin_control_plane.api import (
    BackupDestination,
    BackupRetention,
    CapelinControlPlane,
    EtcdBackup,
    LastBackup,
    SecretKey,
    Spec,
    Status,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.snapshots import stored_backups
from capelin_control_plane.backup.stores import FolderStore, Workers
from capelin_embedded.management import Environment, Settings
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
        etcd_version="3.6.8",
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


STORE = FolderStore(Path("backups"), Path(), Workers(1))
OTHER = FolderStore(Path("earlier"), Path(), Workers(1))


def test_the_newest_backup_is_chosen() -> None:
    found = [FoundBackup(STORE, each) for each in (manifest(), manifest(1))]
    assert choose_backup(found, DEMO, None) == found[0]
    assert choose_backup(found, DEMO, found[1].manifest.name) == found[1]
    with pytest.raises(MissingError, match="no complete backup 20260329T130000Z"):
        choose_backup(found, DEMO, "20260329T130000Z")
    with pytest.raises(MissingError, match="no complete backup"):
        choose_backup([], DEMO, None)


def test_only_backups_of_the_same_control_plane_replace_older_ones() -> None:
    settings = EtcdBackup(
        destination=BackupDestination(folder="etcd"),
        encryption_key=SecretKey(name="key"),
        retention=BackupRetention(last=1),
    )
    manifests = [manifest(), manifest(1), manifest(2, "earlier"), manifest(3, "earlier")]
    found = [FoundBackup(STORE, each) for each in manifests]
    assert expired_of(found, settings, NOW) == [found[1], found[3]]
    assert expired_of(found, settings, NOW, {found[3].manifest.name}) == [found[1]]
    assert expired_of([found[0], FoundBackup(OTHER, manifests[1])], settings, NOW) == []


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


def test_a_url_names_a_bucket() -> None:
    def read(url: str) -> tuple[str, str, str | None]:
        bucket = bucket_of(BackupPlace(bucket=url), None)
        return bucket.endpoint, bucket.bucket, bucket.prefix

    assert read("https://s3.example.com/backups") == ("https://s3.example.com", "backups", None)
    assert read("http://127.0.0.1:9000/backups/a/b/") == ("http://127.0.0.1:9000", "backups", "a/b")
    for url in ("backups", "https://s3.example.com", "s3://backups/a", "https://x/UP"):
        with pytest.raises(InvalidInputError, match="not the URL of a bucket"):
            read(url)


def test_credentials_come_from_the_environment() -> None:
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert credentials_of(variables).token is None
    with pytest.raises(MissingError, match="AWS_SECRET_ACCESS_KEY is not set"):
        credentials_of({"AWS_ACCESS_KEY_ID": "a"})


def test_a_backup_of_a_sleeping_cluster_names_the_command_that_wakes_it() -> None:
    mine = CapelinControlPlane.of("demo", "default", spec=Spec(version="v1.34.4"))
    check_awake(mine, DEMO)
    asleep = Condition(
        type="Asleep", status="True", reason="Asleep", message="", last_transition_time=NOW
    )
    mine.status = Status(conditions=[asleep])
    with pytest.raises(NotReadyError, match="demo sleeps") as raised:
        check_awake(mine, DEMO)
    assert "capelin wake cluster demo" in str(raised.value.hint)


def test_the_commands_wait_for_the_conditions_of_a_sleep() -> None:
    mine = CapelinControlPlane.of("demo", "default", spec=Spec(version="v1.34.4"))

    def status(type_: str, state: Literal["True", "False"], reason: str) -> CapelinControlPlane:
        condition = Condition(
            type=type_, status=state, reason=reason, message="m", last_transition_time=NOW
        )
        mine.status = Status(conditions=[condition])
        return mine

    assert not_asleep_reason(mine) == "the provider begins"
    assert not_asleep_reason(status("Asleep", "True", "FallingAsleep")) == "m"
    assert not_asleep_reason(status("Asleep", "True", "Asleep")) is None
    assert not_awake_reason(status("Available", "False", "Asleep")) == "m"
    assert not_awake_reason(status("Available", "True", "Available")) is None


@pytest.mark.parametrize("text", ["2026-03-29T11:59:00Z", "2026-03-29T12:59:00+01:00"])
def test_a_moment_has_a_time_zone(text: str) -> None:
    assert parse_moment(text, NOW) == NOW - timedelta(minutes=1)


def test_the_latest_moment_has_no_time() -> None:
    assert parse_moment("latest", NOW) is None


@pytest.mark.parametrize("text", ["yesterday", "2026-03-29T11:59:00", "2026-03-29T12:01:00Z"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a moment in the past") as error:
        parse_moment(text, NOW)
    assert error.value.hint == "Write it as 2026-03-29T12:00:00Z, or write latest."
