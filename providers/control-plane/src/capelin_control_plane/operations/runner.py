"""The long operations of running control planes: each has tasks that end with the provider."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import Status
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.keys.encryption import uses_keyring
from capelin_control_plane.operations.archive import Archives
from capelin_control_plane.operations.backup import (
    BackupMetrics,
    Backups,
    BackupState,
    ControlPlaneData,
)
from capelin_control_plane.operations.encryption import EncryptionReport, Encryptions, PluginChecks
from capelin_control_plane.operations.engine import Engine, Operation, in_progress
from capelin_control_plane.operations.restore import Restores
from capelin_control_plane.operations.rotation import Rotations
from capelin_control_plane.operations.situation import Situation
from capelin_control_plane.operations.space import SpaceTasks


@dataclass(frozen=True, slots=True)
class OperationsReport:
    """The state of all operations of a control plane."""

    backup: BackupState | None
    space: ConditionSpec | None
    encryption: EncryptionReport
    conditions: tuple[ConditionSpec, ...]
    """The conditions of the others."""
    next: datetime | None
    """When to look again."""


class Operations:
    """Backups, archives, restores, space in etcd, encryption at rest and rotations."""

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        self._backups = Backups(stores, wake)
        self._archives = Archives(stores, wake)
        self._restores = Restores(stores, wake)
        self._space = SpaceTasks(wake)
        self._plugins = PluginChecks(wake)
        self._encryptions = Encryptions(wake, self._plugins)
        self._rotations = Rotations(wake)
        self._locks: dict[ObjectKey, asyncio.Lock] = {}
        self._engines: tuple[Engine[Any], ...] = (
            *(self._backups, self._archives, self._restores),
            *(self._space, self._encryptions, self._plugins),
        )

    @property
    def metrics(self) -> BackupMetrics:
        """The metrics of backups."""
        return self._backups.metrics

    def plugin_key(self, key: ObjectKey, now: datetime) -> tuple[str, str] | None:
        """The name of a key, and the KMS plugin's key that all API servers use for it."""
        return self._plugins.settled_key(key, now)

    async def reconcile(
        self,
        ctx: Context,
        situation: Situation,
        *,
        is_moving: bool = False,
        awake_since: datetime | None = None,
    ) -> OperationsReport:
        """Start the tasks of operations that are due, and take their next steps.

        Args:
            ctx: The context of the reconcile.
            situation: The control plane.
            is_moving: Whether the next pause is that of a move.
            awake_since: When it last woke.
        """
        key, observed = situation.key, situation.observed
        running = in_progress(situation.desired, observed, is_moving=is_moving)
        data = ControlPlaneData.of(
            situation.obj,
            situation.desired,
            situation.authorities,
            partial(situation.backend.etcd, key),
            self._locks.setdefault(key, asyncio.Lock()),
        )
        backup, archive = self._back_up(ctx, data)
        space = self._check_space(ctx, situation, data.snapshot_lock, running)
        encryption = await self._encrypt(ctx, situation, running)
        if encryption.changing:
            # It may have begun just now.
            running |= {Operation.ENCRYPTION}
        rotation = await self._rotations.reconcile(
            ctx, situation, running=running, awake_since=awake_since
        )
        restore = self._restores.reconcile(
            ctx, data, backend=situation.backend, phase=observed.restore
        )
        moments = (backup and backup.next, encryption.next, rotation.next)
        return OperationsReport(
            backup,
            space,
            encryption,
            (*archive, *restore, *rotation.conditions),
            min(filter(None, moments), default=None),
        )

    def forget(self, key: ObjectKey) -> None:
        """Stop the tasks of a control plane."""
        self._rotations.forget(key)
        for engine in self._engines:
            engine.forget(key)

    async def close(self) -> None:
        """Stop all tasks."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    def _back_up(
        self, ctx: Context, data: ControlPlaneData
    ) -> tuple[BackupState | None, tuple[ConditionSpec, ...]]:
        """Take a backup if one is due, as soon as there is something to back up."""
        if not (data.obj.status or Status()).initialization.control_plane_initialized:
            return None, ()
        archive = self._archives.reconcile(ctx, data)
        backup = self._backups.reconcile(ctx, data, archive and archive.needed)
        return backup, () if archive is None else (archive.condition_with(backup),)

    def _check_space(
        self,
        ctx: Context,
        situation: Situation,
        lock: asyncio.Lock,
        running: Collection[Operation],
    ) -> ConditionSpec | None:
        """Check etcd's space, unless no API server answers."""
        key = situation.key
        if not situation.observed.answers:
            last = self._space.last(key)
            return last and last.result
        return self._space.reconcile(
            ctx,
            situation.obj,
            situation.desired.etcd_replicas,
            partial(situation.backend.etcd, key),
            lock=lock,
            waits=bool(self._space.operation.waits_for(running)),
        )

    async def _encrypt(
        self, ctx: Context, situation: Situation, running: Collection[Operation]
    ) -> EncryptionReport:
        """Take the next stage of encryption, unless something else changes the API servers."""
        is_ready = uses_keyring(situation.desired, situation.observed)
        readiness = "" if is_ready else "every API server to be ready"
        return await self._encryptions.reconcile(
            ctx,
            situation.obj,
            situation.encryption_keys,
            situation.config,
            waiting=self._encryptions.operation.waits_for(running, readiness),
            restoring=Operation.RESTORE in running,
        )
