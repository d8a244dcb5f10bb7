"""Backups of control planes: taken on request, and listed."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin.errors import InvalidInputError, MissingError, NotReadyError
from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, Status
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION, Manifest
from capelin_control_plane.backup.snapshots import StoredBackup, stored_backups
from capelin_control_plane.operations.backup import BACKUP_HEALTHY
from capelin_embedded.management import Environment

from capelin_cli.clusters.operations import Failure, check_awake, condition_of, operation
from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.terminal.tables import Column, Format, print_list


def backup_settings(control_plane: CapelinControlPlane) -> EtcdBackup:
    """The settings of a control plane's backups."""
    backup = control_plane.spec.etcd.backup
    if backup is None:
        raise InvalidInputError(
            f"Control plane {control_plane.name} has no backups.",
            reason="Its spec.etcd.backup is not set.",
            hint="Set it first: the documentation's page on backup and recovery has an example.",
        )
    return backup


def backup_folder(environment: Environment) -> Path:
    """The folder of an environment's backups."""
    settings = environment.settings()
    if settings is None or settings.backup_folder is None:
        raise InvalidInputError(
            f"Environment {environment.name} has no folder for backups.",
            hint=f"Set one: capelin up -e {environment.name} --management-only"
            " --backup-folder FOLDER.",
        )
    if not settings.backup_folder.is_dir():
        raise MissingError(
            f"The folder for backups {settings.backup_folder} does not exist.",
            hint="Mount it, or create it again.",
        )
    return settings.backup_folder


async def take_backup(which: ClusterName, within: float) -> None:
    """Request a backup, and wait until it exists."""
    async with operation(which, within) as (backup, control_plane):
        backup_settings(control_plane)
        check_awake(control_plane, which)
        requested = next_second(datetime.now(UTC))
        await backup.annotate(BACKUP_ANNOTATION, requested.isoformat())

        def progress(found: CapelinControlPlane) -> str | Failure | None:
            status = found.status or Status()
            if status.backup is not None and status.backup.time >= requested:
                return None
            condition = condition_of(found, BACKUP_HEALTHY)
            if condition is not None and condition.status == "False":
                return Failure(f"{condition.reason}: {condition.message}")
            return "the provider takes the backup"

        async def fail(_: CapelinControlPlane, failure: str) -> None:
            raise NotReadyError(
                f"Cluster {which.name} cannot be backed up.",
                reason=f"{failure}.",
                hint="Fix that. The provider tries again by itself.",
            )

        title = f"cluster {which.name} backed up"
        hint = "The provider continues: see capelin backups."
        of = f"the backup of cluster {which.name}"
        await backup.follow(title, progress, of=of, on_failure=fail, hint=hint, done=_taken)


def _taken(control_plane: CapelinControlPlane) -> str:
    backup = (control_plane.status or Status()).backup
    return f"{backup.name}, revision {backup.revision}" if backup else ""


def next_second(now: datetime) -> datetime:
    """The next whole second. Statuses have whole seconds, and a backup follows its request."""
    return now.replace(microsecond=0) + timedelta(seconds=1)


def show_backups(name: str, namespace: str | None, cluster: str | None, output: Format) -> None:
    """Print the backups in the folder of an environment."""
    root = backup_folder(find_environment(name))
    found = stored_backups(root, namespace or "*", cluster or "*")
    now = datetime.now(UTC)

    def of(backup: StoredBackup, text: Callable[[Manifest], str]) -> str:
        return "" if backup.manifest is None else text(backup.manifest)

    def age(backup: StoredBackup) -> str:
        return of(backup, lambda manifest: age_text(now - manifest.taken_at))

    columns = (
        Column[StoredBackup]("NAMESPACE", lambda backup: backup.namespace),
        Column[StoredBackup]("CLUSTER", lambda backup: backup.cluster),
        Column[StoredBackup]("BACKUP", lambda backup: backup.name),
        Column[StoredBackup]("AGE", age, right=True),
        Column[StoredBackup]("REVISION", lambda it: of(it, lambda m: str(m.revision)), right=True),
        Column[StoredBackup](
            "SIZE",
            lambda it: of(it, lambda m: f"{m.snapshot_bytes / 2**20:.1f} MiB"),
            right=True,
        ),
        Column[StoredBackup]("KUBERNETES", lambda it: of(it, lambda m: m.kubernetes_version)),
        Column[StoredBackup]("STATE", lambda it: "complete" if it.manifest else "damaged"),
        Column[StoredBackup]("FOLDER", lambda it: str(it.folder), wide=True),
    )
    print_list(found, columns, _data, output)


def _data(backup: StoredBackup) -> object:
    data: dict[str, object] = {
        "namespace": backup.namespace,
        "cluster": backup.cluster,
        "name": backup.name,
        "folder": str(backup.folder),
        "damaged": backup.manifest is None,
    }
    if backup.manifest is not None:
        data |= {
            "takenAt": backup.manifest.taken_at.isoformat(),
            "revision": backup.manifest.revision,
            "bytes": backup.manifest.snapshot_bytes,
            "kubernetesVersion": backup.manifest.kubernetes_version,
        }
    return data


def age_text(age: timedelta) -> str:
    """An age in its largest unit: `3 h`."""
    seconds = max(0, int(age.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
