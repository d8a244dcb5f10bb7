"""Prepares restores, and separates a copy of a cluster from its source before it is complete.

A large backup delays no reconcile. The data of a copy still names the machines, volumes and
credentials of its source. Controllers of the copy already run then. It has no machines, so no pod
runs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.client import Client, ClientError, Invalid
from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked, ControlPlaneContext

from capelin_control_plane.api import BackupDestination, CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import Backend
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import read_backups, read_snapshot
from capelin_control_plane.backup.restores import (
    backup_of,
    check_backup,
    moment_of,
    restore_request,
    revision_bump,
    source_of,
)
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION, ControlPlane
from capelin_control_plane.desired.instances import Phase
from capelin_control_plane.keys.rotation_clients import (
    NODES,
    SECRETS,
    account_key_id,
    find_old_tokens,
)
from capelin_control_plane.operations.backup import ControlPlaneData, encryption_key
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run
from capelin_control_plane.operations.situation import Situation

VOLUMES: Final = Resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
ATTACHMENTS: Final = Resource(
    "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False
)
_BOOTSTRAP_TOKEN: Final = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type
RESTORING: Final = "Restoring"
_SEPARATION_SECONDS: Final = 10.0


async def separate_from_source(workload: Client, moment: datetime) -> None:
    """Remove the source's objects. It can be repeated.

    Args:
        workload: The API of the copy.
        moment: The moment of the request. Later objects belong to the copy.
    """
    async for volume in workload.iterate(VOLUMES):
        # The source uses the volumes.
        if volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Delete":
            retain = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
            await workload.patch(VOLUMES, volume["metadata"]["name"], None, retain)
    # Before attachments: a controller creates those of a Node's pods again.
    async for node in workload.iterate(NODES):
        if _is_copied(node, moment):
            await _delete(workload, NODES, node)
    async for attachment in workload.iterate(ATTACHMENTS):
        if _is_copied(attachment, moment):
            # Without its finalizer, no CSI driver of the copy detaches the volume of the source.
            name, free = attachment["metadata"]["name"], {"metadata": {"finalizers": None}}
            await workload.patch(ATTACHMENTS, name, None, free)
            await _delete(workload, ATTACHMENTS, attachment)
    async for token in workload.iterate(SECRETS, fields={"type": _BOOTSTRAP_TOKEN}):
        if _is_copied(token, moment):
            await _delete(workload, SECRETS, token)


async def remove_old_tokens(workload: Client, key: str) -> None:
    """Empty the Secrets with tokens that API servers do not accept. It can be repeated.

    Args:
        workload: The API of the restored cluster.
        key: The ID of its service account key.
    """
    async for secret in find_old_tokens(workload, key):
        # The controller manager creates a token with the present key.
        metadata = secret["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "data": {"token": None}}
        await workload.patch(SECRETS, metadata["name"], metadata["namespace"], patch)


def _is_copied(item: Unstructured, moment: datetime) -> bool:
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"]) <= moment


async def _delete(workload: Client, kind: Resource, item: Unstructured) -> None:
    metadata: dict[str, Any] = item["metadata"]
    await workload.delete(kind, metadata["name"], metadata.get("namespace"), uid=metadata["uid"])


class Restores(Engine[None]):
    """Prepares the restores of control planes, and reports their phases.

    It remembers nothing that matters: after a crash, another provider finds the phase in the
    backend's files.
    """

    # A failed request stays, and so does the control plane.
    operation = Declaration(
        name="a restore",
        excluded_as=Operation.RESTORE,
        condition=RESTORING,
        reason=Reason.RESTORE_FAILED,
        expected=(BackupError, ClientError, OSError),
        warns=True,
        retry=timedelta(minutes=1),
    )

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        super().__init__(wake)
        self._stores = stores

    def reconcile(
        self,
        ctx: Context,
        data: ControlPlaneData,
        *,
        backend: Backend,
        phase: Phase | None,
    ) -> tuple[ConditionSpec, ...]:
        """Start a task if data has to be prepared. Returns the condition of a restore, if any.

        Args:
            ctx: The context of the reconcile.
            data: The control plane.
            backend: Its backend.
            phase: The phase that the backend observed.
        """
        key, desired = data.key, data.desired
        if phase is None and desired.restore is not None:
            # The backend has no restores: the task reports that.
            phase = Phase.PREPARING
        if phase is not Phase.PREPARING:
            self.forget(key)
            return () if phase is None else (_condition(desired, phase),)
        settings, run = (desired.restore, data.authority), self.last(key)
        if run is not None and run.settings != settings:
            run = None
        failure = None if run is None else run.condition
        # Prepared data can also disappear: then, the task begins again without a failure.
        if run is None or (run.is_due(desired.now) and not run.is_running):
            job = _Job(ctx, data, backend, self._stores)
            self.start(ctx, data.obj, Run(None, ctx.now(), settings, failure), job.run)
        return (failure or _condition(desired, phase),)


async def complete_restore(ctx: ControlPlaneContext, situation: Situation) -> bool:
    """Remove the annotation if the restored control plane serves. Returns whether it did.

    A copy is first separated from its source. In place, tokens of a dropped key may be back.
    """
    obj, desired, observed = situation.obj, situation.desired, situation.observed
    is_ready = observed.complete and observed.answers and all(s.ready for s in observed.statuses)
    if observed.restore is not Phase.STARTING or desired.restore is None or not is_ready:
        return False
    source = source_of(desired.restore)
    try:
        async with (
            asyncio.timeout(_SEPARATION_SECONDS),
            Client(situation.config(), manager="capelin-restore") as workload,
        ):
            if source is not None:
                # The moment of the request is later than all data of the source.
                moment = moment_of(desired.restore) or desired.now
                await separate_from_source(workload, moment)
            if source is not None or situation.authorities.progress.stage is None:
                await remove_old_tokens(workload, account_key_id(situation.authorities))
    except (ClientError, TimeoutError) as error:
        text = str(error) or f"the API took more than {_SEPARATION_SECONDS:g} s"
        whose = "the backup" if source is None else f"Cluster {source}"
        message = f"objects of {whose} cannot be removed from the restored data: {text}"
        ctx.set_conditions(ConditionSpec(RESTORING, "True", Phase.STARTING, message))
        return False
    if not await withdraw_restore(ctx.client, obj, desired.restore):
        return False
    message = f"the control plane continues from backup {backup_of(desired.restore)}"
    ctx.event(obj, "Normal", "Restored", message)
    return True


async def withdraw_restore(
    client: Client, obj: CapelinControlPlane, request: str, previous: str | None = None
) -> bool:
    """Remove the annotation of a request, unless a newer one has replaced it.

    Args:
        client: The client of the management cluster.
        obj: The control plane.
        request: The request to withdraw.
        previous: The request that takes its place.
    """
    path = f"/metadata/annotations/{RESTORE_ANNOTATION.replace('/', '~1')}"
    change = {"op": "remove"} if previous is None else {"op": "replace", "value": previous}
    operations = [{"op": "test", "path": path, "value": request}, {**change, "path": path}]
    try:
        written = await client.patch(type(obj), obj.name, obj.namespace, operations, type="json")
    except Invalid:
        return False
    obj.metadata = written.metadata
    return True


def _condition(desired: ControlPlane, phase: Phase) -> ConditionSpec:
    # Without a request: it was withdrawn after the replacement had begun.
    source = desired.restore and source_of(desired.restore)
    backup = "the backup" if desired.restore is None else f"backup {backup_of(desired.restore)}"
    backup += f" of Cluster {source}" if source else ""
    messages = {
        Phase.PREPARING: f"creating data from {backup}. The API continues to serve",
        Phase.STOPPING: f"stopping etcd and its clients before the restore of {backup}",
        Phase.REPLACING: f"replacing the data of etcd by {backup}",
        Phase.STARTING: f"starting etcd and its clients with the data of {backup}",
    }
    return ConditionSpec(RESTORING, "True", phase, messages[phase])


@dataclass(frozen=True, slots=True)
class _Job:
    ctx: Context
    data: ControlPlaneData
    backend: Backend
    stores: Stores

    async def run(self) -> None:
        data = self.data
        backup, request = data.obj.spec.etcd.backup, data.desired.restore or ""
        if backup is None:
            raise Blocked(
                Reason.RESTORE_REFUSED,
                "spec.etcd.backup is not set",
                "it names the folder and the key of the backups",
            )
        if moment_of(request) is None:
            # Revisions would not grow with a second restore of this backup.
            await self._add_moment(request)
            return
        name, client, namespace = backup_of(request), self.ctx.client, data.desired.namespace
        destination, source = backup.destination, source_of(request)
        cluster = source or data.desired.cluster
        async with self.stores.open(client, destination, namespace, cluster) as store:
            listed = await read_backups(store)
            manifest = next((found for found in listed.manifests if found.name == name), None)
            if manifest is None:
                known = ", ".join(found.name for found in listed.manifests[:3]) or "none"
                raise Blocked(
                    Reason.RESTORE_REFUSED,
                    f"no usable backup {name} exists in {_place_of(destination)}. The newest ones"
                    f" there: {known}",
                )
            check_backup(manifest, data.desired, None if source else data.authority)
            key = await encryption_key(client, backup, namespace)
            read = partial(read_snapshot, store, manifest, key)
            bump = revision_bump(request, manifest.revision)
            await self.backend.prepare_restore(data.key, data.desired, read, bump=bump)

    async def _add_moment(self, request: str) -> None:
        source, name = source_of(request), backup_of(request)
        following = restore_request(name, self.ctx.now(), source)
        await withdraw_restore(self.ctx.client, self.data.obj, request, following)


def _place_of(destination: BackupDestination) -> str:
    return destination.folder or (f"bucket {destination.s3.bucket}" if destination.s3 else "")
