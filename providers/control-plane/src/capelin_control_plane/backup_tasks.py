"""Takes backups in tasks of their own: a slow or full destination delays no reconcile."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from capelin.api.core import Secret
from capelin.client import Client, ClientError
from capelin.contract import ConditionSpec, find_condition, secret_name
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, LastBackup, Status
from capelin_control_plane.backup_files import (
    FEWEST_KEY_BYTES,
    BackupError,
    BackupWriter,
    Listed,
    SnapshotHash,
    delete_backup,
    delete_leftovers,
    list_backups,
)
from capelin_control_plane.backups import BACKUP_ANNOTATION, Manifest, due, expired
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.etcd_api import EtcdApi, MembershipError
from capelin_control_plane.reasons import Reason
from capelin_control_plane.secrets import PURPOSES

BACKUP_HEALTHY: Final = "BackupHealthy"
_RETRY: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(hours=6)
_THREADS: Final = 4
_FINE: Final = ConditionSpec(BACKUP_HEALTHY, "True", BACKUP_HEALTHY)

T = TypeVar("T")
OpenEtcd = Callable[[], AbstractAsyncContextManager[EtcdApi]]


@dataclass(frozen=True, slots=True)
class BackupState:
    """The result of a backup's last task."""

    condition: ConditionSpec
    newest: LastBackup | None = None
    next: datetime | None = None
    """When to look again."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A task, and the settings that it began with."""

    settings: tuple[object, ...]
    task: asyncio.Task[None]


class Backups:
    """Takes the backups of control planes.

    The folder of a control plane is the only state: after a crash, any provider reads it and
    repeats an incomplete backup.
    """

    def __init__(self, root: Path | None, wake: Callable[[ObjectKey], None]) -> None:
        self._root, self._wake = root, wake
        self._runs: dict[ObjectKey, _Run] = {}
        self._states: dict[ObjectKey, BackupState] = {}
        # Its own threads: a destination that hangs must not use those of the event loop.
        self._threads = ThreadPoolExecutor(_THREADS, "backup")

    def reconcile(
        self,
        ctx: Context,
        obj: CapelinControlPlane,
        desired: ControlPlane,
        authority: str,
        etcd: OpenEtcd,
    ) -> BackupState | None:
        """Start a task if there is something to do. Returns the last result, if it is configured.

        Args:
            ctx: The context of the reconcile.
            obj: The control plane.
            desired: Its desired state.
            authority: SHA-256 of its CA's certificate.
            etcd: Opens a connection to its etcd.
        """
        key, backup = ObjectKey(obj.namespace or "", obj.name), obj.spec.etcd.backup
        if backup is None:
            self.forget(key)
            return None
        if self._root is None:
            return BackupState(_unhealthy(Reason.BACKUPS_NOT_ALLOWED, "no --backup-folder is set"))
        settings = (backup, obj.metadata.annotations.get(BACKUP_ANNOTATION), authority)
        run, state = self._runs.get(key), self._states.get(key)
        if run is not None and run.settings != settings:
            run.task.cancel()
            run = None
        is_due = state is None or (state.next is not None and state.next <= desired.now)
        if run is None or (run.task.done() and is_due):
            job = _Job(ctx, obj, backup, desired, authority, etcd, self._root, self._threads)
            task = asyncio.create_task(self._run(key, job))
            self._runs[key] = _Run(settings, task)
        return state or _reported(obj)

    def forget(self, key: ObjectKey) -> None:
        """Stop a control plane's task. The next provider repeats an incomplete backup."""
        run = self._runs.pop(key, None)
        self._states.pop(key, None)
        if run is not None:
            run.task.cancel()

    async def close(self) -> None:
        """Stop all tasks."""
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, key: ObjectKey, job: "_Job") -> None:
        try:
            async with asyncio.timeout(_LONGEST.total_seconds()):
                state = await job.run()
        except Exception as error:  # noqa: BLE001 - the condition shows it, and the next task retries
            state = job.failed(error, self._states.get(key))
        self._states[key] = state
        self._wake(key)


@dataclass(frozen=True, slots=True)
class _Job:
    ctx: Context
    obj: CapelinControlPlane
    backup: EtcdBackup
    desired: ControlPlane
    authority: str
    etcd: OpenEtcd
    root: Path
    threads: ThreadPoolExecutor

    @property
    def folder(self) -> Path:
        namespace = self.root / self.desired.namespace
        return namespace / self.backup.destination.folder / self.desired.cluster

    async def run(self) -> BackupState:
        moments = due(self.obj, self.backup, self.ctx.now())
        listed = await self._in_thread(list_backups, self.folder)
        own = self._own(listed)
        if moments.includes(own[0] if own else None):
            manifest = await self._take()
            own.insert(0, manifest)
            message = f"{manifest.name}: revision {manifest.revision}"
            self.ctx.event(self.obj, "Normal", "BackedUp", message)
            for old in expired(own, self.backup.retention, self.ctx.now()):
                await self._in_thread(delete_backup, self.folder, old.name)
        condition = _FINE
        if listed.damaged:
            names = ", ".join(listed.damaged[:5])
            condition = _unhealthy(Reason.BACKUP_DAMAGED, f"{len(listed.damaged)} of them: {names}")
        return BackupState(condition, _last(own), moments.next)

    def failed(self, error: Exception, before: BackupState | None) -> BackupState:
        reason, message = Reason.BACKUP_FAILED, str(error) or type(error).__name__
        if isinstance(error, Blocked):
            reason = error.reason
        elif isinstance(error, OSError):
            message = f"{self.folder.relative_to(self.root)}: {error.strerror or message}"
        elif not isinstance(error, (BackupError, ClientError, MembershipError, TimeoutError)):
            self.ctx.log.error("a backup of %s failed", self.obj.name, exc_info=error)
        condition = _unhealthy(reason, message)
        before = before or _reported(self.obj)
        if before.condition != condition:
            self.ctx.event(self.obj, "Warning", reason, message)
        retry = self.ctx.now() + _RETRY
        return BackupState(condition, before.newest, retry)

    async def _take(self) -> Manifest:
        key = await self._key()
        authorities = await _authorities(self.ctx.client, self.desired)
        async with self.etcd() as etcd:
            status = await etcd.status()
            begun = self.ctx.now()
            manifest = Manifest(
                namespace=self.desired.namespace,
                cluster=self.desired.cluster,
                control_plane=self.obj.name,
                authority=self.authority,
                kubernetes_version=self.desired.version,
                etcd_version=status.version,
                revision=status.revision,
                taken_at=begun,
                seconds=0,
                snapshot_bytes=0,
            )
            await self._in_thread(delete_leftovers, self.folder)
            writer = await self._in_thread(
                BackupWriter, self.root, self.folder, manifest.name, key, self.authority
            )
            await self._in_thread(writer.authorities, authorities)
            size = await self._copy(etcd, writer)
        seconds = round((self.ctx.now() - begun).total_seconds(), 3)
        manifest = replace(manifest, seconds=seconds, snapshot_bytes=size)
        await self._in_thread(writer.publish, manifest)
        return manifest

    async def _copy(self, etcd: EtcdApi, writer: BackupWriter) -> int:
        digest = SnapshotHash()
        file = await self._in_thread(writer.snapshot)
        try:
            async for piece in etcd.snapshot():
                digest.update(piece)
                await self._in_thread(file.write, piece)
            digest.verify()
        except BaseException as error:
            # Not awaited: on a destination that hangs, it would block the event loop.
            self.threads.submit(file.__exit__, type(error), error, None)
            raise
        await self._in_thread(file.__exit__, None, None, None)
        return digest.size

    async def _key(self) -> bytes:
        name, entry = self.backup.encryption_key.name, self.backup.encryption_key.key
        secret = await self.ctx.client.find(Secret, name, self.desired.namespace)
        key = None if secret is None else secret.data.get(entry)
        if key is None:
            raise Blocked(
                Reason.BACKUP_KEY_NOT_USABLE,
                f"spec.etcd.backup.encryptionKey: no Secret {name} with the entry {entry} exists in"
                " the namespace",
            )
        if len(key) < FEWEST_KEY_BYTES:
            raise Blocked(
                Reason.BACKUP_KEY_NOT_USABLE,
                f"spec.etcd.backup.encryptionKey: Secret {name} has fewer than {FEWEST_KEY_BYTES}"
                f" bytes in the entry {entry}",
            )
        return key

    def _own(self, listed: Listed) -> list[Manifest]:
        """The backups of this control plane, and not of an earlier one of its name."""
        return [manifest for manifest in listed.manifests if manifest.authority == self.authority]

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, partial(function, *arguments))


async def _authorities(client: Client, desired: ControlPlane) -> bytes:
    """The Secrets of the CAs and keys, as kubectl applies them."""
    secrets: list[dict[str, Any]] = []
    for purpose in PURPOSES:
        name = secret_name(desired.cluster, purpose)
        secret = await client.get(Secret, name, desired.namespace)
        content = secret.dump()
        metadata = {"name", "namespace", "labels", "annotations"}
        content["metadata"] = {
            field: value for field, value in content["metadata"].items() if field in metadata
        }
        secrets.append({"apiVersion": "v1", "kind": "Secret", **content})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": secrets}).encode()


def _reported(obj: CapelinControlPlane) -> BackupState:
    """The report of an earlier provider, until this one has read the backups."""
    status = obj.status or Status()
    present = find_condition(status.conditions, BACKUP_HEALTHY)
    message = "the backups are being read"
    condition = ConditionSpec(BACKUP_HEALTHY, "Unknown", Reason.STARTING, message)
    return BackupState(ConditionSpec.of(present) if present else condition, status.backup)


def _last(manifests: list[Manifest]) -> LastBackup | None:
    if not manifests:
        return None
    newest = manifests[0]
    return LastBackup(
        name=newest.name,
        time=newest.taken_at,
        revision=newest.revision,
        bytes=newest.snapshot_bytes,
    )


def _unhealthy(reason: str, message: str) -> ConditionSpec:
    return ConditionSpec(BACKUP_HEALTHY, "False", reason, message)
