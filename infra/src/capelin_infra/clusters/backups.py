"""Backups of control planes: taken on request, and listed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from capelin.client import Client
from capelin.contract import ASLEEP, find_condition, is_condition_true, named_by
from capelin.embedded.management import Environment
from capelin.errors import InvalidInputError, MissingError, NotReadyError
from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, Status
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION, Manifest
from capelin_control_plane.backup.snapshots import StoredBackup, stored_backups
from capelin_control_plane.operations.backup import BACKUP_HEALTHY
from rich.console import Console

from capelin_infra.clusters.cluster_verbs import ClusterName
from capelin_infra.environments.connection import find_environment
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


def check_awake(control_plane: CapelinControlPlane, which: ClusterName) -> None:
    """Check that the provider can begin the work on a control plane.

    Raises:
        NotReadyError: it sleeps.
    """
    if is_condition_true((control_plane.status or Status()).conditions, ASLEEP):
        raise NotReadyError(
            f"Cluster {which.name} sleeps.",
            reason="None of its components runs.",
            hint=f"Wake it first: {which.command('wake')}.",
        )


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
    async with which.client() as client:
        control_plane = await find_control_plane(client, which)
        backup_settings(control_plane)
        check_awake(control_plane, which)
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
