"""Changes of etcd's members on pods: through learners, and with the leader last.

`capelin_control_plane.etcd` decides. This module reads and changes etcd's own list of members.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.pods.etcd_state import peer_url
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.etcd.api import (
    EtcdApi,
    MembershipError,
    change_members,
    read_membership,
)
from capelin_control_plane.etcd.rules import (
    AddLearner,
    Member,
    Membership,
    MoveLeadership,
    PlannedMember,
    Promote,
    Promoted,
    Remove,
    Removed,
    StartLearner,
    next_leadership,
    next_resizing,
    next_restarts,
)

OpenMember = Callable[[int], AbstractAsyncContextManager[EtcdApi]]
"""Opens a connection to the member of an index."""

Change = AddLearner | Promote | Remove | MoveLeadership | StartLearner | Removed
"""A step of a resize: a change of etcd's list, or of the number of pods."""


def next_change(
    members: Sequence[Member],
    membership: Membership,
    *,
    started: Collection[int],
    planned: int,
    size: int,
    may_shrink: bool,
) -> Change | None:
    """The next step to another number of members.

    Args:
        members: The members that run.
        membership: The cluster's own list.
        started: The indexes of the members whose container has started. A learner is never ready.
        planned: How many members the StatefulSet runs.
        size: The desired number.
        may_shrink: Whether no API server uses the members that leave.
    """
    pods = {member.index: member for member in members}
    learners = {index for index, member in membership.members.items() if member.learner}
    ready = {index for index, member in pods.items() if member.ready} | (learners & {*started})
    lost = {index for index, member in pods.items() if member.loss is not None}
    plan = {
        index: PlannedMember(ready=index in ready, lost=index in lost) for index in range(planned)
    }
    change = next_resizing(plan, membership, size, may_shrink=may_shrink)
    match change:
        case Promoted():
            raise AssertionError("a pod does not remember that its member was a learner")
        case Removed(index) if index != planned - 1:
            # A StatefulSet stops only its last pod. This member lost its place: it is replaced.
            return None
        case _:
            return change


@dataclass(frozen=True, slots=True)
class Restarts:
    """The members to restart now, after leadership has moved."""

    members: tuple[int, ...]
    move: MoveLeadership | None = None


def ordered_restarts(
    members: Collection[Member], membership: Membership | None, size: int
) -> Restarts:
    """The members to restart now. The leader is the last, and another one leads before."""
    leader = membership and membership.leader
    known = [replace(member, leader=member.index == leader) for member in members]
    indexes = next_restarts(known, size)
    return Restarts(indexes, next_leadership(known, indexes))


@dataclass(frozen=True, slots=True)
class EtcdMembers:
    """etcd's own list of the members of a control plane."""

    names: Names
    ready: tuple[int, ...]
    open: OpenMember

    async def read(self) -> Membership | None:
        """The list. None if no member is ready.

        Raises:
            Blocked: no ready member returns it.
        """
        failure: Exception | None = None
        for index in self.ready:
            try:
                async with self.open(index) as api:
                    return await read_membership(api, partial(peer_url, self.names))
            except (OSError, MembershipError) as error:
                failure = error
        if failure is not None:
            raise Blocked(
                Reason.ETCD_RESIZING, f"etcd does not list its members: {failure}"
            ) from failure
        return None

    async def change(
        self, change: AddLearner | Promote | Remove | MoveLeadership, present: Membership
    ) -> None:
        """Change the list, or the leader.

        Raises:
            Blocked: etcd refuses it now, for example because a learner has not caught up.
        """
        async with self._through(change, present) as api:
            await change_members(api, change, present, partial(peer_url, self.names))

    @asynccontextmanager
    async def _through(
        self, change: AddLearner | Promote | Remove | MoveLeadership, present: Membership
    ) -> AsyncGenerator[EtcdApi]:
        """A member that carries out a change: only the leader itself moves leadership."""
        voters = [
            index
            for index in self.ready
            if index in present.members and not present.members[index].learner
        ]
        match change:
            case MoveLeadership(leader, _):
                through = leader
            case _:
                through = next((index for index in voters if index != change.index), None)
        if through is None:
            raise Blocked(Reason.ETCD_RESIZING, "no other etcd member is ready")
        try:
            async with self.open(through) as api:
                yield api
        except (OSError, MembershipError) as error:
            raise Blocked(Reason.ETCD_RESIZING, f"etcd refuses a change: {error}") from error
