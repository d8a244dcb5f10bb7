"""Where the backups of one cluster are, and how a command reads them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from capelin.client import NotFound, read_endpoints
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin.provider import Blocked
from capelin_control_plane.api import BackupDestination, EtcdBackup, S3Destination, SecretName
from capelin_control_plane.backup.destinations import Stores, s3_store
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import read_backups
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.s3 import S3Credentials
from capelin_control_plane.backup.snapshots import stored_backups
from capelin_control_plane.backup.stores import FolderStore, Store, StoreError, Workers
from capelin_control_plane.operations.backup import encryption_key
from pydantic import ValidationError

from capelin_cli.clusters.backups import backup_folder, backup_settings
from capelin_cli.clusters.operations import find_control_plane
from capelin_cli.environments.connection import ClusterName, find_environment

KEY_ID: Final = "AWS_ACCESS_KEY_ID"
SECRET: Final = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
TOKEN: Final = "AWS_SESSION_TOKEN"  # noqa: S105 - the name of a variable


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
    destination = await _destination(which)
    if destination is not None and destination.s3 is not None:
        stores = Stores(endpoints=read_endpoints(destination.s3.endpoint))
        async with (
            which.client() as client,
            stores.open(client, destination, *names) as store,
        ):
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
    folders = {backup.folder for backup in stored_backups(root, *names)}
    workers = Workers(1)
    try:
        yield [FolderStore(folder, Path(), workers) for folder in sorted(folders)]
    finally:
        workers.close()


async def _destination(which: ClusterName) -> BackupDestination | None:
    """Where a cluster's backups are stored. None if the cluster is lost, or has none."""
    async with which.client() as client:
        try:
            backup = (await find_control_plane(client, which)).spec.etcd.backup
        except (MissingError, NotFound):
            return None
        return backup and backup.destination
