"""Backups of control planes: taken on request, listed, verified, pruned."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from capelin.client import Client
from capelin.contract import find_condition, named_by
from capelin.embedded.binaries import Binaries
from capelin.embedded.management import Environment
from capelin.errors import InvalidInputError, MissingError, NotReadyError, UserError
from capelin.provider import Blocked
from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, Status
from capelin_control_plane.backup_encryption import BackupError
from capelin_control_plane.backup_files import delete_backup
from capelin_control_plane.backup_readers import StoredBackup, stored_backups, verify_backup
from capelin_control_plane.backup_tasks import BACKUP_HEALTHY, encryption_key
from capelin_control_plane.backups import BACKUP_ANNOTATION, Manifest, expired
from capelin_control_plane.etcd_snapshots import PROGRAMS
from capelin_control_plane.stores import FolderStore, StoreError, Workers
from rich.console import Console

from capelin_infra.clusters.cluster_verbs import ClusterName
from capelin_infra.environments.connection import client_of, find_environment
from capelin_infra.environments.kubeconfigs import find_cluster
from capelin_infra.terminal.checklist import Checklist
from capelin_infra.terminal.tables import Column, Format, print_list
from capelin_infra.terminal.waiting import wait_for

FAILURE_SECONDS: Final = 5.0
"""A condition that shows a failure for this long is not the one of an earlier request."""


class Persistent:
    """Notices a failure that stays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._failure: str | None = None

    def stays(self, failure: str | None) -> bool:
        """Whether the same failure has been shown for a while."""
        if failure != self._failure:
            self._failure, self._since = failure, self._clock()
        return failure is not None and self._clock() - self._since >= FAILURE_SECONDS


async def find_control_plane(client: Client, which: ClusterName) -> CapelinControlPlane:
    """The control plane of a Cluster."""
    cluster = await find_cluster(client, which.name, which.namespace)
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    if name is None:
        raise InvalidInputError(
            f"Cluster {which.name} has no {CapelinControlPlane.resource.kind}.",
            hint="Use the tools of its control plane's provider.",
        )
    return await client.get(CapelinControlPlane, name, which.namespace)


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
    environment = find_environment(which.environment)
    async with client_of(environment) as client:
        control_plane = await find_control_plane(client, which)
        backup_settings(control_plane)
        requested, failing = next_second(datetime.now(UTC)), Persistent()
        annotations = {BACKUP_ANNOTATION: requested.isoformat()}
        patch = {"metadata": {"annotations": annotations}}
        await client.patch(CapelinControlPlane, control_plane.name, which.namespace, patch)

        async def reason() -> str | None:
            found = await client.get(CapelinControlPlane, control_plane.name, which.namespace)
            status = found.status or Status()
            if status.backup is not None and status.backup.time >= requested:
                line.detail = f"{status.backup.name}, revision {status.backup.revision}"
                return None
            condition = find_condition(status.conditions, BACKUP_HEALTHY)
            failure = None
            if condition is not None and condition.status == "False":
                failure = f"{condition.reason}: {condition.message}"
            if failing.stays(failure):
                raise NotReadyError(
                    f"Cluster {which.name} cannot be backed up.",
                    reason=f"{failure}.",
                    hint="Fix that. The provider tries again by itself.",
                )
            return failure or "the provider takes the backup"

        checklist = Checklist(Console())
        with checklist.shown(), checklist.step(f"cluster {which.name} backed up") as line:
            hint = "The provider continues: see capelin backups."
            title = f"the backup of cluster {which.name}"
            await wait_for(title, reason, within, checklist.showing(line), hint)


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


async def verify_stored(which: ClusterName, name: str | None, key_file: Path | None) -> None:
    """Decrypt a backup, restore it into a throw-away etcd, and print the result."""
    environment = find_environment(which.environment)
    root = backup_folder(environment)
    backup = choose_backup(stored_backups(root, which.namespace, which.name), which, name)
    key = await _key(environment, which, key_file)
    with Checklist(Console()).shown() as checklist:
        with checklist.step("programs of etcd"):
            binaries = await Binaries().fetch(PROGRAMS)
        etcd, etcdutl = (binaries[program].path for program in PROGRAMS)
        with checklist.step(f"backup {backup.name} restored into a throw-away etcd") as line:
            try:
                trial = await verify_backup(backup, key, (etcd, etcdutl), environment.folder)
            except BackupError as error:
                raise UserError(
                    f"Backup {backup.name} of cluster {which.name} cannot be restored.",
                    reason=f"{error}.",
                    hint="Take another one: " + which.command("backup") + ".",
                ) from error
            line.detail = f"revision {trial.revision}, {trial.keys} keys"


def choose_backup(
    found: Sequence[StoredBackup], which: ClusterName, name: str | None
) -> StoredBackup:
    """The backup of a name, or the newest complete one."""
    complete = [backup for backup in found if backup.manifest is not None]
    for backup in complete:
        if name in {None, backup.name}:
            return backup
    what = "no complete backup" if name is None else f"no complete backup {name}"
    known = ", ".join(backup.name for backup in complete) or "none"
    raise MissingError(
        f"Cluster {which.name} in namespace {which.namespace} has {what}.",
        reason=f"Complete backups: {known}.",
        hint="See capelin backups.",
    )


async def _key(environment: Environment, which: ClusterName, key_file: Path | None) -> bytes:
    if key_file is not None:
        return await asyncio.to_thread(key_file.read_bytes)
    async with client_of(environment) as client:
        control_plane = await find_control_plane(client, which)
        backup = backup_settings(control_plane)
        try:
            return await encryption_key(client, backup, which.namespace)
        except Blocked as error:
            raise MissingError(
                f"The key of the backups of cluster {which.name} cannot be used.",
                reason=f"{error}.",
                hint="Name a copy of it with --key-file.",
            ) from error


async def expired_backups(which: ClusterName) -> list[StoredBackup]:
    """The backups that the retention of a cluster does not keep."""
    environment = find_environment(which.environment)
    root = backup_folder(environment)
    async with client_of(environment) as client:
        backup = backup_settings(await find_control_plane(client, which))
    found = stored_backups(root, which.namespace, which.name)
    return expired_of(found, backup, datetime.now(UTC))


def expired_of(
    found: Sequence[StoredBackup], settings: EtcdBackup, now: datetime
) -> list[StoredBackup]:
    """The backups of one cluster that its retention does not keep.

    Earlier clusters of its name are separate, and so are other folders of the same namespace.
    """
    old: set[tuple[Path, str]] = set()
    groups: dict[tuple[Path, str], list[Manifest]] = {}
    for backup in found:
        if backup.manifest is not None:
            group = (backup.folder, backup.manifest.authority)
            groups.setdefault(group, []).append(backup.manifest)
    for (folder, _), manifests in groups.items():
        old |= {(folder, manifest.name) for manifest in expired(manifests, settings.retention, now)}
    return [backup for backup in found if (backup.folder, backup.name) in old]


async def delete_backups(backups: Sequence[StoredBackup]) -> None:
    """Delete backups, the manifest of each first."""
    workers = Workers(1)
    try:
        for backup in backups:
            store = FolderStore(backup.folder, Path(), workers)
            await delete_backup(store, backup.name)
    except StoreError as error:
        raise UserError("A backup cannot be deleted.", reason=f"{error}.") from error
    finally:
        workers.close()
