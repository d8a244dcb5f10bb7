"""Backups of a real etcd, with a fake management cluster."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import read_endpoints
from capelin.contract import secret_name
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import (
    BackupDestination,
    CapelinControlPlane,
    Etcd,
    EtcdBackup,
    S3Destination,
    SecretKey,
    SecretName,
    Spec,
)
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.files import open_backup
from capelin_control_plane.keys.rotation import PURPOSES
from capelin_control_plane.operations.backup import Backups, BackupState, ControlPlaneData

from tests.s3.versitygw import BUCKET, SECRET_DATA, VERSITYGW, s3_server

from .rig import KEY, NEW, Rig, control_plane, settled

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.needs_programs(VERSITYGW),
]
FOLDER = BackupDestination(folder="etcd")
SECRET = b"k" * 32


async def result(
    backups: Backups,
    ctx: Context,
    rig: Rig,
    woken: asyncio.Event,
    destination: BackupDestination = FOLDER,
) -> BackupState:
    """The result of the next task."""
    backup = EtcdBackup(
        schedule="0 3 * * *",
        destination=destination,
        encryption_key=SecretKey(name="backup-key"),
    )
    mine = CapelinControlPlane.of(
        KEY.name, KEY.namespace, spec=Spec(version=NEW, etcd=Etcd(backup=backup))
    )
    data = ControlPlaneData(mine, control_plane(NEW), "a", partial(rig.backend.etcd, KEY))
    reconcile = partial(backups.reconcile, ctx, data)
    woken.clear()
    reconcile()
    await woken.wait()
    state = reconcile()
    assert state is not None
    return state


async def test_a_real_etcd_is_backed_up(rig: Rig, tmp_path: Path) -> None:
    await rig.until(control_plane(NEW), settled)
    async with rig.client() as client:
        await client.create(ConfigMap.of("kept-in-the-backup", "default"))
    secrets = [
        Secret.of(secret_name("one", purpose), "default", data={"tls.key": b"private"})
        for purpose in PURPOSES
    ]
    management, woken = FakeClient(CapelinControlPlane), asyncio.Event()
    for secret in secrets:
        await management.create(secret)
    recorder = Recorder(management, "test", "test", now=lambda: datetime.now(UTC))
    ctx = Context(management, logging.getLogger(), recorder)

    def wake(_: ObjectKey) -> None:
        woken.set()

    root = tmp_path / "backups"
    async with AsyncExitStack() as stack:
        for folder_exists, key, reason in (
            (False, None, "BackupKeyNotUsable"),
            (False, b"short", "BackupKeyNotUsable"),
            (False, SECRET, "BackupFailed"),
            (True, SECRET, "BackupHealthy"),
        ):
            if folder_exists:
                root.mkdir()
            if key is not None:
                await management.apply(Secret.of("backup-key", "default", data={"key": key}))
            backups = Backups(Stores(root), wake)
            stack.push_async_callback(backups.close)
            state = await result(backups, ctx, rig, woken)
            assert state.condition.reason == reason, state.condition.message
        assert state.newest is not None
        # Another provider finds the backup, and takes none.
        again = Backups(Stores(root), wake)
        stack.push_async_callback(again.close)
        assert (await result(again, ctx, rig, woken)).newest == state.newest

        server = await stack.enter_async_context(s3_server(tmp_path / "s3"))
        to_s3 = Backups(Stores(None, read_endpoints(server.endpoint)), wake)
        stack.push_async_callback(to_s3.close)
        s3 = S3Destination(
            endpoint=server.endpoint,
            bucket=BUCKET,
            credentials=SecretName(name="credentials"),
            ca_bundle=server.ca,
        )
        state = await result(to_s3, ctx, rig, woken, BackupDestination(s3=s3))
        assert state.condition.reason == "BackupDestinationNotUsable"
        await management.create(Secret.of("credentials", "default", data=SECRET_DATA))
        to_s3.forget(KEY)
        state = await result(to_s3, ctx, rig, woken, BackupDestination(s3=s3))
        assert state.condition.reason == "BackupHealthy", state.condition.message

    (path,) = server.objects.glob("default/one/*.json")
    open_backup(path, SECRET, tmp_path / "opened-from-s3")
    assert b"kept-in-the-backup" in (tmp_path / "opened-from-s3" / "etcd.db").read_bytes()
    (path,) = root.glob("default/etcd/one/*.json")
    manifest = open_backup(path, SECRET, tmp_path / "opened")
    assert manifest.etcd_version.startswith("3.")
    assert manifest.revision > 1
    assert b"kept-in-the-backup" in (tmp_path / "opened" / "etcd.db").read_bytes()
    items = json.loads((tmp_path / "opened" / "authorities.json").read_text())["items"]
    assert [item["metadata"]["name"] for item in items] == [secret.name for secret in secrets]
