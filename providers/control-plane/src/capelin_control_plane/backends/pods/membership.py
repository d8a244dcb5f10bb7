"""Changes of etcd's members on pods: through learners, and with the leader last.

`capelin_control_plane.etcd` decides. This module has the state that outlives pods, and connections.
The provider reaches a member through the API server like kubectl port-forward, also from outside of
the management cluster, and network policies need no exception for it.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import aiohttp
from capelin.api import Unstructured
from capelin.client import Config, Credentials

from capelin_control_plane.backends.pods.names import ETCD_PEER_PORT, Names, fields_at, value_at
from capelin_control_plane.etcd.rules import (
    AddLearner,
    ClusterState,
    Member,
    Membership,
    MoveLeadership,
    PlannedMember,
    Promote,
    Promoted,
    Remove,
    Removed,
    StartLearner,
    next_cluster_state,
    next_leadership,
    next_resizing,
    next_restarts,
)

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
# The first message of each channel repeats the port.
_PORT_BYTES = 2
_BUFFER = 64 * 1024
STATE_KEY = "initial-cluster-state"
MEMBERS_KEY = "initial-cluster"
RESTORED_KEY = "restored"
_VOTERS_KEY = "voters"

_MEMBER = re.compile(r"-(\d+)=")
Change = AddLearner | Promote | Remove | MoveLeadership | StartLearner | Removed
"""A step of a resize: a change of etcd's list, or of the number of pods."""


@asynccontextmanager
async def forwarded_port(
    config: Config, namespace: str, pod: str, port: int
) -> AsyncGenerator[int]:
    """The port of the loopback address that leads to a pod's, as long as the block lasts."""
    proof = await Credentials(config).proof()
    server = config.server
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
    url = f"{server.address.rstrip('/')}{path}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=proof.tls or True), headers=list(proof.headers)
    ) as session:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with session.ws_connect(
                    url,
                    protocols=(_PROTOCOL,),
                    proxy=server.proxy,
                    server_hostname=server.tls_server_name,
                ) as socket:
                    await _first_to_end(_send(reader, socket), _receive(socket, writer))
            except (aiohttp.ClientError, OSError):
                pass
            finally:
                writer.close()

        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(forward(reader, writer))
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        # Since Python 3.12, the end of this block waits for all connections.
        async with listener:
            try:
                yield listener.sockets[0].getsockname()[1]
            finally:
                listener.close()
                await _cancel(connections)


async def _first_to_end(*directions: Coroutine[None, None, None]) -> None:
    """Run both directions of a connection until one of them ends, which ends the other."""
    tasks = {asyncio.create_task(direction) for direction in directions}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel(tasks)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_BUFFER):
        await socket.send_bytes(bytes([_DATA]) + data)


async def _receive(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    skipped = {_DATA: _PORT_BYTES, _ERROR: _PORT_BYTES}
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            return
        channel, content = message.data[0], message.data[1:]
        skip = min(skipped.get(channel, 0), len(content))
        if skip:
            skipped[channel] -= skip
            content = content[skip:]
        if channel == _ERROR and content:
            return
        if channel == _DATA and content:
            writer.write(content)
            await writer.drain()


@dataclass(frozen=True, slots=True)
class EtcdState:
    """The state of etcd's cluster that outlives its pods."""

    cluster: ClusterState
    """Whether it has formed. If it has, a member without data joins it."""
    members: tuple[int, ...]
    """The members that the cluster has. One that joins must start with the same list."""
    voters: int | None
    """How many of them vote. None if the provider has to read etcd's own list."""
    restored: str | None = None
    """The restore whose data is in use. Without it, members use the folder of their first data."""

    @classmethod
    def read(cls, config_map: Unstructured | None) -> "EtcdState | None":
        """The stored state. None if it does not exist any more, or is damaged."""
        data = fields_at(config_map, "data")
        cluster, voters = data.get(STATE_KEY), str(data.get(_VOTERS_KEY))
        if cluster not in {"new", "existing"}:
            return None
        return cls(
            cast("ClusterState", cluster),
            tuple(map(int, _MEMBER.findall(str(data.get(MEMBERS_KEY))))),
            int(voters) if voters.isdecimal() else None,
            data.get(RESTORED_KEY),
        )

    @classmethod
    def of(cls, config_map: Unstructured) -> "EtcdState":
        """The state in a ConfigMap that the provider has written.

        Raises:
            ValueError: it is damaged.
        """
        state = cls.read(config_map)
        if state is None:
            raise ValueError("the state of etcd cannot be read")
        return state

    def of_membership(self, membership: Membership) -> "EtcdState":
        """The state after etcd's own list of members was read."""
        voters = [member for member in membership.members.values() if not member.learner]
        return replace(self, members=tuple(sorted(membership.members)), voters=len(voters))

    def data(self, names: Names) -> Mapping[str, str]:
        """The data of the ConfigMap."""
        peers = [f"{names.member(index)}={peer_url(names, index)}" for index in self.members]
        voters = {} if self.voters is None else {_VOTERS_KEY: str(self.voters)}
        restored = {} if self.restored is None else {RESTORED_KEY: self.restored}
        return {STATE_KEY: self.cluster, MEMBERS_KEY: ",".join(peers), **voters, **restored}

    def of_restore(self, restored: str | None, size: int) -> "EtcdState":
        """The state after a restore: its data is that of a new cluster of this size."""
        return EtcdState(self.cluster, tuple(range(size)), size, restored)


def peer_url(names: Names, index: int) -> str:
    """Where the other members reach a member."""
    return f"https://{names.member_host(index)}:{ETCD_PEER_PORT}"


def planned_members(stateful_set: Unstructured | None, size: int) -> int:
    """How many members the StatefulSet runs: this number if it does not exist, or runs none."""
    replicas: Any = value_at(stateful_set, "spec", "replicas")
    return replicas if isinstance(replicas, int) and replicas > 0 else size


def next_etcd_state(
    present: EtcdState | None, ready: Sequence[bool], planned: int, *, has_etcd: bool
) -> EtcdState:
    """The state to store.

    Args:
        present: The stored state.
        ready: For each member that runs, whether it is ready.
        planned: How many members the StatefulSet runs.
        has_etcd: Whether anything of etcd exists.
    """
    cluster = next_cluster_state(present and present.cluster, ready, planned, has_etcd=has_etcd)
    restored = present and present.restored
    if not has_etcd:
        return EtcdState(cluster, tuple(range(planned)), planned, restored)
    members = present.members if present and present.members else tuple(range(planned))
    return EtcdState(cluster, members, present and present.voters, restored)


def is_resized(state: EtcdState | None, planned: int, size: int) -> bool:
    """Whether exactly the desired members run, and all of them vote."""
    return state is not None and state.voters == planned == size


def voters_of(members: Collection[Member], membership: Membership | None) -> list[Member]:
    """The members that count for the quorum."""
    if membership is None:
        return list(members)
    learners = {index for index, member in membership.members.items() if member.learner}
    return [member for member in members if member.index not in learners]


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
