"""The rules of etcd clusters on every backend: quorum, loss, replacement, restarts. Pure.

A backend describes its members, and carries out the step that is decided here.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

MOST_MEMBERS = 5
"""How many members a cluster has at most."""

ClusterState = Literal["new", "existing"]
"""Whether a member without data begins a new cluster, or joins one that exists."""

_CORRUPTION = re.compile(
    r"crc mismatch|cannot be repaired|corrupt|checksum error|invalid database|freelist"
    r"|page expected to be|failed to recover|failed to (read|load|open|find) .*(wal|snapshot)"
    # The last: the log has nothing at its beginning, where the member's own id stands.
    r"|max entry size limit exceeded|cannot use none as id",
    re.IGNORECASE,
)
_FORGOTTEN = re.compile(
    r"tocommit\(\d+\) is out of range|has already been bootstrapped|been permanently removed"
    r"|failed to find (local )?member|member count is unequal",
    re.IGNORECASE,
)


class Loss(Enum):
    """Why a member cannot continue with its own data."""

    GONE = "gone"
    """It had data, and has none."""
    UNUSABLE = "unusable"
    """It cannot read its data, or its cluster remembers more of it than the data does."""
    DISPLACED = "displaced"
    """Its data is on a lost node, for longer than the user allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An observed member that runs, or should."""

    index: int
    ready: bool
    outdated: bool = False
    """Whether a restart would give it other settings."""
    recovering: bool = False
    """Whether it was ready before, has not failed since, and may become ready by itself."""
    leader: bool = False
    """Whether it leads the cluster. False also if the leader is not known."""
    loss: Loss | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replace a member with a new one, which copies the data of the others."""

    index: int
    through: int
    """A ready member, which changes the cluster's list of members."""
    loss: Loss


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member in its cluster's list."""

    id: str
    peer_url: str
    started: bool
    """Whether it has ever run. One that was only just added has not."""
    learner: bool = False
    """Whether it copies the data and has no vote yet."""


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove the member that lost its data."""

    id: str


@dataclass(frozen=True, slots=True)
class AddMember:
    """Add the member again, as a new one."""

    peer_url: str


@dataclass(frozen=True, slots=True)
class MoveLeadership:
    """Have another member lead, so that no election interrupts writes."""

    leader: int
    to: int


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Have the cluster expect a member without a vote."""

    index: int


@dataclass(frozen=True, slots=True)
class StartLearner:
    """Start the member that the cluster expects. It has no data of its own."""

    index: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Give a learner a vote. etcd refuses until the learner has caught up."""

    index: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a member from the cluster, running or not."""

    index: int


MemberChange = MoveLeadership | AddLearner | StartLearner | Promote | Remove
"""A change of the cluster's members or of its leader."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """Plan a learner as a full member: it has its vote."""

    index: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Stop a member that the cluster has removed."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A cluster's own list of its members, by index."""

    members: Mapping[int, ListedMember]
    leader: int | None = None
    """None while the members elect one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMember:
    """A member that should run."""

    ready: bool
    learner: bool = False
    """Whether it was started as a learner, and is not planned as a full member yet."""
    lost: bool = False
    """Whether it cannot continue with its own data."""


def quorum(size: int) -> int:
    """How many members of a cluster must be ready for it to serve."""
    return size // 2 + 1


def is_corruption(failure: str) -> bool:
    """Whether a member ended because it cannot read its data."""
    # A flag may have such a word in its name, and be what etcd complains about.
    return "flag" not in failure and _CORRUPTION.search(failure) is not None


def loss_of(failure: str, *, is_gone: bool = False) -> Loss | None:
    """The loss of a member that ended with a message, or whose data is gone."""
    if is_gone:
        return Loss.GONE
    is_forgotten = _FORGOTTEN.search(failure) is not None
    return Loss.UNUSABLE if is_forgotten or is_corruption(failure) else None


def next_replacement(members: Collection[Member], size: int) -> Replacement | None:
    """The lost member to replace now: only while the others have a quorum without it."""
    for loss in Loss:
        for member in sorted(members, key=lambda member: member.index):
            others = {other.index for other in members if other.ready and other != member}
            if member.loss is loss and len(others) >= quorum(size):
                return Replacement(member.index, min(others), loss)
    return None


def next_restarts(members: Collection[Member], size: int) -> tuple[int, ...]:
    """The members to restart now so that they run as desired.

    They restart one at a time, and none that is ready while another is not. A member that is not
    ready may need just this change, and restarting it costs nothing.
    """
    outdated = sorted((member for member in members if member.outdated), key=_failed_first)
    down = [member for member in members if not member.ready]
    if len(down) == len(members) > 1:
        # Without a quorum nothing can be lost, and one member never becomes ready: restart all. But
        # recovering members may already have a quorum that has not been observed yet.
        return tuple(member.index for member in outdated if not member.recovering)
    if down:
        # Wait for one that runs as desired already, unless it can never become ready.
        if any(not member.outdated and member.loss is None for member in down):
            return ()
        return tuple(member.index for member in outdated if not member.ready)[:1]
    is_whole = len(members) == size and all(member.loss is None for member in members)
    return tuple(member.index for member in outdated)[:1] if is_whole else ()


def _failed_first(member: Member) -> tuple[bool, bool, int]:
    # One that recovers may serve already. The leader is last, so that leadership moves once.
    return member.recovering, member.leader, member.index


def next_leadership(
    members: Collection[Member], restarts: Collection[int]
) -> MoveLeadership | None:
    """The leadership transfer before some members restart. None if the leader stays."""
    for leader in members:
        if leader.leader and leader.ready and leader.index in restarts:
            others = [other for other in members if other.ready and other.index not in restarts]
            if others:
                # Not to one that restarts next.
                to = min(others, key=lambda other: (other.outdated, other.index))
                return MoveLeadership(leader.index, to.index)
    return None


def next_resizing(
    planned: Mapping[int, PlannedMember], membership: Membership, size: int, *, may_shrink: bool
) -> MemberChange | Promoted | Removed | None:
    """The next step to another number of members. None if there is none, or it has to wait.

    Members join and leave one at a time, and a quorum is ready throughout. The cluster's own list
    and the plan show the progress, so another provider can continue after a crash at any point.

    Args:
        planned: By index, the members that should run.
        membership: The cluster's list.
        size: The desired number of members. Those with the lowest indexes stay.
        may_shrink: Whether no API server uses the members that leave.
    """
    listed = membership.members
    for index, member in planned.items():
        if index not in listed:
            return Removed(index)
        if member.learner and not listed[index].learner:
            return Promoted(index)
    for index, member in listed.items():
        if member.learner:
            return _next_for_learner(index, member, planned.get(index), size)
    ready = {index for index in listed if index in planned and planned[index].ready}
    wanted = set(range(size))
    # Without a plan, which was lost, a listed member joins again.
    unplanned = wanted & listed.keys() - planned.keys()
    missing = wanted - listed.keys()
    if missing and not unplanned:
        # etcd refuses a new member while another one is down.
        return AddLearner(min(missing)) if len(ready) == len(listed) else None
    surplus = listed.keys() - wanted if may_shrink else set[int]()
    leaving = min(unplanned, default=None) if unplanned else max(surplus, default=None)
    if leaving is None:
        return None
    return _next_removal(leaving, len(listed), ready, membership.leader)


def _next_for_learner(
    index: int, member: ListedMember, planned: PlannedMember | None, size: int
) -> MemberChange | None:
    if index >= size:
        return Remove(index)
    if planned is None:
        # If it has run before, its data may be incomplete. It joins again as a new one.
        return Remove(index) if member.started else StartLearner(index)
    if planned.lost:
        return Remove(index)
    return Promote(index) if planned.ready else None


def _next_removal(
    index: int, size: int, ready: Collection[int], leader: int | None
) -> MemberChange | None:
    staying = {other for other in ready if other != index}
    # A quorum of the present members agrees to the removal. Afterwards one member fewer votes.
    if len(ready) < quorum(size) or len(staying) < quorum(size - 1):
        return None
    return MoveLeadership(index, min(staying)) if leader == index else Remove(index)


def next_cluster_state(
    present: ClusterState | None, ready: Sequence[bool], size: int, *, has_etcd: bool
) -> ClusterState:
    """Whether the cluster has formed. If the state was lost, no empty cluster may start.

    Args:
        present: The state that was stored before.
        ready: For each member that runs, whether it is ready.
        size: The number of members.
        has_etcd: Whether anything of etcd exists.
    """
    if present is None:
        return "existing" if has_etcd else "new"
    return "existing" if len(ready) >= size and all(ready) else present


def next_membership_change(
    peer_url: str, members: Sequence[ListedMember]
) -> RemoveMember | AddMember | None:
    """The next change so that a member can join as a new one. None if it can join now.

    The cluster's own list shows how far a replacement came, also after a crash.
    """
    listed = next((member for member in members if member.peer_url == peer_url), None)
    if listed is None:
        return AddMember(peer_url)
    return RemoveMember(listed.id) if listed.started else None
