"""The archive of a real etcd, with a fake management cluster."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.contract import ConditionSpec, secret_name
from capelin.controller import Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.api import (
    BackupDestination,
    CapelinControlPlane,
    Etcd,
    EtcdBackup,
    SecretKey,
    Spec,
    Status,
)
from capelin_control_plane.backup.archive import read_changes
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.files import read_snapshot
from capelin_control_plane.backup.manifests import Manifest, NeededBackup
from capelin_control_plane.backup.point_in_time import backup_as_of
from capelin_control_plane.backup.snapshots import PROGRAMS
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.keys.rotation import PURPOSES
from capelin_control_plane.operations.archive import Archives
from capelin_control_plane.operations.backup import Backups, ControlPlaneData
from capelin_embedded.binaries import Binaries
from capelin_embedded.processes import private_folder

from .rig import KEY, NEW, Rig, control_plane, settled
from .test_restore import names, restore

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.needs_programs("etcdutl"),
]
SEED = int(os.environ.get("CAPELIN_TEST_SEED", "1"))
SECRET, AUTHORITY = b"k" * 32, "a" * 64
BACKUP = EtcdBackup(
    continuous=True,
    destination=BackupDestination(folder="etcd"),
    encryption_key=SecretKey(name="backup-key"),
)


@dataclass
class Provider:
    """The tasks of a provider for one control plane."""

    rig: Rig
    ctx: Context
    stores: Stores
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    needed: NeededBackup | None = None

    def __post_init__(self) -> None:
        self._archives = Archives(self.stores, self._wake)
        self._backups = Backups(self.stores, self._wake)
        self._control_plane = CapelinControlPlane.of(
            KEY.name, KEY.namespace, spec=Spec(version=NEW, etcd=Etcd(backup=BACKUP))
        )

    def _wake(self, _: ObjectKey) -> None:
        self.woken.set()

    def reconcile(self) -> ConditionSpec:
        """Reconcile as the provider does, also the status."""
        obj, etcd = self._control_plane, partial(self.rig.backend.etcd, KEY)
        data = ControlPlaneData(obj, control_plane(NEW), AUTHORITY, etcd)
        archive = self._archives.reconcile(self.ctx, data)
        assert archive is not None
        backup = self._backups.reconcile(self.ctx, data, archive.needed)
        obj.status = Status(backup=backup and backup.newest)
        self.needed = archive.needed
        return archive.condition_with(backup)

    async def is_healthy(self) -> bool:
        return self.reconcile().status == "True"

    async def close(self) -> None:
        await self._archives.close()
        await self._backups.close()


@asynccontextmanager
async def management(root: Path) -> AsyncGenerator[tuple[Context, Stores]]:
    """A management cluster with the Secrets, and a folder for backups."""
    client = FakeClient(CapelinControlPlane)
    await client.create(Secret.of("backup-key", "default", data={"key": SECRET}))
    for purpose in PURPOSES:
        name = secret_name("one", purpose)
        await client.create(Secret.of(name, "default", data={"tls.key": b"private"}))
    recorder = Recorder(client, "test", "test", now=lambda: datetime.now(UTC))
    stores = Stores(root)
    try:
        yield Context(client, logging.getLogger(), recorder), stores
    finally:
        stores.close()


async def archived(store: Store, after: int) -> list[int]:
    async with aclosing(read_changes(store, SECRET, AUTHORITY, after)) as batches:
        return [change.revision async for batch in batches for change in batch.changes]


async def revision(rig: Rig) -> int:
    async with rig.backend.etcd(KEY) as etcd:
        return (await etcd.status()).revision


async def test_data_is_restored_as_of_a_moment(rig: Rig, tmp_path: Path) -> None:
    await rig.until(control_plane(NEW), settled)
    async with management(tmp_path) as (ctx, stores), rig.client() as workload:
        destination = (ctx.client, BACKUP.destination, "default", "one")
        provider = Provider(rig, ctx, stores)
        await until(provider.is_healthy, within=60)
        await workload.create(ConfigMap.of("first", "default"))
        written = await revision(rig)

        async def is_archived() -> bool:
            provider.reconcile()
            assert provider.needed is not None
            async with stores.open(*destination) as store:
                return written in await archived(store, provider.needed.revision)

        await until(is_archived, within=30)
        moment = datetime.now(UTC)
        await workload.delete(ConfigMap, "first", "default")
        await workload.create(ConfigMap.of("second", "default"))
        written = await revision(rig)
        await until(is_archived, within=30)
        await provider.close()

        # Without a provider, etcd forgets changes that no provider has archived.
        await workload.create(ConfigMap.of("third", "default"))
        await workload.create(ConfigMap.of("fourth", "default"))
        async with rig.backend.etcd(KEY) as etcd:
            await etcd.compact((await etcd.status()).revision)
        later = Provider(rig, ctx, stores)
        await until(later.is_healthy, within=60)
        assert later.needed != provider.needed
        await later.close()

        programs = await Binaries().fetch(PROGRAMS)
        etcd_path, etcdutl = (programs[program].path for program in PROGRAMS)
        work = private_folder(tmp_path / "work")
        async with stores.open(*destination) as store:
            manifest = await backup_as_of(store, SECRET, moment, (etcd_path, etcdutl), work)
            snapshot = await saved(store, manifest, tmp_path)
        await restore(rig, control_plane(NEW), snapshot)
        found = await names(workload)
        assert "first" in found
        assert not found & {"second", "third", "fourth"}


async def saved(store: Store, manifest: Manifest, folder: Path) -> Path:
    """The snapshot of a backup in a file."""
    snapshot = folder / "restored.db"
    with snapshot.open("wb") as file:
        async for piece in read_snapshot(store, manifest, SECRET):
            file.write(piece)
    return snapshot


async def test_a_killed_provider_loses_no_change(rig: Rig, tmp_path: Path) -> None:
    """Each provider ends at any moment, and the next one continues."""
    random = Random(SEED)  # noqa: S311
    await rig.until(control_plane(NEW), settled)
    async with management(tmp_path) as (ctx, stores), rig.client() as workload:
        provider = Provider(rig, ctx, stores)
        await until(provider.is_healthy, within=60)
        first, count = await revision(rig), 0
        for _ in range(8):
            ends = asyncio.get_running_loop().time() + random.uniform(0, 7)
            while asyncio.get_running_loop().time() < ends:
                await workload.create(ConfigMap.of(f"written-{count}", "default"))
                count += 1
            # Cancelled tasks write nothing more, like those of a killed process.
            await provider.close()
            provider = Provider(rig, ctx, stores)
            provider.reconcile()
        last = await revision(rig)

        async def are_archived() -> bool:
            provider.reconcile()
            async with stores.open(ctx.client, BACKUP.destination, "default", "one") as store:
                found = await archived(store, first)
            return last in found and set(found) >= set(range(first + 1, last + 1))

        await until(are_archived, within=30)
        await provider.close()
        programs = await Binaries().fetch(PROGRAMS)
        etcd_path, etcdutl = (programs[program].path for program in PROGRAMS)
        async with stores.open(ctx.client, BACKUP.destination, "default", "one") as store:
            # With all archived changes, also by a command that is repeated.
            for attempt in ("first", "again"):
                work = private_folder(tmp_path / attempt)
                manifest = await backup_as_of(store, SECRET, None, (etcd_path, etcdutl), work)
            snapshot = await saved(store, manifest, tmp_path)
        await restore(rig, control_plane(NEW), snapshot)
        assert {f"written-{number}" for number in range(count)} <= await names(workload)
