"""Restores a cluster from a backup: in place, or its CAs, objects and data after its loss."""

import json
import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Secret
from capelin.client import Client, ClientError, NotServed
from capelin.contract import CLUSTER_NAME_LABEL
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backup.files import read_authorities, read_objects
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.objects import (
    ClusterObjects,
    owners_first,
    with_owners,
    without_endpoint,
)
from capelin_control_plane.backup.restores import backup_of, restore_request
from capelin_control_plane.desired.control_plane import (
    RESTORE_ANNOTATION,
    InvalidSpecError,
    requested_restore,
)
from capelin_control_plane.operations.restore import RESTORING, withdraw_restore
from rich.console import Console

from capelin_cli.clusters.backups import (
    KEY_ID,
    SECRET,
    TOKEN,
    BackupPlace,
    age_text,
    backup_settings,
    credentials_of,
    open_backup,
)
from capelin_cli.clusters.cluster_verbs import start_bootstrap_provider
from capelin_cli.clusters.operations import (
    BEGINS,
    ControlPlaneOperation,
    Failure,
    OperationFailedError,
    condition_of,
    find_control_plane,
    operation,
)
from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.terminal.checklist import Checklist

IN_PROGRESS: Final = "controlplane.cluster.x-k8s.io/capelin-restored-from"
"""On a Cluster that is being created again, `SOURCE/BACKUP`: the backup and its cluster."""

Identity = tuple[str, str]
"""Kind and name of an object."""


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
    async with open_backup(which, place, name) as (backup, key):
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
    async with which.client() as client:
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
                hint=f"Delete that cluster first: {which.delete_command()}.",
            )
    for secret, other in zip(secrets, present, strict=True):
        if other is None:
            await client.create(secret)


async def create_again(
    client: Client, which: ClusterName, lost: LostCluster, *, new_endpoint: bool = False
) -> str:
    """Create the Secrets and objects of a lost cluster. The provider then restores its data.

    Another call continues after an interruption. Returns the name of the control plane.

    Raises:
        InvalidInputError: an object of another cluster has one of the names. Then none is created.
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
    items = owners_first(lost.objects.items)
    uids = await _present(client, items, _begun_by(lost))
    await create_secrets(client, which, secrets)
    for item in items:
        identity = item["kind"], item["metadata"]["name"]
        if identity not in uids:
            manifest = with_owners(without_endpoint(item) if new_endpoint else item, uids)
            created = await _create(client, _held(manifest, lost, source))
            uids[identity] = created["metadata"]["uid"]
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


async def _present(
    client: Client, items: Sequence[Unstructured], begun_by: str
) -> dict[Identity, str]:
    """The UIDs of the objects that exist already.

    Raises:
        InvalidInputError: one of them belongs to another cluster, and a deletion of this one would
            delete it.
    """
    names = {(item["kind"], item["metadata"]["name"]) for item in items}
    uids: dict[Identity, str] = {}
    for item in items:
        kind, metadata = item["kind"], item["metadata"]
        try:
            resource = await client.resource_of(item)
        except NotServed:
            continue
        present = await client.find(resource, metadata["name"], metadata["namespace"])
        if present is None:
            continue
        owners = {(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())}
        if not is_reusable(item, present, {uids.get(it) for it in owners & names}, begun_by):
            begun = present["metadata"].get("annotations", {}).get(IN_PROGRESS)
            raise InvalidInputError(
                f"{kind} {metadata['name']} exists in namespace {metadata['namespace']}.",
                reason=f"It is being created from backup {begun}."
                if begun
                else "It belongs to another cluster, or has other content.",
                hint="Complete that first, with the same source and backup."
                if begun
                else "Choose another name for a copy. For a lost cluster, delete the object first.",
            )
        uids[kind, metadata["name"]] = present["metadata"]["uid"]
    return uids


def is_reusable(
    item: Unstructured, present: Unstructured, owners: AbstractSet[str | None], begun_by: str
) -> bool:
    """Whether an existing object is from an interrupted command, or clusters share it.

    Args:
        item: The object in the backup.
        present: The existing object of this name.
        owners: The UIDs of its owners in the backup, None for an owner that does not exist.
        begun_by: The value of `IN_PROGRESS`.
    """
    metadata = present["metadata"]
    if item["kind"] == Cluster.resource.kind:
        return metadata.get("annotations", {}).get(IN_PROGRESS) == begun_by
    if owners:
        return owners <= {owner["uid"] for owner in metadata.get("ownerReferences", ())}
    if item["kind"] == "ClusterClass":
        return True
    labels = [it["metadata"].get("labels", {}).get(CLUSTER_NAME_LABEL) for it in (item, present)]
    return labels[0] == labels[1] and present.get("spec", {}) == item["spec"]


def _begun_by(lost: LostCluster) -> str:
    return f"{lost.manifest.cluster}/{lost.manifest.name}"


def _held(manifest: Unstructured, lost: LostCluster, source: str | None) -> Unstructured:
    """An object that no controller acts on yet, and a control plane with its restore."""
    metadata: dict[str, Any] = manifest["metadata"]
    annotations = dict(metadata.get("annotations", {}))
    spec = manifest["spec"]
    if manifest["kind"] == Cluster.resource.kind:
        annotations[IN_PROGRESS], spec = _begun_by(lost), {**spec, "paused": True}
    elif manifest["kind"] == CapelinControlPlane.resource.kind:
        request = restore_request(lost.manifest.name, datetime.now(UTC), source)
        annotations[RESTORE_ANNOTATION] = request
    return {**manifest, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


async def _create(client: Client, manifest: Unstructured) -> Unstructured:
    try:
        return await client.create(manifest)
    except ClientError as error:
        raise UserError(
            f"{manifest['kind']} {manifest['metadata']['name']} cannot be created.",
            reason=f"{error}.",
            hint="Fix that, and run the same command again: it continues.",
        ) from error


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore that the user has to confirm."""

    which: ClusterName
    backup: str
    text: str


async def plan_restore(which: ClusterName, backup: str | None) -> RestorePlan:
    """Find the control plane, and the newest backup if none is named."""
    async with which.client() as client:
        try:
            control_plane = await find_control_plane(client, which)
        except MissingError as error:
            hint = "To create a lost cluster again, name the key of its backups with --key-file."
            raise MissingError(error.message, reason=error.reason, hint=hint) from error
    backup_settings(control_plane)
    last = (control_plane.status or Status()).backup
    if backup is None and last is None:
        raise MissingError(
            f"Cluster {which.name} has no backup yet.",
            hint=f"Take one: {which.command('backup')}.",
        )
    name = backup or (last.name if last else "")
    control_plane.metadata.annotations[RESTORE_ANNOTATION] = name
    try:
        requested_restore(control_plane)
    except InvalidSpecError as error:
        raise InvalidInputError(
            f"{name!r} is not the name of a backup.",
            reason="A name is a moment in UTC, such as 20260131T030000Z.",
            hint="See capelin backups.",
        ) from error
    text = f"backup {name}"
    if last is not None and last.name == name:
        text += f", which is {age_text(datetime.now(UTC) - last.time)} old"
    return RestorePlan(which, name, text)


async def restore_cluster(plan: RestorePlan, within: float) -> None:
    """Request a restore, and wait until the cluster is ready again."""
    async with operation(plan.which, within) as (restore, control_plane):
        await request_restore(restore, plan, control_plane)


async def request_restore(
    restore: ControlPlaneOperation, plan: RestorePlan, control_plane: CapelinControlPlane
) -> None:
    """Request a restore and follow it. A request that fails is withdrawn."""
    # Without it, a control plane whose first restore has failed would begin with empty data.
    previous = control_plane.metadata.annotations.get(RESTORE_ANNOTATION)
    request = restore_request(plan.backup, datetime.now(UTC))
    await restore.annotate(RESTORE_ANNOTATION, request)
    state = "Nothing was changed."
    if previous is not None:
        state = f"The provider continues with the earlier request: {backup_of(previous)}."
    failure = f"Cluster {plan.which.name} cannot be restored from backup {plan.backup}."
    try:
        await _follow(restore, plan, failure, f"{state} See capelin backups for others.")
    except OperationFailedError:
        await withdraw_restore(restore.client, control_plane, request, previous)
        raise


async def restore_lost_cluster(
    which: ClusterName, lost: LostCluster, within: float, *, new_endpoint: bool
) -> None:
    """Create a lost cluster again from its backup, and wait until it is ready."""
    kinds = {str(item["kind"]) for item in lost.objects.items}
    async with which.client() as client:
        with Checklist(Console()).shown() as checklist:
            # Another management cluster has its own providers.
            if which.kubeconfig is None and any(it.startswith("KubeadmConfig") for it in kinds):
                environment = find_environment(which.environment)
                with environment.locked("create"):
                    await start_bootstrap_provider(environment, checklist)
            with checklist.step(f"objects of cluster {which.name} created") as line:
                name = await create_again(client, which, lost, new_endpoint=new_endpoint)
                line.detail = f"{len(lost.secrets)} Secrets, {len(lost.objects.items)} objects"
            plan = RestorePlan(which, lost.manifest.name, "")
            restore = ControlPlaneOperation(client, which, within, name, checklist)
            failure = f"Cluster {which.name} is not restored from backup {plan.backup} yet."
            advice = "Fix that. The provider tries again by itself: see capelin status."
            await _follow(restore, plan, failure, advice)
    if lost.objects.omitted:
        names = ", ".join(lost.objects.omitted)
        Console().print(f"Not in the backup: {names}. Create them yourself.", soft_wrap=True)


async def _follow(
    restore: ControlPlaneOperation, plan: RestorePlan, failure: str, advice: str
) -> None:
    """Wait until the provider has restored a control plane, and its cluster is ready."""

    def progress(found: CapelinControlPlane) -> str | Failure | None:
        request = found.metadata.annotations.get(RESTORE_ANNOTATION)
        if request is None or backup_of(request) != plan.backup:
            return None
        condition = condition_of(found, RESTORING)
        if condition is None:
            return BEGINS
        text = f"{condition.reason}: {condition.message}"
        return Failure(text) if condition.status == "False" else condition.message

    title = f"cluster {plan.which.name} restored from {plan.backup}"
    await restore.follow(title, progress, of="the restore", failure=failure, advice=advice)
    await restore.follow_until_ready()


async def create_authorities(which: ClusterName, name: str | None, key_file: Path) -> None:
    """Create the Secrets of a lost cluster's CAs and keys, unless others exist."""
    async with open_backup(which, BackupPlace(key_file), name) as (backup, key):
        content = await read_authorities(backup.store, backup.manifest, key)
    secrets = [Secret.read(item) for item in json.loads(content)["items"]]
    async with which.client() as client:
        await create_secrets(client, which, tuple(secrets))
    names = ", ".join(secret.name for secret in secrets)
    Console().print(f"Secrets from backup {backup.manifest.name}: {names}.", soft_wrap=True)
