"""When a restore takes its next phase, and which backups it refuses. Pure.

The annotation on the control plane is the whole operation: it names the backup, survives
`clusterctl move`, and is removed at the end. The phase follows from the files of the backend.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from capelin.provider import Blocked
from capelin.versions import Version

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.manifests import Manifest, taken_at
from capelin_control_plane.desired.component_files import IDENTITY, EncryptionFiles
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Phase


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


def moment_of(request: str) -> datetime | None:
    """The moment of a request. None if it has none: two requests for a backup would be equal."""
    try:
        moment = datetime.fromisoformat(request.partition("@")[2])
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def revision_bump(request: str, revision: int) -> int:
    """How much the revisions of restored data grow: those of a later restore are higher.

    Clients rely on that, also after restores of restored data. Microseconds grow faster than any
    writes, so the sum is the goal, and not the bump.

    Args:
        request: The request, with its moment.
        revision: The revision of the backup.
    """
    moment = moment_of(request) or taken_at(backup_of(request))
    return max(int(moment.timestamp() * 1_000_000) - revision, 0)


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
    if not _is_readable(manifest, desired.encryption):
        raise _refused(
            f"the keys of encryption at rest changed after backup {manifest.name}: API servers"
            " could not read its objects",
            "name a backup from after the change",
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


def _is_readable(manifest: Manifest, encryption: EncryptionFiles) -> bool:
    """Whether API servers with the present keys read all objects of a backup."""
    if manifest.rings is None:
        return manifest.encryption == encryption.name
    stored, present = manifest.rings, encryption.rings
    return all(
        {*stored.get(resource, (IDENTITY,))} <= {*present.get(resource, (IDENTITY,))}
        for resource in stored.keys() | present.keys()
    )


def _refused(message: str, hint: str) -> Blocked:
    return Blocked(Reason.RESTORE_REFUSED, message, hint)
