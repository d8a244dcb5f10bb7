"""Carries out the changes of etcd's members that the rules decide, on every backend.

A backend starts members and opens connections to them. The cluster's own list of members shows how
far a change came, so another provider can continue after a crash at any point.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.etcd.api import EtcdApi, MembershipError
from capelin_control_plane.etcd.rules import (
    MOST_MEMBERS,
    AddLearner,
    AddMember,
    MemberChange,
    Membership,
    MoveLeadership,
    Promote,
    Remove,
    RemoveMember,
    Replacement,
    StartLearner,
    next_membership_change,
)


class Members(Protocol):
    """The members of one control plane on a backend."""

    @property
    def ready(self) -> Sequence[int]:
        """The indexes of the members that are ready."""
        ...

    def open(self, index: int) -> AbstractAsyncContextManager[EtcdApi]:
        """A connection to a member."""
        ...

    def peer_url(self, index: int) -> str:
        """Where the other members reach a member."""
        ...

    async def start_learner(self, index: int, present: Membership) -> None:
        """Delete the data of an earlier member, and start the one that the cluster expects."""
        ...

    async def start_again(self, replacement: Replacement, listed: Collection[int]) -> None:
        """Start a member without data in place of a lost one. The cluster lists these members."""
        ...


async def read_members(members: Members) -> Membership | None:
    """The cluster's own list of its members, and its leader. None if no member is ready.

    Raises:
        Blocked: no ready member returns a list that the provider understands.
    """
    failure: Exception | None = None
    for index in members.ready:
        try:
            async with members.open(index) as api:
                return await _membership(api, members)
        except (OSError, MembershipError) as error:
            failure = error
    if failure is not None:
        raise Blocked(
            Reason.ETCD_RESIZING, f"etcd does not list its members: {failure}"
        ) from failure
    return None


async def _membership(api: EtcdApi, members: Members) -> Membership:
    listed = await api.members()
    leader = (await api.status()).leader
    indexes = {members.peer_url(index): index for index in range(MOST_MEMBERS)}
    unknown = [member.peer_url for member in listed if member.peer_url not in indexes]
    if unknown:
        raise MembershipError(f"etcd lists a member at {unknown[0]}")
    leading = (indexes[member.peer_url] for member in listed if member.id == leader)
    return Membership(
        members={indexes[member.peer_url]: member for member in listed},
        leader=next(leading, None),
    )


async def change_members(members: Members, change: MemberChange, present: Membership) -> None:
    """Change the cluster's list of members or its leader, or start a member of the list.

    Raises:
        Blocked: etcd refuses it now, for example because a learner has not caught up.
    """
    if isinstance(change, StartLearner):
        await members.start_learner(change.index, present)
        return
    async with _through(members, change, present) as api:
        match change:
            case AddLearner(index):
                await api.add_learner(members.peer_url(index))
            case Promote(index):
                await api.promote_member(present.members[index].id)
            case Remove(index):
                await api.remove_member(present.members[index].id)
            case MoveLeadership(_, to):
                await api.move_leadership(present.members[to].id)


@asynccontextmanager
async def _through(
    members: Members, change: AddLearner | Promote | Remove | MoveLeadership, present: Membership
) -> AsyncGenerator[EtcdApi]:
    """A member that carries out a change: only the leader itself moves leadership."""
    voters = (
        index
        for index in members.ready
        if index in present.members and not present.members[index].learner
    )
    if isinstance(change, MoveLeadership):
        through = change.leader
    else:
        through = next((index for index in voters if index != change.index), None)
    if through is None:
        raise Blocked(Reason.ETCD_RESIZING, "no other etcd member is ready")
    try:
        async with members.open(through) as api:
            yield api
    except (OSError, MembershipError) as error:
        raise Blocked(Reason.ETCD_RESIZING, f"etcd refuses a change: {error}") from error


async def replace_member(members: Members, replacement: Replacement) -> None:
    """Replace a member that lost its data: the new one copies the data of the others.

    Raises:
        Blocked: etcd does not answer or refuses the change.
    """
    index = replacement.index
    try:
        async with members.open(replacement.through) as api:
            listed = await _make_room(api, members.peer_url(index))
    except MembershipError as error:
        raise Blocked(
            Reason.ETCD_MEMBER_LOST, f"etcd-{index} cannot be replaced yet: {error}"
        ) from error
    others = [other for other in range(MOST_MEMBERS) if members.peer_url(other) in listed]
    await members.start_again(replacement, others)


async def _make_room(api: EtcdApi, peer_url: str) -> set[str]:
    """Have the cluster expect a new member in place of a lost one. Returns all peer URLs."""
    while True:
        listed = await api.members()
        match next_membership_change(peer_url, listed):
            case RemoveMember(id):
                await api.remove_member(id)
            case AddMember(address):
                await api.add_member(address)
            case None:
                return {member.peer_url for member in listed}
