"""When etcd compacts and defragments its database, and how it leaves the alarm NOSPACE. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from capelin_control_plane.etcd.rules import MoveLeadership

_MEBIBYTE: Final = 2**20
_WORTHWHILE_BYTES: Final = 100 * _MEBIBYTE
_WORTHWHILE_SHARE: Final = 0.45
"""A member is slower while it defragments: less unused space is not worth it."""
_FREE_SHARE: Final = 0.1
"""The share of the quota that has to be free before etcd accepts writes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpace:
    """The database of a member."""

    index: int
    id: str
    size: int
    """Bytes of the file. It shrinks only if the member defragments."""
    used: int
    """Bytes of the file that have data."""
    quota: int
    """At this size, the cluster raises an alarm and rejects writes."""
    leader: bool = False

    @property
    def is_almost_full(self) -> bool:
        """Whether the data itself needs almost the whole quota."""
        return self.used > self.quota * (1 - _FREE_SHARE)

    @property
    def is_oversized(self) -> bool:
        """Whether the file needs almost the whole quota."""
        return self.size > self.quota * (1 - _FREE_SHARE)

    @property
    def is_fragmented(self) -> bool:
        """Whether so much of the file is unused that a defragmentation is worthwhile."""
        unused = self.size - self.used
        return unused > max(_WORTHWHILE_BYTES, self.size * _WORTHWHILE_SHARE)


@dataclass(frozen=True, slots=True)
class Compact:
    """Forget the history up to the present revision.

    kube-apiserver does so every five minutes, but not during the alarm, because it writes first.
    """


@dataclass(frozen=True, slots=True)
class Defragment:
    """Write the database of a member again, without its unused space."""

    index: int


@dataclass(frozen=True, slots=True)
class Disarm:
    """Accept writes again."""


SpaceStep = Compact | Defragment | Disarm | MoveLeadership


def next_space_step(
    members: Collection[MemberSpace], size: int, *, alarm: bool, compacted: bool
) -> SpaceStep | None:
    """The next step to more space. None if nothing is to be done, or nothing would help.

    Each step can be taken again, so another provider can begin from the start after a crash.

    Args:
        members: The members that answer.
        size: The number of members of the cluster.
        alarm: Whether etcd rejects writes because a member reached its quota.
        compacted: Whether this pass has compacted already.
    """
    if alarm and not compacted:
        return Compact()
    if len(members) < size and not alarm:
        # A member that is down would be a second one that does not answer. During the alarm,
        # etcd rejects writes anyway.
        return None
    for member in sorted(members, key=lambda member: (member.leader, member.index)):
        if (alarm and member.is_oversized and not member.is_almost_full) or (
            # The only member serves nothing meanwhile.
            size > 1 and member.is_fragmented
        ):
            others = [other.index for other in members if other is not member]
            if member.leader and others:
                return MoveLeadership(member.index, min(others))
            return Defragment(member.index)
    is_spacious = not any(member.is_oversized for member in members)
    return Disarm() if alarm and is_spacious else None
