"""When a backup of etcd is due, and which backups to keep. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, Literal

from capelin_control_plane.api import BackupRetention, CapelinControlPlane, EtcdBackup
from capelin_control_plane.desired.component_files import OFF
from capelin_control_plane.desired.control_plane import annotated_moment
from capelin_control_plane.desired.schedules import (
    around,
    interval_of,
    is_future,
    occurrences,
    zone,
)

BACKUP_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/backup-after"
"""Its value is a moment. The provider takes a backup if the newest one is older."""
_FIELD: Final = "spec.etcd.backup"
_ZONE: Final = f"{_FIELD}.timeZone"
_NAME: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a backup. Without it, the backup does not exist."""

    format: Literal["capelin-backup/1"] = "capelin-backup/1"
    namespace: str
    cluster: str
    control_plane: str
    authority: str
    """SHA-256 of the CA's certificate. It distinguishes two clusters of one name."""
    kubernetes_version: str
    etcd_version: str
    revision: int
    """The backup has every write up to this revision of etcd."""
    taken_at: datetime
    """When the provider began to read. Later writes may be missing."""
    seconds: float
    """How long the provider read and wrote."""
    snapshot_bytes: int
    encryption: str = OFF
    """The name of the API servers' configuration of encryption at rest."""
    rings: dict[str, tuple[str, ...]] | None = None
    """By resource, the names of the keys that its objects may have. Earlier releases have none."""
    epoch: str = ""
    """The CAs, keys and version that the data needs."""
    rewound: bool = False
    """Whether it was created from another backup and archived changes."""

    @property
    def name(self) -> str:
        """The name of the backup, and of its files without their endings."""
        return self.taken_at.astimezone(UTC).strftime(_NAME)


def taken_at(backup: str) -> datetime:
    """The moment of a backup, from its name."""
    return datetime.strptime(backup, _NAME).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Due:
    """The moments that a backup should follow."""

    last: datetime | None
    """The latest one in the past. A backup is due if none was taken since."""
    next: datetime | None
    """The next one in the future."""
    needed: "NeededBackup | None" = None
    """The backup that an archive of changes continues."""

    def includes(self, newest: Manifest | None) -> bool:
        """Whether a backup is due. The first one is due if it has any moment.

        Args:
            newest: The newest one. One from the future has an unknown age and does not count.
        """
        if newest is None:
            return (self.last or self.next or self.needed) is not None
        if self.needed is not None and not self.needed.is_met_by(newest.revision, newest.epoch):
            return True
        return self.last is not None and newest.taken_at < self.last


@dataclass(frozen=True, slots=True)
class NeededBackup:
    """The requirements for a backup that an archive of changes continues."""

    revision: int
    """It has this revision or a later one."""
    epoch: str
    """It has these keys and this version."""

    def is_met_by(self, revision: int, epoch: str) -> bool:
        """Whether the archive continues a backup with this revision, and these keys and version."""
        return revision >= self.revision and epoch == self.epoch


def epoch_of(kubernetes_version: str, encryption: str, authorities: str) -> str:
    """Identifies the keys and the version that stored objects need."""
    content = f"{kubernetes_version}\n{encryption}\n{authorities}"
    return sha256(content.encode()).hexdigest()[:8]


def due(
    control_plane: CapelinControlPlane,
    backup: EtcdBackup,
    now: datetime,
    needed: NeededBackup | None = None,
) -> Due:
    """The moments of the schedule and the annotation around now.

    Args:
        control_plane: The control plane.
        backup: Its settings.
        now: The present moment.
        needed: The backup that an archive of changes needs.

    Raises:
        InvalidSpecError: the schedule, the time zone or the annotation cannot be read.
    """
    moments = [annotated_moment(control_plane, BACKUP_ANNOTATION)]
    if backup.schedule is not None:
        moments += occurrences(
            backup.schedule, backup.time_zone, now, field=f"{_FIELD}.schedule", zone_field=_ZONE
        )
    return Due(*around(moments, now), needed)


def interval(backup: EtcdBackup, now: datetime) -> timedelta | None:
    """How long the schedule waits between its next two backups. None without a schedule.

    Raises:
        InvalidSpecError: the schedule or the time zone cannot be read.
    """
    if backup.schedule is None:
        return None
    return interval_of(backup.schedule, now.astimezone(zone(backup.time_zone, _ZONE)))


def expired(
    manifests: Collection[Manifest],
    retention: BackupRetention,
    now: datetime,
    *,
    continuous: bool = False,
    named: Collection[str] = (),
) -> list[Manifest]:
    """The backups to delete: neither among the newest, nor the newest of a recent day in UTC.

    Args:
        manifests: The backups. Those from the future stay, and do not count.
        retention: Which ones to keep.
        now: The present.
        continuous: Whether the archive of changes needs the last backup but one.
        named: The backups that restores name. They stay.
    """
    newest_first = sorted(manifests, key=lambda manifest: manifest.taken_at, reverse=True)
    newest_first = [it for it in newest_first if not is_future(it.taken_at, now)]
    # Those of earlier moments were taken for a restore, and must not push others out.
    taken = [it for it in newest_first if not it.rewound]
    last = taken[: max(retention.last, 2 if continuous else 1)]
    oldest = min((it.taken_at for it in last), default=now)
    kept = {*named, *(it.name for it in newest_first if it.taken_at >= oldest)}
    oldest_day = (now.astimezone(UTC) - timedelta(days=retention.days)).date()
    days: dict[object, str] = {}
    for manifest in newest_first:
        day = manifest.taken_at.astimezone(UTC).date()
        if day > oldest_day:
            days.setdefault(day, manifest.name)
    kept.update(days.values())
    return [manifest for manifest in newest_first if manifest.name not in kept]
