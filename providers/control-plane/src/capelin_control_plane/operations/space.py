"""Gives etcd space: compacts it, and defragments its members."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from capelin.contract import ConditionSpec
from capelin.controller import Context

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.etcd.api import EtcdApi, MembershipError
from capelin_control_plane.etcd.rules import MoveLeadership
from capelin_control_plane.etcd.space import (
    Compact,
    Defragment,
    Disarm,
    MemberSpace,
    next_space_step,
)
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run, key_of

ETCD_SPACE_AVAILABLE: Final = "EtcdSpaceAvailable"
"""Whether etcd accepts writes, and has room for more."""
_PERIOD: Final = timedelta(minutes=4)
_MOST_STEPS: Final = 32
_MEBIBYTE: Final = 2**20

OpenMember = Callable[[int], AbstractAsyncContextManager[EtcdApi]]
"""Opens a connection to the member of an index."""


class SpaceTasks(Engine[ConditionSpec | None]):
    """Checks the databases of all control planes regularly. etcd itself is the only state."""

    # etcd's other conditions show that it does not answer. The next check tries again.
    operation = Declaration(
        name="the check of the space",
        excluded_as=Operation.SPACE,
        expected=(MembershipError, OSError),
        longest=timedelta(minutes=30),
        is_check=True,
    )

    def reconcile(
        self,
        ctx: Context,
        obj: CapelinControlPlane,
        size: int,
        member: OpenMember,
        *,
        lock: asyncio.Lock,
        waits: bool = False,
    ) -> ConditionSpec | None:
        """Check its etcd if the last check was minutes ago. Returns the last result.

        Args:
            ctx: The context of the reconcile.
            obj: The control plane.
            size: The number of members.
            member: Opens a connection to one of them.
            lock: Held while a snapshot is read: the member would hang until its end.
            waits: Whether it waits for another operation, unless etcd rejects writes.
        """
        run, now = self.last(key_of(obj)), ctx.now()
        if run is None or (not run.is_running and abs(now - run.begun) >= _PERIOD):
            job = _Job(ctx, obj, size, member, lock, waits)
            run = self.start(ctx, obj, Run(None if run is None else run.result, now), job.run)
        return run.result


@dataclass(frozen=True, slots=True)
class _Job:
    ctx: Context
    obj: CapelinControlPlane
    size: int
    member: OpenMember
    lock: asyncio.Lock
    waits: bool

    async def run(self) -> ConditionSpec:
        compacted = False
        for _ in range(_MOST_STEPS):
            members, alarms, revision = await self._observe()
            step = next_space_step(members, self.size, alarm=bool(alarms), compacted=compacted)
            if self.waits and not alarms:
                step = None
            match step:
                case Compact():
                    self._warn("etcd reached its quota and rejects writes: compacting it")
                    compacted = True
                    async with self.member(members[0].index) as etcd:
                        await etcd.compact(revision)
                case Defragment(index):
                    async with self.lock, self.member(index) as etcd:
                        await etcd.defragment()
                case MoveLeadership(leader, to):
                    target = next(member.id for member in members if member.index == to)
                    async with self.member(leader) as etcd:
                        await etcd.move_leadership(target)
                case Disarm():
                    async with self.member(members[0].index) as etcd:
                        for alarm in alarms:
                            await etcd.accept_writes(alarm)
                    self._warn("etcd has space again and accepts writes")
                case None:
                    return space_available(members, alarm=bool(alarms))
        raise MembershipError("its space changes faster than it is freed")

    async def _observe(self) -> tuple[list[MemberSpace], list[str], int]:
        """The members that answer, those that reached their quota, and the newest revision."""
        members: list[MemberSpace] = []
        alarms: list[str] = []
        revision, failure = 0, None
        for index in range(self.size):
            try:
                async with self.member(index) as etcd:
                    status = await etcd.status()
                    alarms = alarms or await etcd.members_without_space()
            except (MembershipError, OSError) as error:
                failure = error
                continue
            revision = max(revision, status.revision)
            members.append(
                MemberSpace(
                    index=index,
                    id=status.id,
                    size=status.size,
                    used=status.used,
                    quota=status.quota,
                    leader=status.leader == status.id,
                )
            )
        if not members:
            raise MembershipError(f"no etcd member answers: {failure}")
        return members, alarms, revision

    def _warn(self, message: str) -> None:
        self.ctx.event(self.obj, "Warning", Reason.ETCD_OUT_OF_SPACE, message)


def space_available(members: list[MemberSpace], *, alarm: bool) -> ConditionSpec:
    """The condition of etcd's space."""
    fullest = max(members, key=lambda member: member.used / max(member.quota, 1))
    quota = round(fullest.quota / _MEBIBYTE)
    if alarm:
        return ConditionSpec(
            ETCD_SPACE_AVAILABLE,
            "False",
            Reason.ETCD_OUT_OF_SPACE,
            f"etcd reached its quota of {quota} MiB and rejects writes: delete objects, or raise"
            " quota-backend-bytes in spec.etcd.extraArgs",
        )
    if any(member.is_almost_full for member in members):
        return ConditionSpec(
            ETCD_SPACE_AVAILABLE,
            "False",
            Reason.ETCD_SPACE_LOW,
            f"more than 90 percent of etcd's quota of {quota} MiB is used: delete objects, or raise"
            " quota-backend-bytes in spec.etcd.extraArgs",
        )
    return ConditionSpec(ETCD_SPACE_AVAILABLE, "True", ETCD_SPACE_AVAILABLE)
