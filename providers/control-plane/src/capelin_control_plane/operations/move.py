"""Moves control planes on pods to another management cluster, together with `clusterctl move`."""

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol, runtime_checkable

from capelin.api import BaseObject
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, ClientError
from capelin.contract import AVAILABLE, MOVE_LABEL, ConditionSpec
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import Backend
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.desired.control_plane import (
    ADDRESS_ANNOTATION,
    MOVE_ANNOTATION,
    ControlPlane,
    InvalidSpecError,
    annotated_moment,
)
from capelin_control_plane.desired.instances import Remains
from capelin_control_plane.etcd.api import Change, EtcdApi, MembershipError
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.operations.backup import BackupJob, ControlPlaneData
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run, key_of
from capelin_control_plane.operations.move_phases import (
    ABANDONING,
    MOVING,
    UNBLOCKING,
    MovePhase,
    accepted_move,
    handing_over,
    movable,
    move_phase,
    move_request,
    not_requested,
    user_objects,
)
from capelin_control_plane.operations.situation import Situation

_POLL_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 5.0
_EXPIRING: Final = (b"/registry/events/", b"/registry/masterleases/")
_KINDS: Final[Mapping[str, type[BaseObject]]] = {"secret": Secret, "configmap": ConfigMap}
_STOPPED: Final = ConditionSpec(
    AVAILABLE, "False", "NotAvailable", "the control plane stops here, to move elsewhere"
)
_MESSAGES: Final = {
    MovePhase.STOPPING: "stopping API servers and controllers",
    MovePhase.BACKING_UP: "taking the final backup",
    MovePhase.RELEASING: "deleting pods and Services. The volumes stay",
    MovePhase.READY: "clusterctl may continue. To continue here instead, end the pause",
}


@runtime_checkable
class MovingBackend(Backend, Protocol):
    """A backend whose control planes move as backups."""

    async def own_hosts(self, key: ObjectKey) -> frozenset[str]:
        """The addresses that this management cluster gives to a control plane."""
        ...

    async def remains(self, key: ObjectKey) -> Remains:
        """The objects of a control plane that still exist."""
        ...

    async def stop_clients(self, key: ObjectKey) -> None:
        """Stop API servers and controllers. Call it again until none remains."""
        ...

    async def stop(self, key: ObjectKey) -> None:
        """Delete everything but the data. Call it again until nothing remains."""
        ...


Prepare = Callable[[], Awaitable[tuple[ControlPlane, Authorities]]]
"""The desired state and the CAs of a control plane that is paused."""


class Moves(Engine[None]):
    """Stops control planes whose move was requested, and takes their final backups.

    It remembers nothing that matters: the annotations of the control plane and its remaining
    objects show the phase to any provider.
    """

    operation = Declaration(
        name="a move",
        excluded_as=Operation.MOVE,
        condition=MOVING,
        reason=Reason.MOVE_FAILED,
        own_reasons=False,
        expected=(BackupError, ClientError, MembershipError),
        retry=timedelta(seconds=_RETRY_SECONDS),
        repeats=True,
    )

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        super().__init__(wake)
        self._stores = stores

    def reconcile(
        self, ctx: Context, obj: CapelinControlPlane, backend: MovingBackend, prepare: Prepare
    ) -> tuple[ConditionSpec, ...]:
        """Start a task if none runs. Returns the conditions of the move."""
        key = key_of(obj)
        run = self.last(key)
        if run is None:
            run = Run(None, ctx.now(), condition=_condition(MovePhase.STOPPING))
            report = partial(self.report, key, run)
            job = _Job(ctx, obj, backend, prepare, self._stores, report)
            self.start(ctx, obj, run, job.run)
        return tuple(filter(None, (run.condition, _STOPPED)))


def _condition(phase: MovePhase) -> ConditionSpec:
    return ConditionSpec(MOVING, "True", phase, _MESSAGES[phase])


@dataclass(slots=True)
class _Job:
    ctx: Context
    obj: CapelinControlPlane
    backend: MovingBackend
    prepare: Prepare
    stores: Stores
    report: Callable[[ConditionSpec], None]
    failed: MovePhase | None = None
    """The phase whose step has failed. Its failure is reported until a step succeeds."""

    @property
    def key(self) -> ObjectKey:
        return key_of(self.obj)

    async def run(self) -> None:
        """Take the steps of all phases. Each one may be repeated."""
        phase = None
        while phase is not MovePhase.READY:
            phase = await self.phase()
            if phase is not self.failed:
                self.report(_condition(phase))
            self.failed = phase
            await self.take(phase)
            self.failed = None
            self.report(_condition(phase))
            await asyncio.sleep(_POLL_SECONDS)

    async def phase(self) -> MovePhase:
        """The present phase, from the live object and its remaining objects."""
        self.obj = await self.ctx.client.get(CapelinControlPlane, self.obj.name, self.obj.namespace)
        return move_phase(self.obj, await self.backend.remains(self.key))

    async def take(self, phase: MovePhase) -> None:
        """Take one step of a phase, which may be repeated."""
        match phase:
            case MovePhase.STOPPING:
                await self.backend.stop_clients(self.key)
            case MovePhase.BACKING_UP:
                backup = await self._final_backup()
                if await self._has_all_writes(backup):
                    name = backup.name
                    await _annotate(self.ctx.client, self.obj, handing_over(self.obj, name))
                    self.ctx.event(self.obj, "Normal", "BackedUp", f"{name}: the final backup")
            case MovePhase.RELEASING:
                await self.backend.stop(self.key)
                if not (await self.backend.remains(self.key)).any:
                    await _annotate(self.ctx.client, self.obj, UNBLOCKING)
            case MovePhase.READY:
                pass

    async def _final_backup(self) -> Manifest:
        backup, since = self.obj.spec.etcd.backup, annotated_moment(self.obj, MOVE_ANNOTATION)
        if backup is None or since is None:
            raise Blocked(Reason.MOVE_FAILED, "the request or spec.etcd.backup was removed")
        desired, authorities = await self.prepare()
        # Connections to etcd need its certificates and its pods.
        address = self.obj.metadata.annotations.get(ADDRESS_ANNOTATION)
        endpoint = await self.backend.allocate(self.key, desired, authorities, address)
        await self.backend.observe(self.key, endpoint, desired)
        etcd = partial(self.backend.etcd, self.key)
        data = ControlPlaneData.of(self.obj, desired, authorities, etcd)
        return await BackupJob(self.ctx, data, backup, self.stores).final(since)

    async def _has_all_writes(self, backup: Manifest) -> bool:
        """Whether no API server has written since a backup. If one has, the phase is repeated."""
        # A former leader's last write can create API servers again.
        remains = await self.backend.remains(self.key)
        async with self.backend.etcd(self.key) as etcd:
            last = await etcd.last_revision()
            is_last = backup.revision == last or await _only_expired(etcd, backup.revision, last)
        return is_last and not remains.clients


async def _only_expired(etcd: EtcdApi, after: int, last: int) -> bool:
    """Whether etcd itself made all changes between two revisions, as events expire."""
    async with aclosing(etcd.changes(after + 1)) as lists:
        async for changes in lists:
            if not all(map(_is_expired, changes)):
                return False
            if changes[-1].revision >= last:
                return True
    return False


def _is_expired(change: Change) -> bool:
    return change.value is None and b64decode(change.key).startswith(_EXPIRING)


@dataclass(frozen=True, slots=True)
class MoveCheck:
    """Whether a control plane may move."""

    conditions: tuple[ConditionSpec, ...] = ()
    accepted: str | None = None
    """The accepted request."""
    next: datetime | None = None
    """When to look again."""


async def check_move(ctx: Context, situation: Situation) -> MoveCheck:
    """Check whether a control plane may move. On processes, nothing can."""
    obj, desired, backend = situation.obj, situation.desired, situation.backend
    if not isinstance(backend, MovingBackend):
        return MoveCheck()
    try:
        request = move_request(obj, desired.now)
    except InvalidSpecError as error:
        return MoveCheck((not_requested(error),))
    if not request.valid:
        return MoveCheck((not_requested(),), next=request.next)
    named = user_objects(obj.spec)
    found = await asyncio.gather(
        *(ctx.client.find(_KINDS[kind], name, obj.namespace) for kind, name in named)
    )
    staying = [
        f"{kind} {name}"
        for (kind, name), each in zip(named, found, strict=True)
        if each is None or MOVE_LABEL not in each.metadata.labels
    ]
    hosts = await backend.own_hosts(situation.key)
    condition = movable(
        obj,
        desired,
        situation.observed,
        host=situation.endpoint.host,
        own_hosts=hosts,
        staying=staying,
    )
    return MoveCheck((condition,), accepted_move(obj, condition), request.next)


async def abandon_move(ctx: Context, obj: CapelinControlPlane) -> None:
    """Continue in this management cluster, where the pause of a move has ended.

    Raises:
        Conflict: another client has changed the object.
    """
    await _annotate(ctx.client, obj, ABANDONING)
    ctx.event(obj, "Normal", "MoveAbandoned", "the control plane continues here, with its data")


async def _annotate(
    client: Client, obj: CapelinControlPlane, annotations: Mapping[str, str | None]
) -> None:
    """Change annotations in one write, unless another client has changed the object."""
    version = obj.metadata.resource_version
    patch = {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}}
    written = await client.patch(CapelinControlPlane, obj.name, obj.namespace, patch)
    obj.metadata = written.metadata
