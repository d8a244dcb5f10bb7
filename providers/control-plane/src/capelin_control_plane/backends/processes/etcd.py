"""etcd members that lost their data: how they are detected, and replaced from the others.

A member is removed from its cluster and added as a new one, which copies the data of the others.
The cluster's own list of members tells how far a replacement came, also after a crash.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from capelin.client import tls_context
from capelin.embedded.processes import write_private
from capelin.provider import Blocked

from capelin_control_plane.backends.processes.components import etcd_peer_url, etcd_port
from capelin_control_plane.backends.processes.pki_files import read_key_pair
from capelin_control_plane.backends.processes.state_dir import StateDir

_TIMEOUT_SECONDS = 5.0
_CORRUPTION = re.compile(
    r"crc mismatch|cannot be repaired|corrupt|checksum error|invalid database|freelist"
    r"|page expected to be|failed to recover|failed to (read|load|open|find) .*(wal|snapshot)"
    r"|max entry size limit exceeded",
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


def mark_joined(state_dir: StateDir, index: int) -> None:
    """Note that a member has joined its cluster: from now on, no data means that it was lost."""
    if has_data(state_dir, index) and not has_joined(state_dir, index):
        write_private(_mark(state_dir, index), b"")


def unmark_joined(state_dir: StateDir, index: int) -> None:
    """Let a member join as a new one."""
    _mark(state_dir, index).unlink(missing_ok=True)


def has_joined(state_dir: StateDir, index: int) -> bool:
    """Whether a member was ever part of its cluster."""
    return _mark(state_dir, index).exists()


def has_data(state_dir: StateDir, index: int) -> bool:
    """Whether a member has a write-ahead log. etcd decides by the same whether it begins anew."""
    return any(state_dir.etcd_data(index).glob("member/wal/*.wal"))


def is_lost(state_dir: StateDir, index: int) -> bool:
    """Whether a member had data that is gone."""
    return has_joined(state_dir, index) and not has_data(state_dir, index)


def is_corruption(failure: str) -> bool:
    """Whether a member ended because it cannot read its data."""
    # A flag may have such a word in its name, and be what etcd complains about.
    return "flag" not in failure and _CORRUPTION.search(failure) is not None


def set_aside(state_dir: StateDir, index: int, now: datetime) -> Path:
    """Move a member's data away. It is never deleted: more may be saved from it."""
    data = state_dir.etcd_data(index)
    aside = data.with_name(f"{data.name}.corrupt-{now:%Y%m%dT%H%M%SZ}")
    return data.rename(aside)


def start_refusal(state_dir: StateDir, index: int) -> str:
    """Why a member must not start: without its data it would begin an empty cluster."""
    if not is_lost(state_dir, index):
        return ""
    return (
        f"lost its data: {state_dir.etcd_data(index)} is gone. It is replaced from the others as"
        " soon as more than half of all members are ready; if there are none, restore the folder"
        " from a backup"
    )


async def make_room(state_dir: StateDir, index: int, *, through: int) -> None:
    """Have the cluster expect a new member with the index of a lost one.

    Raises:
        Blocked: the member `through` which we ask does not do it.
    """
    url = f"https://{state_dir.address}:{etcd_port(through)}/v3/cluster/member"
    peer_url = etcd_peer_url(state_dir, index)
    try:
        async with _session(state_dir) as session:
            while True:
                listed = await _post(session, f"{url}/list", {})
                members = [_member(member) for member in listed["members"]]
                match next_membership_change(peer_url, members):
                    case RemoveMember(id):
                        await _post(session, f"{url}/remove", {"ID": id})
                    case AddMember(address):
                        await _post(session, f"{url}/add", {"peerURLs": [address]})
                    case None:
                        return
    except _RequestError as error:
        raise Blocked("EtcdMemberLost", f"etcd-{index} cannot be replaced yet: {error}") from error


class _RequestError(Exception):
    """etcd does not answer, or refuses a request."""


def _mark(state_dir: StateDir, index: int) -> Path:
    return state_dir.path / f"etcd-{index}.joined"


def _member(listed: Mapping[str, Any]) -> Member:
    return Member(listed["ID"], listed["peerURLs"][0], bool(listed.get("name")))


@asynccontextmanager
async def _session(state_dir: StateDir) -> AsyncGenerator[aiohttp.ClientSession]:
    pair = read_key_pair(state_dir.certificate("apiserver-etcd-client"))
    trust = tls_context(
        state_dir.ca("etcd").read_bytes(),
        pair.certificate_pem if pair else None,
        pair.private_key_pem if pair else None,
    )
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
    ) as session:
        yield session


async def _post(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        async with session.post(url, json=body) as response:
            content: dict[str, Any] = await response.json(content_type=None)
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise _RequestError(f"{url} does not answer") from error
    if response.status != 200:
        raise _RequestError(f"{url}: {content.get('message', response.status)}")
    return content
