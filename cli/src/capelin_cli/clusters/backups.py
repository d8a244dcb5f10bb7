"""Where backups of control planes are. The command takes, lists, verifies and prunes them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from capelin.client import NotFound, read_endpoints
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin.provider import Blocked
from capelin_control_plane.api import (
    CapelinControlPlane,
    EtcdBackup,
    S3Destination,
    SecretName,
    Status,
)
from capelin_control_plane.backup.destinations import Stores, s3_store
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import delete_backup, read_backups
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION, Manifest, expired
from capelin_control_plane.backup.point_in_time import backup_as_of
from capelin_control_plane.backup.s3 import S3Credentials
from capelin_control_plane.backup.snapshots import (
    PROGRAMS,
    StoredBackup,
    stored_backups,
    verify_backup,
)
from capelin_control_plane.backup.stores import FolderStore, Store, StoreError, Workers
from capelin_control_plane.operations.backup import BACKUP_HEALTHY, encryption_key, named_backups
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import Environment
from pydantic import ValidationError
from rich.console import Console

from capelin_cli.clusters.operations import (
    Failure,
    check_awake,
    condition_of,
    find_control_plane,
    operation,
)
from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.tables import Column, Format, print_list

LATEST: Final = "latest"
"""In place of a moment: with all archived changes."""
KEY_ID: Final = "AWS_ACCESS_KEY_ID"
SECRET: Final = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
TOKEN: Final = "AWS_SESSION_TOKEN"  # noqa: S105 - the name of a variable


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

        def taken(found: CapelinControlPlane) -> str:
            last = (found.status or Status()).backup
            return f"{last.name}, revision {last.revision}" if last else ""

        await backup.follow(
            f"cluster {which.name} backed up",
            progress,
            of=f"the backup of cluster {which.name}",
            failure=f"Cluster {which.name} cannot be backed up.",
            advice="Fix that. The provider tries again by itself.",
            hint="The provider continues: see capelin backups.",
            done=taken,
        )


def next_second(now: datetime) -> datetime:
    """The next whole second. Statuses have whole seconds, and a backup follows its request."""
    return now.replace(microsecond=0) + timedelta(seconds=1)


def show_backups(name: str, namespace: str | None, cluster: str | None, output: Format) -> None:
    """Print the backups in the folder of an environment."""
    root = backup_folder(find_environment(name))
    found = stored_backups(root, namespace or "*", cluster or "*")
    now = datetime.now(UTC)

    def of(text: Callable[[Manifest], str]) -> Callable[[StoredBackup], str]:
        return lambda backup: "" if backup.manifest is None else text(backup.manifest)

    columns = (
        Column[StoredBackup]("NAMESPACE", lambda backup: backup.namespace),
        Column[StoredBackup]("CLUSTER", lambda backup: backup.cluster),
        Column[StoredBackup]("BACKUP", lambda backup: backup.name),
        Column[StoredBackup]("AGE", of(lambda it: age_text(now - it.taken_at)), right=True),
        Column[StoredBackup]("REVISION", of(lambda it: str(it.revision)), right=True),
        Column[StoredBackup](
            "SIZE", of(lambda it: f"{it.snapshot_bytes / 2**20:.1f} MiB"), right=True
        ),
        Column[StoredBackup]("KUBERNETES", of(lambda it: it.kubernetes_version)),
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


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """Where the backups of a cluster are, and the key to read them."""

    key_file: Path | None = None
    """A copy of the key. None: the Secret that the control plane names."""
    bucket: str | None = None
    """A URL such as `https://s3.example.com/my-backups/capelin`. None: the destination of the
    control plane, or the environment's folder."""
    region: str = "us-east-1"
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """A complete backup, and the store that has it."""

    store: Store
    manifest: Manifest


def bucket_of(place: BackupPlace, ca: str | None) -> S3Destination:
    """The bucket in a URL.

    Raises:
        InvalidInputError: it is not the URL of a bucket.
    """
    url = place.bucket or ""
    parts = urlsplit(url)
    bucket, _, prefix = parts.path.strip("/").partition("/")
    try:
        return S3Destination(
            endpoint=f"{parts.scheme}://{parts.netloc}",
            region=place.region,
            bucket=bucket,
            prefix=prefix or None,
            credentials=SecretName(name="unused"),
            ca_bundle=ca,
        )
    except ValidationError as error:
        raise InvalidInputError(
            f"{url} is not the URL of a bucket.",
            hint="Write one such as https://s3.eu-central-1.amazonaws.com/my-backups/capelin.",
        ) from error


def credentials_of(environ: Mapping[str, str]) -> S3Credentials:
    """The key of a bucket, from the variables of other tools for S3.

    Raises:
        MissingError: they are not set.
    """
    if not environ.get(KEY_ID) or not environ.get(SECRET):
        raise MissingError(
            f"{KEY_ID} or {SECRET} is not set.",
            hint="Export the access key of the bucket in both variables.",
        )
    return S3Credentials(environ[KEY_ID], environ[SECRET], environ.get(TOKEN) or None)


async def required_settings(which: ClusterName) -> EtcdBackup:
    """The settings of the backups of a cluster that exists."""
    async with which.client() as client:
        return backup_settings(await find_control_plane(client, which))


async def key_of(which: ClusterName, place: BackupPlace) -> bytes:
    """The key of a cluster's backups: the one in the file, or that of the cluster.

    Raises:
        MissingError: no key exists there.
    """
    if place.key_file is not None:
        return await asyncio.to_thread(place.key_file.read_bytes)
    hint = "Name a copy of the key with --key-file."
    try:
        settings = await required_settings(which)
        async with which.client() as client:
            return await encryption_key(client, settings, which.namespace)
    except MissingError as error:
        raise MissingError(error.message, reason=error.reason, hint=hint) from error
    except Blocked as error:
        raise MissingError(
            f"The key of the backups of cluster {which.name} cannot be used.",
            reason=f"{error}.",
            hint=hint,
        ) from error


@asynccontextmanager
async def open_backups(which: ClusterName, place: BackupPlace) -> AsyncGenerator[list[FoundBackup]]:
    """The complete backups of a cluster, the newest first.

    Raises:
        UserError: they cannot be read.
    """
    try:
        async with _stores(which, place) as stores:
            found = [
                FoundBackup(store, manifest)
                for store in stores
                for manifest in (await read_backups(store)).manifests
            ]
            yield sorted(found, key=lambda it: it.manifest.taken_at, reverse=True)
    except (BackupError, Blocked, StoreError) as error:
        raise UserError(
            f"The backups of cluster {which.name} cannot be read.",
            reason=f"{error}.",
            hint="Check the key, the bucket and its access key.",
        ) from error


@asynccontextmanager
async def open_backup(
    which: ClusterName, place: BackupPlace, name: str | None
) -> AsyncGenerator[tuple[FoundBackup, bytes]]:
    """A complete backup, the newest one if none is named, and its key."""
    key = await key_of(which, place)
    async with open_backups(which, place) as found:
        yield choose_backup(found, which, name), key


def choose_backup(
    found: Sequence[FoundBackup], which: ClusterName, name: str | None
) -> FoundBackup:
    """The backup of a name, or the newest one."""
    for backup in found:
        if name in {None, backup.manifest.name}:
            return backup
    which_one = "no complete backup" if name is None else f"no complete backup {name}"
    known = ", ".join(backup.manifest.name for backup in found[:5]) or "none"
    raise MissingError(
        f"Cluster {which.name} in namespace {which.namespace} has {which_one}.",
        reason=f"Complete backups: {known}.",
        hint="See capelin backups.",
    )


@asynccontextmanager
async def _stores(which: ClusterName, place: BackupPlace) -> AsyncGenerator[list[Store]]:
    """The stores of a cluster's backups. In a folder, there is one for each destination."""
    names = which.namespace, which.name
    if place.bucket is not None:
        ca = None if place.ca_file is None else await asyncio.to_thread(place.ca_file.read_text)
        bucket = bucket_of(place, ca)
        async with s3_store(bucket, *names, credentials_of(os.environ)) as store:
            yield [store]
        return
    async with which.client() as client:
        try:
            backup = (await find_control_plane(client, which)).spec.etcd.backup
        except (MissingError, NotFound):
            # The cluster is lost.
            backup = None
        if backup is not None and backup.destination.s3 is not None:
            stores = Stores(endpoints=read_endpoints(backup.destination.s3.endpoint))
            async with stores.open(client, backup.destination, *names) as store:
                yield [store]
            return
    if which.kubeconfig is not None:
        raise InvalidInputError(
            f"The place of the backups of cluster {which.name} is not known.",
            reason="Without an environment, backups in folders cannot be read.",
            hint="Name their bucket with --bucket.",
        )
    root = backup_folder(find_environment(which.environment))
    # Also earlier folders of the control plane.
    folders = {stored.folder for stored in stored_backups(root, *names)}
    workers = Workers(1)
    try:
        yield [FolderStore(folder, Path(), workers) for folder in sorted(folders)]
    finally:
        workers.close()


async def verify_stored(which: ClusterName, place: BackupPlace, name: str | None) -> None:
    """Decrypt a backup, restore it into a throw-away etcd, and print the result."""
    folder = which.folder()
    async with open_backup(which, place, name) as (backup, key):
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
    async with open_backup(which, place, None) as (newest, key):
        with Checklist(Console()).shown() as checklist:
            programs = await etcd_programs(checklist)
            with (
                checklist.step(f"backup as of {text}") as line,
                TemporaryDirectory(prefix="rewind-", dir=folder) as work,
            ):
                try:
                    manifest = await backup_as_of(newest.store, key, moment, programs, Path(work))
                except BackupError as error:
                    raise UserError(
                        f"Cluster {which.name} cannot be restored as of this moment.",
                        reason=f"{error}.",
                        hint="Name another moment, or a backup of capelin backups with --backup.",
                    ) from error
                line.detail = f"{manifest.name}, revision {manifest.revision}"
    return manifest.name
