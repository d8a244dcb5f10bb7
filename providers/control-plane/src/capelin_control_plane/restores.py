"""When a restore takes its next phase, and which backups it refuses. Pure.

The annotation on the control plane is the whole operation: it names the backup, survives
`clusterctl move`, and is removed at the end. The phase follows from the files of the backend.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from capelin.provider import Blocked
from capelin.versions import Version

from capelin_control_plane.backups import Manifest
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.reasons import Reason
from capelin_control_plane.rotation import is_rolling

_SMALLEST_BUMP: Final = 1_000_000_000


class Phase(StrEnum):
    """The phases of a restore, in their order. Their names are reasons of conditions."""

    PREPARING = "PreparingRestore"
    """New data is created from the backup. The control plane continues to serve."""
    STOPPING = "StoppingForRestore"
    """etcd and its clients stop. From here on, the restore is always completed."""
    REPLACING = "ReplacingData"
    """The data of all etcd members is replaced."""
    STARTING = "StartingRestored"
    """etcd and its clients start."""


@dataclass(frozen=True, slots=True)
class RestoreFiles:
    """The files of restores in a backend."""

    prepared: str | None = None
    """The request whose data is complete and not in use."""
    replacing: bool = False
    """Whether the replacement of data has begun."""
    restored: str | None = None
    """The last request whose data is in use."""


def restore_request(backup: str, now: datetime, source: str | None = None) -> str:
    """The value of the annotation that requests a restore now.

    Args:
        backup: The name of the backup.
        now: The present. Two requests for one backup differ in it.
        source: The Cluster whose data is copied. None for the Cluster's own backup.
    """
    prefix = "" if source is None else f"{source}/"
    return f"{prefix}{backup}@{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def backup_of(request: str) -> str:
    """The name of the backup that a request names."""
    return request.partition("@")[0].rpartition("/")[2]


def revision_bump(request: str) -> int:
    """How much the revisions of restored data grow: those of a later restore are higher.

    Clients rely on that. Microseconds grow faster than any writes.
    """
    for text in (request.partition("@")[2], backup_of(request)):
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1_000_000)
        except ValueError:
            continue
    return _SMALLEST_BUMP


def source_of(request: str) -> str | None:
    """The Cluster whose data a request copies. None if it is the Cluster's own backup."""
    return request.partition("@")[0].rpartition("/")[0] or None


def restore_phase(request: str | None, files: RestoreFiles, *, stopped: bool) -> Phase | None:
    """The phase of a restore. None if there is nothing to do.

    Args:
        request: The annotation's value.
        files: The files of the backend.
        stopped: Whether no process of etcd and of its clients runs.
    """
    if files.replacing:
        # Members with different histories must never start, so a withdrawn request is completed.
        return Phase.REPLACING if stopped else Phase.STOPPING
    if request is None:
        return None
    if files.restored == request:
        return Phase.STARTING
    if files.prepared != request:
        return Phase.PREPARING
    return Phase.REPLACING if stopped else Phase.STOPPING


def check_backup(manifest: Manifest, desired: ControlPlane, authority: str | None) -> None:
    """Check that a control plane can continue from a backup.

    Args:
        manifest: The backup.
        desired: The desired state of the control plane.
        authority: SHA-256 of its CA's certificate. None for a copy of another Cluster.

    Raises:
        Blocked: it cannot.
    """
    if authority is not None and manifest.authority != authority:
        raise _refused(
            f"backup {manifest.name} belongs to a control plane with another CA",
            "restore the CAs and keys of the backup first, or name a backup of this control plane",
        )
    if desired.encryption.changing:
        raise _refused(
            "encryption at rest is being changed, and stored objects have different keys",
            "wait until the condition EncryptionAtRest has no stage",
        )
    if manifest.encryption != desired.encryption.name:
        raise _refused(
            f"the keys of encryption at rest changed after backup {manifest.name}: API servers"
            " could not read its objects",
            "name a backup from after the change",
        )
    if is_rolling(desired.rotation):
        raise _refused(
            "the certificate authorities are being rotated, and components restart",
            "wait until the condition RotatingAuthorities has the reason WaitingForClients",
        )
    stored, version = Version.parse(manifest.kubernetes_version), Version.parse(desired.version)
    if (stored.major, stored.minor) > (version.major, version.minor):
        raise _refused(
            f"backup {manifest.name} is of Kubernetes {manifest.kubernetes_version}, which"
            f" {desired.version} may not understand",
            f"upgrade the control plane to {manifest.kubernetes_version} first",
        )
    if (stored.major, stored.minor + 1) < (version.major, version.minor):
        raise _refused(
            f"backup {manifest.name} is of Kubernetes {manifest.kubernetes_version}, and"
            f" {desired.version} reads only data of one minor version before",
            "name a newer backup",
        )


def _refused(message: str, hint: str) -> Blocked:
    return Blocked(Reason.RESTORE_REFUSED, message, hint)
