"""Creates a backup of an earlier moment, which can then be restored like any other."""

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from capelin.errors import InvalidInputError, UserError
from capelin_control_plane.backup.files import BackupError
from capelin_control_plane.backup.point_in_time import backup_as_of
from rich.console import Console

from capelin_cli.clusters.backup_maintenance import etcd_programs
from capelin_cli.clusters.backup_places import (
    BackupPlace,
    choose_backup,
    key_of,
    open_backups,
)
from capelin_cli.clusters.cluster_verbs import ClusterName
from capelin_cli.terminal.checklist import Checklist

LATEST: Final = "latest"
"""In place of a moment: with all archived changes."""


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
