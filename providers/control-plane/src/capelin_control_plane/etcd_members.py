"""The members of an etcd cluster: why one ends, and how another takes its place in the list.

A member is removed from its cluster and added as a new one, which copies the data of the others.
The cluster's own list of members tells how far a replacement came, also after a crash.
"""

import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

_TIMEOUT_SECONDS = 5.0
_CORRUPTION = re.compile(
    r"crc mismatch|cannot be repaired|corrupt|checksum error|invalid database|freelist"
    r"|page expected to be|failed to recover|failed to (read|load|open|find) .*(wal|snapshot)"
    # The last: the log has nothing at its beginning, where the member's own id stands.
    r"|max entry size limit exceeded|cannot use none as id",
    re.IGNORECASE,
)


_DATA_LOSS = re.compile(
    r"tocommit\(\d+\) is out of range|has already been bootstrapped|been permanently removed"
    r"|failed to find (local )?member|member count is unequal",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member in its cluster's list."""

    id: str
    peer_url: str
    started: bool
    """Whether it has ever run. One that was only just added has not."""


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove the member that lost its data."""

    id: str


@dataclass(frozen=True, slots=True)
class AddMember:
    """Add the member again, as a new one."""

    peer_url: str


def next_membership_change(
    peer_url: str, members: Sequence[Member]
) -> RemoveMember | AddMember | None:
    """What to change so that a member can join as a new one; None if it can."""
    listed = next((member for member in members if member.peer_url == peer_url), None)
    if listed is None:
        return AddMember(peer_url)
    return RemoveMember(listed.id) if listed.started else None


def is_corruption(failure: str) -> bool:
    """Whether a member ended because it cannot read its data."""
    # A flag may have such a word in its name, and be what etcd complains about.
    return "flag" not in failure and _CORRUPTION.search(failure) is not None


def is_data_loss(failure: str) -> bool:
    """Whether a member ended because its cluster remembers more of it than it does itself."""
    return _DATA_LOSS.search(failure) is not None


class MembershipError(Exception):
    """etcd does not answer, or refuses a change of its members."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member says of itself."""

    raft_index: int
    """How much of the cluster's history it has."""
    has_leader: bool
    """Whether it belongs to a quorum."""


@dataclass(frozen=True, slots=True)
class EtcdApi:
    """The API of one member, about its cluster. Each method may raise MembershipError."""

    session: aiohttp.ClientSession
    url: str

    async def members(self) -> list[Member]:
        """The members that the cluster has."""
        listed = await self._post("cluster/member/list", {})
        return [_member(member) for member in listed["members"]]

    async def add_member(self, peer_url: str) -> None:
        """Have the cluster expect a new member."""
        await self._post("cluster/member/add", {"peerURLs": [peer_url]})

    async def remove_member(self, id_: str) -> None:
        """Remove a member, which need not run."""
        await self._post("cluster/member/remove", {"ID": id_})

    async def move_member(self, id_: str, peer_url: str) -> None:
        """Change where the others reach a member."""
        await self._post("cluster/member/update", {"ID": id_, "peerURLs": [peer_url]})

    async def status(self) -> MemberStatus:
        """The state of the member itself. A member that never had a leader does not answer."""
        status = await self._post("maintenance/status", {})
        return MemberStatus(int(status["raftIndex"]), int(status.get("leader", 0)) != 0)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self.url}/v3/{path}"
        try:
            async with self.session.post(url, json=body) as response:
                content: dict[str, Any] = await response.json(content_type=None)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise MembershipError(f"{url} does not answer") from error
        if response.status != 200:
            raise MembershipError(f"{url}: {content.get('message', response.status)}")
        return content


@asynccontextmanager
async def connect(url: str, trust: ssl.SSLContext) -> AsyncGenerator[EtcdApi]:
    """The API of a member, with the certificates of a client of etcd."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
    ) as session:
        yield EtcdApi(session, url)


async def make_room(url: str, trust: ssl.SSLContext, peer_url: str) -> None:
    """Have a cluster expect a new member in place of a lost one.

    Args:
        url: Where a member that is ready answers clients.
        trust: The certificates of a client of etcd.
        peer_url: The peer URL of the lost member, and of the new one.

    Raises:
        MembershipError: the member that we ask does not do it.
    """
    async with connect(url, trust) as api:
        while True:
            match next_membership_change(peer_url, await api.members()):
                case RemoveMember(id):
                    await api.remove_member(id)
                case AddMember(address):
                    await api.add_member(address)
                case None:
                    return


def _member(listed: Mapping[str, Any]) -> Member:
    return Member(listed["ID"], listed["peerURLs"][0], bool(listed.get("name")))
