"""etcd members that lost their data: found, and replaced from the others.

A member is taken out of its cluster, put in again as a new one, and gets everything from those that
are left. Each step is seen in what the cluster says of its members, so that whoever goes on after a
crash knows how far it came.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from capelin.client import tls_context
from capelin.embedded.processes import write_private

from capelin_control_plane.backends.processes.composition import etcd_port, peer_url
from capelin_control_plane.backends.processes.files import read_leaf
from capelin_control_plane.backends.processes.places import Place

_SECONDS = 5.0


class MemberError(Exception):
    """The members cannot be asked, or cannot be changed now."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its cluster knows it."""

    id: str
    peer_url: str
    started: bool
    """Whether it has ever run; one that was only just put in has not."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take out the member that lost its data."""

    id: str


@dataclass(frozen=True, slots=True)
class Add:
    """Put it in again, as a new one."""

    peer_url: str


def next_change(peer_url: str, members: Sequence[Member]) -> Remove | Add | None:
    """What to change so that a member can join anew; nothing when it can."""
    known = next((one for one in members if one.peer_url == peer_url), None)
    if known is None:
        return Add(peer_url)
    return Remove(known.id) if known.started else None


def remember(place: Place, slot: int) -> None:
    """Note that a member has joined its cluster: from now on, no data means that it was lost."""
    if has_data(place, slot) and not has_joined(place, slot):
        write_private(_joined(place, slot), b"")


def forget(place: Place, slot: int) -> None:
    """Let a member join anew."""
    _joined(place, slot).unlink(missing_ok=True)


def has_joined(place: Place, slot: int) -> bool:
    """Whether a member was ever part of its cluster."""
    return _joined(place, slot).exists()


def has_data(place: Place, slot: int) -> bool:
    """Whether a member has what it needs to go on from; etcd looks for the same."""
    return any(place.etcd(slot).glob("member/wal/*.wal"))


def is_lost(place: Place, slot: int) -> bool:
    """Whether a member had data that is not there any more."""
    return has_joined(place, slot) and not has_data(place, slot)


def why_not_start(place: Place, slot: int) -> str:
    """Why a member must not be started: without its data it would begin an empty cluster."""
    if not is_lost(place, slot):
        return ""
    return (
        f"lost its data: {place.etcd(slot)} is gone. It is replaced from the others as soon"
        " as more than half of all members are up; where there are none, bring the folder back"
        " from a backup"
    )


def to_replace(place: Place, slots: int, ready: Collection[int]) -> int | None:
    """The lost member to replace now, if there is one and the others can do without it."""
    for slot in range(slots):
        others = sum(one != slot for one in ready)
        if is_lost(place, slot) and others > slots // 2:
            return slot
    return None


async def make_room(place: Place, slot: int, through: int) -> None:
    """See to it that the cluster waits for a new member in a slot.

    Raises:
        MemberError: the member `through` which we asked does not do it.
    """
    async with _session(place) as session:
        url = f"https://{place.address}:{etcd_port(through)}/v3/cluster/member"
        while True:
            listed = await _ask(session, f"{url}/list", {})
            match next_change(peer_url(place, slot), [_read(one) for one in listed["members"]]):
                case Remove(id):
                    await _ask(session, f"{url}/remove", {"ID": id})
                case Add(address):
                    await _ask(session, f"{url}/add", {"peerURLs": [address]})
                case None:
                    return


def _joined(place: Place, slot: int) -> Path:
    return place.folder / f"etcd-{slot}.joined"


def _read(member: Mapping[str, Any]) -> Member:
    return Member(member["ID"], member["peerURLs"][0], bool(member.get("name")))


@asynccontextmanager
async def _session(place: Place) -> AsyncGenerator[aiohttp.ClientSession]:
    leaf = read_leaf(place.leaf("apiserver-etcd-client"))
    authority = place.authority("etcd").read_bytes()
    trust = tls_context(
        authority, leaf.certificate_pem if leaf else None, leaf.private_key_pem if leaf else None
    )
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=_SECONDS),
    ) as session:
        yield session


async def _ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        async with session.post(url, json=body) as answer:
            said: dict[str, Any] = await answer.json(content_type=None)
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise MemberError(f"{url} does not answer") from error
    if answer.status != 200:
        raise MemberError(f"{url} says: {said.get('message', answer.status)}")
    return said
