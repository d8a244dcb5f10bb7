"""Takes backups: a slow or full destination delays no reconcile."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from capelin.api.core import Secret
from capelin.client import Client, ClientError
from capelin.contract import CLUSTER_NAME_LABEL, ConditionSpec, find_condition, secret_name
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from capelin_control_plane.api import CapelinControlPlane, EtcdBackup, LastBackup, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.archive import delete_segments, segments_of
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.encryption import FEWEST_KEY_BYTES, BackupError
from capelin_control_plane.backup.files import (
    BackupWriter,
    Listed,
    delete_backup,
    delete_leftovers,
    read_backups,
)
from capelin_control_plane.backup.manifests import (
    BACKUP_ANNOTATION,
    Due,
    Manifest,
    NeededBackup,
    due,
    epoch_of,
    expired,
    interval,
)
from capelin_control_plane.backup.objects import read_cluster_objects
from capelin_control_plane.backup.restores import backup_of, source_of
from capelin_control_plane.backup.stores import Store, StoreError
from capelin_control_plane.desired.control_plane import (
    RESTORE_ANNOTATION,
    ControlPlane,
    InvalidSpecError,
)
from capelin_control_plane.desired.schedules import is_future
from capelin_control_plane.etcd.api import EtcdApi, MembershipError
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.rotation import PURPOSES
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run, key_of

_LABELS = ("cluster_namespace", "control_plane")
OpenEtcd = Callable[[], AbstractAsyncContextManager[EtcdApi]]
BACKUP_HEALTHY: Final = "BackupHealthy"
_RETRY: Final = timedelta(minutes=1)
_LONGEST_WAIT: Final = timedelta(hours=1)
_FINE: Final = ConditionSpec(BACKUP_HEALTHY, "True", BACKUP_HEALTHY)


@dataclass(frozen=True, slots=True)
class BackupAge:
    """The backups of a control plane with a schedule."""

    last: datetime
    """When the last good backup began. Without one, when the control plane was created."""
    interval: timedelta
    """How long its schedule waits between two backups."""


class BackupMetrics(Collector):
    """Reports the last good backup of each control plane with a schedule.

    Prometheus' own label `namespace` is that of the provider.
    """

    def __init__(self) -> None:
        self._ages: dict[ObjectKey, BackupAge] = {}

    def update(self, key: ObjectKey, age: BackupAge | None) -> None:
        """Report the backups of a control plane, or none of it."""
        if age is None:
            self._ages.pop(key, None)
        else:
            self._ages[key] = age

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        last = GaugeMetricFamily(
            "capelin_backup_last_success_timestamp_seconds",
            "When the last good backup of a control plane with a schedule began",
            labels=_LABELS,
        )
        interval = GaugeMetricFamily(
            "capelin_backup_interval_seconds",
            "How long the schedule of a control plane waits between two backups",
            labels=_LABELS,
        )
        for key, age in self._ages.items():
            labels = (key.namespace, key.name)
            last.add_metric(labels, age.last.timestamp())
            interval.add_metric(labels, age.interval.total_seconds())
        return [last, interval]


@dataclass(frozen=True, slots=True)
class ControlPlaneData:
    """A control plane, with the keys and the version of its data."""

    obj: CapelinControlPlane
    desired: ControlPlane
    authority: str
    """SHA-256 of its CA's certificate."""
    etcd: OpenEtcd
    """Opens a connection to its etcd."""
    epoch: str = ""
    """The present keys and version."""
    snapshot_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a snapshot is read. A member that defragments meanwhile would hang."""

    @classmethod
    def of(
        cls,
        obj: CapelinControlPlane,
        desired: ControlPlane,
        authorities: Authorities,
        etcd: OpenEtcd,
        snapshot_lock: asyncio.Lock | None = None,
    ) -> Self:
        """The data of a control plane with these keys and this version."""
        epoch = epoch_of(desired.version, desired.encryption.name, authorities.digest)
        lock = snapshot_lock or asyncio.Lock()
        return cls(obj, desired, authorities.identity, etcd, epoch, lock)

    @property
    def key(self) -> ObjectKey:
        return key_of(self.obj)

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the Cluster, which name the place of its backups."""
        return self.desired.namespace, self.desired.cluster


@dataclass(frozen=True, slots=True)
class BackupState:
    """The result of a backup's last task."""

    condition: ConditionSpec
    newest: LastBackup | None = None
    next: datetime | None = None
    """When to look again."""
    epoch: str = ""
    """The keys and version of the newest backup."""

    def meets(self, needed: NeededBackup) -> bool:
        """Whether an archive continues the newest backup."""
        return self.newest is not None and needed.is_met_by(self.newest.revision, self.epoch)


class Backups(Engine[BackupState | None]):
    """Takes the backups of control planes.

    The store of a control plane is the only state: after a crash, any provider reads it and
    repeats an incomplete backup.
    """

    operation = Declaration(
        name="a backup",
        excluded_as=Operation.BACKUP,
        condition=BACKUP_HEALTHY,
        reason=Reason.BACKUP_FAILED,
        expected=(BackupError, ClientError, MembershipError, TimeoutError),
        warns=True,
        at_once=16,  # Each takes about 20 MiB of memory.
        at_once_of_namespace=2,
        longest=timedelta(hours=6),
        retry=_RETRY,
    )

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        super().__init__(wake)
        self._stores = stores
        self.metrics = BackupMetrics()
        self._tries: defaultdict[ObjectKey, int] = defaultdict(int)
        """How many tasks in sequence took no backup that the archive needs."""

    def reconcile(
        self,
        ctx: Context,
        data: ControlPlaneData,
        needed: NeededBackup | None = None,
    ) -> BackupState | None:
        """Start a task if there is something to do. Returns the last result, if it is configured.

        Args:
            ctx: The context of the reconcile.
            data: The control plane.
            needed: The backup that the archive of changes needs.
        """
        key, obj, backup = data.key, data.obj, data.obj.spec.etcd.backup
        if backup is None:
            self.forget(key)
            return None
        requested = obj.metadata.annotations.get(BACKUP_ANNOTATION)
        # A task with the keys of an earlier epoch would name them in its manifest.
        settings = (backup, requested, data.authority, data.epoch)
        run = self.last(key)
        result = None if run is None else run.result
        tries = 0
        if run is not None and result is not None and needed is not None:
            if result.meets(needed):
                self._tries[key] = 0
            elif (needed_at := _needed_at(run, result, self._tries[key])) is not None:
                tries = self._tries[key] + 1
                result = replace(result, next=min(filter(None, (result.next, needed_at))))
        is_due = result is None or (result.next is not None and result.next <= data.desired.now)
        state = result or _reported(obj)
        if run is None or run.settings != settings or (is_due and not run.is_running):
            job = BackupJob(ctx, data, backup, self._stores, needed)
            self._tries[key] = tries
            self.start(ctx, obj, Run(result, ctx.now(), settings, state.condition), job.run)
        self.metrics.update(key, _age(obj, backup, state, data.desired.now))
        return state

    def forget(self, key: ObjectKey) -> None:
        """Stop a control plane's task, and report no metrics of it."""
        super().forget(key)
        self._tries.pop(key, None)
        self.metrics.update(key, None)

    def failed(
        self,
        ctx: Context,
        obj: CapelinControlPlane,
        run: Run[BackupState | None],
        error: Exception,
    ) -> None:
        """Report the failure of a task, with the last good backup."""
        super().failed(ctx, obj, run, error)
        before = run.result or _reported(obj)
        condition = run.condition or before.condition
        run.result = BackupState(condition, before.newest, run.retry_at)


@dataclass(frozen=True, slots=True)
class BackupJob:
    """Takes the backups of a control plane."""

    ctx: Context
    data: ControlPlaneData
    backup: EtcdBackup
    stores: Stores
    needed: NeededBackup | None = None
    """The backup that the archive of changes needs."""

    async def run(self) -> BackupState:
        """Take a backup if one is due, and delete expired ones."""
        moments = due(self.data.obj, self.backup, self.ctx.now(), self.needed)
        async with self._store() as store:
            return await self._reconcile(store, moments)

    async def final(self, since: datetime) -> Manifest:
        """A backup with all writes, while no client of etcd runs.

        It may be one that an earlier provider took since a moment.

        Raises:
            Blocked: The destination or the key is not usable.
            StoreError: The destination fails.
            MembershipError: etcd has no quorum.
        """
        async with self._store() as store:
            own, _ = self._own(await read_backups(store))
            newest = next(iter(own), None)
            if newest is not None and newest.taken_at >= since:
                async with self.data.etcd() as etcd:
                    if newest.revision == await etcd.last_revision():
                        return newest
            return await self._take(store, is_final=True)

    def _store(self) -> AbstractAsyncContextManager[Store]:
        return self.stores.open(self.ctx.client, self.backup.destination, *self.data.place)

    async def _reconcile(self, store: Store, moments: Due) -> BackupState:
        listed = await read_backups(store)
        own, future = self._own(listed)
        condition = _FINE
        if future:
            names = ", ".join(manifest.name for manifest in future[:5])
            condition = _unhealthy(Reason.BACKUP_FROM_FUTURE, f"{len(future)} of them: {names}")
        if listed.damaged:
            names = ", ".join(listed.damaged[:5])
            condition = _unhealthy(Reason.BACKUP_DAMAGED, f"{len(listed.damaged)} of them: {names}")
        if moments.includes(own[0] if own else None):
            manifest = await self._take(store)
            own.insert(0, manifest)
            message = f"{manifest.name}: revision {manifest.revision}"
            self.ctx.event(self.data.obj, "Normal", "BackedUp", message)
            try:
                await self._delete_expired(store, own, listed)
            except StoreError as error:
                # The backup itself is good.
                condition = _unhealthy(Reason.BACKUPS_NOT_DELETED, str(error))
        epoch = own[0].epoch if own else ""
        return BackupState(condition, _last(own), moments.next, epoch)

    async def _delete_expired(self, store: Store, own: list[Manifest], listed: Listed) -> None:
        old = expired(
            own,
            self.backup.retention,
            self.ctx.now(),
            continuous=self.backup.continuous,
            named=await named_backups(self.ctx.client, *self.data.place),
        )
        for manifest in old:
            await delete_backup(store, manifest.name)
        if not self.backup.continuous:
            segments = segments_of(listed.names, self.data.authority)
            await delete_segments(store, self.data.authority, segments)

    async def _take(self, store: Store, *, is_final: bool = False) -> Manifest:
        data, (namespace, cluster) = self.data, self.data.place
        key = await encryption_key(self.ctx.client, self.backup, namespace)
        authorities = await _authorities(self.ctx.client, data.desired)
        objects = await read_cluster_objects(self.ctx.client, namespace, cluster)
        if not objects.is_complete:
            message = f"it has only {len(objects.items)} of the Cluster's objects, and all of etcd"
            self.ctx.event(data.obj, "Warning", "ObjectsOmitted", message)
        async with self.data.etcd() as etcd:
            if is_final:
                # The member itself may lag behind writes that others have acknowledged.
                await etcd.last_revision()
            status = await etcd.status()
            begun = self.ctx.now()
            manifest = Manifest(
                namespace=namespace,
                cluster=cluster,
                control_plane=data.obj.name,
                authority=data.authority,
                kubernetes_version=data.desired.version,
                etcd_version=status.version,
                revision=status.revision,
                taken_at=begun,
                seconds=0,
                snapshot_bytes=0,
                encryption=data.desired.encryption.name,
                rings=dict(data.desired.encryption.rings),
                epoch=data.epoch,
            )
            await delete_leftovers(store)
            writer = BackupWriter(store, manifest.name, key, self.data.authority)
            await writer.authorities(authorities)
            await writer.objects(objects.dump())
            async with self.data.snapshot_lock, aclosing(etcd.snapshot()) as pieces:
                size = await writer.snapshot(pieces)
        seconds = round((self.ctx.now() - begun).total_seconds(), 3)
        manifest = replace(manifest, seconds=seconds, snapshot_bytes=size)
        await writer.publish(manifest)
        return manifest

    def _own(self, listed: Listed) -> tuple[list[Manifest], list[Manifest]]:
        """The backups of this control plane, not of an earlier one of its name.

        Those that a wrong clock dates in the future are apart.
        """
        now = self.ctx.now()
        own = [it for it in listed.manifests if it.authority == self.data.authority]
        return (
            [it for it in own if not is_future(it.taken_at, now)],
            [it for it in own if is_future(it.taken_at, now)],
        )


async def named_backups(client: Client, namespace: str, cluster: str) -> frozenset[str]:
    """The backups of a Cluster that restores of it or of its copies name, done or not."""
    listed = await client.list(CapelinControlPlane, namespace)
    requests = [
        (it.metadata.labels.get(CLUSTER_NAME_LABEL), it.metadata.annotations[RESTORE_ANNOTATION])
        for it in listed.items
        if RESTORE_ANNOTATION in it.metadata.annotations
    ]
    return frozenset(
        backup_of(request) for of, request in requests if (source_of(request) or of) == cluster
    )


async def encryption_key(client: Client, backup: EtcdBackup, namespace: str) -> bytes:
    """The key that encrypts backups.

    Raises:
        Blocked: its Secret is missing, or the key is too short.
    """
    name, entry = backup.encryption_key.name, backup.encryption_key.key
    secret = await client.find(Secret, name, namespace)
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


async def _authorities(client: Client, desired: ControlPlane) -> bytes:
    """The Secrets of the CAs and keys, as kubectl applies them."""
    secrets: list[dict[str, Any]] = []
    names = [secret_name(desired.cluster, purpose) for purpose in PURPOSES]
    keys = secret_name(desired.cluster, "encryption")
    if await client.find(Secret, keys, desired.namespace) is not None:
        names.append(keys)
    for name in names:
        secret = await client.get(Secret, name, desired.namespace)
        content = secret.dump()
        metadata = {"name", "namespace", "labels", "annotations"}
        content["metadata"] = {
            field: value for field, value in content["metadata"].items() if field in metadata
        }
        secrets.append({"apiVersion": "v1", "kind": "Secret", **content})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": secrets}).encode()


def _needed_at(run: Run[BackupState | None], result: BackupState, tries: int) -> datetime | None:
    """When to take a backup that the archive needs. None if a task runs, or a failure is retried.

    At first at once, and then less and less often: a store may damage each new backup.
    """
    is_complete = result.condition.reason in {BACKUP_HEALTHY, Reason.BACKUP_DAMAGED}
    if run.ended is None or not is_complete:
        return None
    return run.ended + min(_RETRY * (2 ** min(tries, 10) - 1), _LONGEST_WAIT)


def _reported(obj: CapelinControlPlane) -> BackupState:
    """The report of an earlier provider, until this one has read the backups."""
    status = obj.status or Status()
    present = find_condition(status.conditions, BACKUP_HEALTHY)
    message = "the backups are being read"
    condition = ConditionSpec(BACKUP_HEALTHY, "Unknown", Reason.STARTING, message)
    return BackupState(ConditionSpec.of(present) if present else condition, status.backup)


def _age(
    obj: CapelinControlPlane, backup: EtcdBackup, state: BackupState, now: datetime
) -> BackupAge | None:
    """The age of the last good backup, if its schedule has an interval."""
    try:
        waits = interval(backup, now)
    except InvalidSpecError:
        # The condition reports it.
        return None
    last = state.newest.time if state.newest else obj.metadata.creation_timestamp
    return None if waits is None or last is None else BackupAge(last, waits)


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
