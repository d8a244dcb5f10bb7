"""Verifies and prunes the backups of a cluster, and creates those of earlier moments."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from capelin.errors import InvalidInputError, UserError
from capelin_control_plane.api import EtcdBackup
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import delete_backup
from capelin_control_plane.backup.manifests import Manifest, expired
from capelin_control_plane.backup.point_in_time import backup_as_of
from capelin_control_plane.backup.snapshots import PROGRAMS, verify_backup
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.operations.backup import named_backups
from capelin_embedded.binaries import Binaries
from rich.console import Console

from capelin_cli.clusters.backup_places import (
    BackupPlace,
    FoundBackup,
    choose_backup,
    key_of,
    open_backups,
    required_settings,
)
from capelin_cli.environments.connection import ClusterName
from capelin_cli.terminal.checklist import Checklist

LATEST: Final = "latest"
"""In place of a moment: with all archived changes."""


async def verify_stored(which: ClusterName, place: BackupPlace, name: str | None) -> None:
    """Decrypt a backup, restore it into a throw-away etcd, and print the result."""
    folder = which.folder()
    key = await key_of(which, place)
    async with open_backups(which, place) as found:
        backup = choose_backup(found, which, name)
        manifest = backup.manifest
        with Checklist(Console()).shown() as checklist:
            programs = await etcd_programs(checklist)
            with checklist.step(f"backup {manifest.name} restored into a throw-away etcd") as line:
                try:
                    trial = await verify_backup(backup.store, manifest, key, programs, folder)
                except BackupError as error:
                    raise UserError(
                        f"Backup {manifest.name} of cluster {which.name} cannot be restored.",
                        reason=f"{error}.",
                        hint="Take another one: " + which.command("backup") + ".",
                    ) from error
                line.detail = f"revision {trial.revision}, {trial.keys} keys"


async def etcd_programs(checklist: Checklist) -> tuple[Path, Path]:
    """Etcd and etcdutl."""
    with checklist.step("programs of etcd"):
        binaries = await Binaries().fetch(PROGRAMS)
    etcd, etcdutl = (binaries[program].path for program in PROGRAMS)
    return etcd, etcdutl


async def expired_backups(which: ClusterName, place: BackupPlace) -> list[str]:
    """The names of the backups that the retention of a cluster does not keep."""
    async with open_backups(which, place) as found:
        return [backup.manifest.name for backup in await _expired(which, found)]


async def delete_expired(which: ClusterName, place: BackupPlace, names: Collection[str]) -> int:
    """Delete expired backups of these names, the manifest of each first. Returns their number."""
    deleted = 0
    async with open_backups(which, place) as found:
        for backup in await _expired(which, found):
            if backup.manifest.name in names:
                await delete_backup(backup.store, backup.manifest.name)
                deleted += 1
    return deleted


async def _expired(which: ClusterName, found: Sequence[FoundBackup]) -> list[FoundBackup]:
    settings = await required_settings(which)
    async with which.client() as client:
        named = await named_backups(client, which.namespace, which.name)
    return expired_of(found, settings, datetime.now(UTC), named)


def expired_of(
    found: Sequence[FoundBackup], settings: EtcdBackup, now: datetime, named: Collection[str] = ()
) -> list[FoundBackup]:
    """The backups of one cluster that its retention does not keep, and that no restore names.

    Earlier clusters of its name are separate, and so are other folders of the same namespace.
    """
    groups: dict[tuple[Store, str], list[Manifest]] = {}
    for backup in found:
        group = (backup.store, backup.manifest.authority)
        groups.setdefault(group, []).append(backup.manifest)
    old = {
        (store, manifest.name)
        for (store, _), manifests in groups.items()
        for manifest in expired(
            manifests, settings.retention, now, continuous=settings.continuous, named=named
        )
    }
    return [backup for backup in found if (backup.store, backup.manifest.name) in old]


def parse_moment(text: str, now: datetime) -> datetime | None:
    """A moment in the past with a time zone. None is the latest one.

    Raises:
        InvalidInputError: it is none.
    """
    if text == LATEST:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment > now:
        raise InvalidInputError(
            f"{text!r} is not a moment in the past.",
            reason="It needs a date, a time and a time zone.",
            hint=f"Write it as {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, or write {LATEST}.",
        )
    return moment


async def create_backup_as_of(
    which: ClusterName, place: BackupPlace, moment: datetime | None
) -> str:
    """Create a backup of a moment from the archive of changes. Returns its name."""
    folder, text = which.folder(), f"{moment:%Y-%m-%dT%H:%M:%S%z}" if moment else LATEST
    key = await key_of(which, place)
    async with open_backups(which, place) as found:
        store = choose_backup(found, which, None).store
        with Checklist(Console()).shown() as checklist:
            programs = await etcd_programs(checklist)
            with (
                checklist.step(f"backup as of {text}") as line,
                TemporaryDirectory(prefix="rewind-", dir=folder) as work,
            ):
                try:
                    manifest = await backup_as_of(store, key, moment, programs, Path(work))
                except BackupError as error:
                    raise UserError(
                        f"Cluster {which.name} cannot be restored as of this moment.",
                        reason=f"{error}.",
                        hint="Name another moment, or a backup of capelin backups with --backup.",
                    ) from error
                line.detail = f"{manifest.name}, revision {manifest.revision}"
    return manifest.name
