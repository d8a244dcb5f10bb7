"""Creates a lost cluster again from a backup: its CAs, its objects and its data."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Secret
from capelin.client import AlreadyExists, Client, ClientError
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, S3Destination, SecretName
from capelin_control_plane.backup_encryption import BackupError
from capelin_control_plane.backup_files import read_authorities, read_backups, read_objects
from capelin_control_plane.backup_objects import (
    ClusterObjects,
    owners_first,
    with_owners,
    without_endpoint,
)
from capelin_control_plane.backup_readers import stored_backups
from capelin_control_plane.backup_stores import s3_store
from capelin_control_plane.backups import Manifest
from capelin_control_plane.desired import RESTORE_ANNOTATION
from capelin_control_plane.s3_signature import S3Credentials
from capelin_control_plane.stores import FolderStore, Store, StoreError, Workers
from pydantic import ValidationError

from capelin_infra.clusters.backups import backup_folder, choose_backup
from capelin_infra.clusters.cluster_verbs import ClusterName
from capelin_infra.environments.connection import client_of, find_environment

IN_PROGRESS: Final = "controlplane.cluster.x-k8s.io/capelin-restored-from"
"""On a Cluster that is being created again, the name of the backup."""
_KEY_ID, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_TOKEN: Final = "AWS_SESSION_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """Where the backups of a lost cluster are, and how to read them."""

    key_file: Path
    bucket: str | None = None
    """A URL such as `https://s3.example.com/my-backups/capelin`. None: the environment's folder."""
    region: str = "us-east-1"
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCluster:
    """A cluster as in its backup."""

    manifest: Manifest
    key: bytes
    secrets: tuple[Secret, ...]
    """The CAs and keys."""
    objects: ClusterObjects


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
    if not environ.get(_KEY_ID) or not environ.get(_SECRET):
        raise MissingError(
            f"{_KEY_ID} or {_SECRET} is not set.",
            hint="Export the access key of the bucket in both variables.",
        )
    return S3Credentials(environ[_KEY_ID], environ[_SECRET], environ.get(_TOKEN) or None)


@asynccontextmanager
async def _store_of(which: ClusterName, place: BackupPlace) -> AsyncGenerator[Store]:
    if place.bucket is not None:
        ca = None if place.ca_file is None else await asyncio.to_thread(place.ca_file.read_text)
        bucket = bucket_of(place, ca)
        async with s3_store(
            bucket, which.namespace, which.name, credentials_of(os.environ)
        ) as store:
            yield store
        return
    root = backup_folder(find_environment(which.environment))
    newest = choose_backup(stored_backups(root, which.namespace, which.name), which, None)
    workers = Workers(1)
    try:
        yield FolderStore(newest.folder, Path(), workers)
    finally:
        workers.close()


async def read_lost_cluster(
    which: ClusterName, place: BackupPlace, name: str | None
) -> LostCluster:
    """Read the CAs and objects of a backup, the newest one if none is named."""
    key = await asyncio.to_thread(place.key_file.read_bytes)
    try:
        async with _store_of(which, place) as store:
            manifests = (await read_backups(store)).manifests
            manifest = next((it for it in manifests if name in {None, it.name}), None)
            if manifest is None:
                known = ", ".join(it.name for it in manifests[:5]) or "none"
                raise MissingError(
                    f"Cluster {which.name} in namespace {which.namespace} has no such backup.",
                    reason=f"Complete backups: {known}.",
                    hint="Name one of them with --backup.",
                )
            authorities = await read_authorities(store, manifest, key)
            objects = await read_objects(store, manifest, key)
    except (BackupError, StoreError) as error:
        raise UserError(
            f"The backups of cluster {which.name} cannot be read.",
            reason=f"{error}.",
            hint="Check the key, the bucket and its access key.",
        ) from error
    if objects is None:
        raise InvalidInputError(
            f"Backup {manifest.name} has no objects of Cluster API.",
            reason="An earlier release of the provider took it.",
            hint="Create the CAs with capelin restore authorities, and then the cluster.",
        )
    secrets = tuple(Secret.read(item) for item in json.loads(authorities)["items"])
    return LostCluster(
        manifest=manifest, key=key, secrets=secrets, objects=ClusterObjects.load(objects)
    )


async def is_lost(which: ClusterName) -> bool:
    """Whether a Cluster does not exist, or an earlier command did not complete it."""
    async with client_of(find_environment(which.environment)) as client:
        cluster = await client.find(Cluster, which.name, which.namespace)
    return cluster is None or IN_PROGRESS in cluster.metadata.annotations


async def create_secrets(client: Client, which: ClusterName, secrets: tuple[Secret, ...]) -> None:
    """Create Secrets, unless the same ones exist.

    Raises:
        InvalidInputError: others exist. Then none is created.
    """
    present = [await client.find(Secret, it.name, which.namespace) for it in secrets]
    for secret, other in zip(secrets, present, strict=True):
        if other is not None and other.data != secret.data:
            raise InvalidInputError(
                f"Secret {secret.name} exists in namespace {which.namespace}, with other content.",
                reason="A control plane may use it.",
                hint=f"Delete that cluster first: {which.command('delete')}.",
            )
    for secret, other in zip(secrets, present, strict=True):
        if other is None:
            await client.create(secret)


async def create_again(
    client: Client, which: ClusterName, lost: LostCluster, *, new_endpoint: bool = False
) -> str:
    """Create the Secrets and objects of a lost cluster. The provider then restores its data.

    Another call continues after an interruption. Returns the name of the control plane.
    """
    control_plane = control_plane_of(lost)
    if await client.find(Namespace, which.namespace) is None:
        await client.create(Namespace.of(which.namespace))
    secrets = (*lost.secrets, *_destination_secrets(control_plane, lost.key, which.namespace))
    await create_secrets(client, which, secrets)
    uids: dict[tuple[str, str], str] = {}
    for item in owners_first(lost.objects.items):
        manifest = with_owners(without_endpoint(item) if new_endpoint else item, uids)
        created = await _create(client, _held(manifest, lost.manifest.name))
        uids[item["kind"], item["metadata"]["name"]] = created["metadata"]["uid"]
    # Now that all objects exist, controllers may begin.
    patch = {"metadata": {"annotations": {IN_PROGRESS: None}}, "spec": {"paused": None}}
    await client.patch(Cluster, which.name, which.namespace, patch)
    return control_plane.name


def control_plane_of(lost: LostCluster) -> CapelinControlPlane:
    """The control plane in a backup.

    Raises:
        InvalidInputError: it has none.
    """
    for item in lost.objects.items:
        if item["kind"] == CapelinControlPlane.resource.kind:
            return CapelinControlPlane.read(with_owners(item, {}))
    raise InvalidInputError(
        f"Backup {lost.manifest.name} has no control plane.", hint="Name another one with --backup."
    )


def _destination_secrets(
    control_plane: CapelinControlPlane, key: bytes, namespace: str
) -> list[Secret]:
    """The Secrets with which the provider reads the backups."""
    backup = control_plane.spec.etcd.backup
    if backup is None:
        return []
    entry = backup.encryption_key
    secrets = [Secret.of(entry.name, namespace, data={entry.key: key})]
    if backup.destination.s3 is not None and os.environ.get(_KEY_ID):
        found = credentials_of(os.environ)
        data = {_KEY_ID: found.key_id.encode(), _SECRET: found.secret.encode()}
        if found.token:
            data[_TOKEN] = found.token.encode()
        secrets.append(Secret.of(backup.destination.s3.credentials.name, namespace, data=data))
    return secrets


def _held(manifest: Unstructured, backup: str) -> Unstructured:
    """An object that no controller acts on yet, and a control plane with its restore."""
    metadata: dict[str, Any] = manifest["metadata"]
    annotations = dict(metadata.get("annotations", {}))
    spec = manifest["spec"]
    if manifest["kind"] == Cluster.resource.kind:
        annotations[IN_PROGRESS], spec = backup, {**spec, "paused": True}
    elif manifest["kind"] == CapelinControlPlane.resource.kind:
        annotations[RESTORE_ANNOTATION] = f"{backup}@{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {**manifest, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


async def _create(client: Client, manifest: Unstructured) -> Unstructured:
    metadata = manifest["metadata"]
    try:
        return await client.create(manifest)
    except AlreadyExists:
        resource = await client.resource_of(manifest)
        return await client.get(resource, metadata["name"], metadata["namespace"])
    except ClientError as error:
        raise UserError(
            f"{manifest['kind']} {metadata['name']} cannot be created.",
            reason=f"{error}.",
            hint="Fix that, and run the same command again: it continues.",
        ) from error
