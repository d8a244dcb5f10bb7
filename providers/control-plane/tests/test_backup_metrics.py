"""Metrics of backups: which control planes they include, and the moments that they report."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import CapelinControlPlane, LastBackup, Spec, Status
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.manifests import interval
from capelin_control_plane.operations.backup import BackupMetrics, Backups, ControlPlaneData

from .factories import desired_control_plane
from .test_backups import backup

KEY = ObjectKey("default", "one")
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)


def values(metrics: BackupMetrics) -> dict[str, float]:
    return {
        sample.name.removeprefix("capelin_backup_"): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.labels == {"cluster_namespace": "default", "control_plane": "one"}
    }


@pytest.mark.parametrize(
    ("schedule", "hours"), [("0 * * * *", 1), ("30 3 * * *", 24), ("0 0 30 2 *", None)]
)
def test_the_interval_is_that_of_the_schedule(schedule: str, hours: float | None) -> None:
    expected = None if hours is None else timedelta(hours=hours)
    assert interval(backup(schedule=schedule), NOW) == expected
    assert interval(backup(), NOW) is None


async def test_the_age_begins_with_the_last_backup_or_the_creation() -> None:
    client = FakeClient()
    ctx = Context(client, logging.getLogger(), Recorder(client, "test", "test", now=lambda: NOW))
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    mine.metadata.creation_timestamp = CREATED
    backups = Backups(Stores(), lambda _: None)

    def reconcile(**fields: object) -> dict[str, float]:
        mine.spec.etcd.backup = backup(**fields)
        desired = desired_control_plane("v1.34.4")
        data = ControlPlaneData(mine, desired, "a", lambda: pytest.fail("it reads etcd"))
        backups.reconcile(ctx, data)
        return values(backups.metrics)

    assert reconcile(schedule="0 * * * *") == {
        "last_success_timestamp_seconds": CREATED.timestamp(),
        "interval_seconds": 3600,
    }
    mine.status = Status(backup=LastBackup(name="a", time=NOW, revision=1, bytes=1))
    assert reconcile(schedule="0 * * * *")["last_success_timestamp_seconds"] == NOW.timestamp()
    assert reconcile() == {}
    assert reconcile(schedule="0 * * * *") != {}
    backups.forget(KEY)
    assert values(backups.metrics) == {}
    await backups.close()
