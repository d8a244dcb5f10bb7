"""Creates a lost cluster again from a backup: its CAs, its objects and its data."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Secret
from capelin.client import AlreadyExists, Client, ClientError
from capelin.errors import InvalidInputError, UserError
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backup_files import read_authorities, read_objects
from capelin_control_plane.backup_objects import (
    ClusterObjects,
    owners_first,
    with_owners,
    without_endpoint,
)
from capelin_control_plane.backups import Manifest
from capelin_control_plane.desired import RESTORE_ANNOTATION

from capelin_infra.clusters.backup_places import (
    KEY_ID,
    SECRET,
    TOKEN,
    BackupPlace,
    choose_backup,
    credentials_of,
    key_of,
    open_backups,
)
from capelin_infra.clusters.cluster_verbs import ClusterName
from capelin_infra.environments.connection import client_of, find_environment

IN_PROGRESS: Final = "controlplane.cluster.x-k8s.io/capelin-restored-from"
"""On a Cluster that is being created again, the name of the backup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCluster:
    """A cluster as in its backup."""

    manifest: Manifest
    key: bytes
    secrets: tuple[Secret, ...]
    """The CAs and keys."""
    objects: ClusterObjects


async def read_lost_cluster(
    which: ClusterName, place: BackupPlace, name: str | None
) -> LostCluster:
    """Read the CAs and objects of a backup, the newest one if none is named."""
    key = await key_of(which, place)
    async with open_backups(which, place) as found:
        backup = choose_backup(found, which, name)
        manifest = backup.manifest
        authorities = await read_authorities(backup.store, manifest, key)
        objects = await read_objects(backup.store, manifest, key)
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


async def create_secrets(client: Client, which: ClusterName, secrets: Sequence[Secret]) -> None:
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
    source = None if lost.manifest.cluster == which.name else lost.manifest.cluster
    if await client.find(Namespace, which.namespace) is None:
        await client.create(Namespace.of(which.namespace))
    secrets = [*lost.secrets]
    secrets += [
        secret
        for secret in _destination_secrets(control_plane, lost.key, which.namespace)
        # A copy uses those of its source.
        if source is None or await client.find(Secret, secret.name, which.namespace) is None
    ]
    await create_secrets(client, which, secrets)
    uids: dict[tuple[str, str], str] = {}
    for item in owners_first(lost.objects.items):
        manifest = with_owners(without_endpoint(item) if new_endpoint else item, uids)
        created = await _create(client, _held(manifest, lost.manifest.name, source))
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
    if backup.destination.s3 is not None and os.environ.get(KEY_ID):
        found = credentials_of(os.environ)
        data = {KEY_ID: found.key_id.encode(), SECRET: found.secret.encode()}
        if found.token:
            data[TOKEN] = found.token.encode()
        secrets.append(Secret.of(backup.destination.s3.credentials.name, namespace, data=data))
    return secrets


def _held(manifest: Unstructured, backup: str, source: str | None) -> Unstructured:
    """An object that no controller acts on yet, and a control plane with its restore."""
    prefix = "" if source is None else f"{source}/"
    metadata: dict[str, Any] = manifest["metadata"]
    annotations = dict(metadata.get("annotations", {}))
    spec = manifest["spec"]
    if manifest["kind"] == Cluster.resource.kind:
        annotations[IN_PROGRESS], spec = backup, {**spec, "paused": True}
    elif manifest["kind"] == CapelinControlPlane.resource.kind:
        annotations[RESTORE_ANNOTATION] = f"{prefix}{backup}@{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
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
