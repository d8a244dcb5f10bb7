"""The API of an etcd member, with which the provider changes the members of its cluster."""

import base64
import json
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from capelin.client import read_at_most

from capelin_control_plane.etcd.rules import ListedMember

DEFAULT_QUOTA = 2 * 2**30
"""The quota of etcd's database without `quota-backend-bytes`."""
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MAINTENANCE = aiohttp.ClientTimeout(total=600)
"""Compaction and defragmentation read the whole database."""
_NO_SPACE = "NOSPACE"
_SNAPSHOT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
_WATCH = aiohttp.ClientTimeout(total=None, sock_connect=5)
_REQUIRE_LEADER = {"Grpc-Metadata-hasleader": "true"}
"""A watch on a member without a quorum ends, instead of being silent."""
_WATCH_BYTES = 8 << 20
"""The longest answer has more than one value of 1.5 MiB, in base64."""
_ANSWER_BYTES = 256 << 10
"""The longest answer to another request: a list of members or alarms."""
_REVISION_BYTES = 64 << 20
"""The most that one revision may change, with its keys: etcd accepts requests of 1.5 MiB."""
_MESSAGE_CHARACTERS = 300


class MembershipError(Exception):
    """etcd does not answer, or refuses a change of its members."""


class CompactedError(Exception):
    """etcd does not have the requested revision any more."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write to a key."""

    revision: int
    key: str
    """In base64, like the value."""
    value: str | None
    """None: it was deleted."""
    lease: int = 0

    @property
    def size(self) -> int:
        """The characters of its key and value."""
        return len(self.key) + len(self.value or "")


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The state of a member."""

    raft_index: int
    """How much of the cluster's history it has."""
    has_leader: bool
    """Whether it belongs to a quorum."""
    leader: str = ""
    """The ID of the leader, as in the list of members."""
    revision: int = 0
    """The latest write that the member has."""
    version: str = ""
    """The version of etcd."""
    id: str = ""
    """The ID of the member itself."""
    size: int = 0
    """Bytes of its database."""
    used: int = 0
    """Bytes of its database that have data."""
    quota: int = 0
    """At this size of the database, etcd rejects writes."""


@dataclass(frozen=True, slots=True)
class EtcdApi:
    """The API of one member, about its cluster. Each method may raise MembershipError.

    On pods, a tenant may choose the image of etcd: answers are bounded, and their form is checked.
    """

    session: aiohttp.ClientSession
    url: str

    async def members(self) -> list[ListedMember]:
        """The members that the cluster has. Also a member that lags behind returns them all."""
        listed = await self._post("cluster/member/list", {"linearizable": True})
        with self._form():
            return [_member(member) for member in listed["members"]]

    async def add_member(self, peer_url: str) -> None:
        """Have the cluster expect a new member."""
        await self._post("cluster/member/add", {"peerURLs": [peer_url]})

    async def add_learner(self, peer_url: str) -> None:
        """Have the cluster expect a new member that has no vote."""
        await self._post("cluster/member/add", {"peerURLs": [peer_url], "isLearner": True})

    async def promote_member(self, id_: str) -> None:
        """Give a learner a vote. Refused until it has caught up with the leader."""
        await self._post("cluster/member/promote", {"ID": id_})

    async def move_leadership(self, to: str) -> None:
        """Have another member lead. Only the leader itself accepts this."""
        await self._post("maintenance/transfer-leadership", {"targetID": to})

    async def remove_member(self, id_: str) -> None:
        """Remove a member, which need not run."""
        await self._post("cluster/member/remove", {"ID": id_})

    async def move_member(self, id_: str, peer_url: str) -> None:
        """Change where the others reach a member."""
        await self._post("cluster/member/update", {"ID": id_, "peerURLs": [peer_url]})

    async def status(self) -> MemberStatus:
        """The state of the member itself. A member that never had a leader does not answer."""
        status = await self._post("maintenance/status", {})
        with self._form():
            leader = str(status.get("leader", "0"))
            return MemberStatus(
                int(status["raftIndex"]),
                leader != "0",
                leader,
                int(status.get("header", {}).get("revision", 0)),
                str(status.get("version", "")),
                str(status.get("header", {}).get("member_id", "")),
                int(status.get("dbSize", 0)),
                int(status.get("dbSizeInUse", 0)),
                # etcd does not report the quota that it has without a flag.
                int(status.get("dbSizeQuota", 0)) or DEFAULT_QUOTA,
            )

    async def members_without_space(self) -> list[str]:
        """The IDs of members that reached their quota. With any, the cluster rejects writes."""
        listed = await self._post("maintenance/alarm", {"action": "GET"})
        with self._form():
            return [
                str(alarm["memberID"])
                for alarm in listed.get("alarms", ())
                if alarm.get("alarm") == _NO_SPACE
            ]

    async def accept_writes(self, member_id: str) -> None:
        """End the alarm about the space of a member."""
        body = {"action": "DEACTIVATE", "alarm": _NO_SPACE, "memberID": member_id}
        await self._post("maintenance/alarm", body)

    async def compact(self, revision: int) -> None:
        """Forget the history before a revision, and wait until its space can be used again."""
        body = {"revision": revision, "physical": True}
        try:
            await self._post("kv/compaction", body, _MAINTENANCE)
        except MembershipError as error:
            # kube-apiserver, or a provider that ended, was faster.
            if "has been compacted" not in str(error):
                raise

    async def defragment(self) -> None:
        """Write the member's database again. Meanwhile, the member answers nothing."""
        await self._post("maintenance/defragment", {}, _MAINTENANCE)

    async def last_revision(self) -> int:
        """The latest write of the cluster. From now on, the member itself has it, too."""
        # A linearizable read: the member first catches up with the leader.
        found = await self._post("kv/range", {"key": "AA==", "count_only": True})
        with self._form():
            return int(found["header"]["revision"])

    async def count_keys(self) -> int:
        """The number of keys."""
        everything = {"key": "AA==", "range_end": "AA==", "count_only": True}
        found = await self._post("kv/range", everything)
        with self._form():
            return int(found.get("count", 0))

    async def snapshot(self) -> AsyncGenerator[bytes]:
        """The member's database in pieces, followed by its SHA-256."""
        url = f"{self.url}/v3/maintenance/snapshot"
        try:
            async with self.session.post(
                url, json={}, timeout=_SNAPSHOT, read_bufsize=2**20
            ) as response:
                async for line in response.content:
                    with self._form():
                        piece: dict[str, Any] = json.loads(line)
                        if "result" not in piece:
                            message = piece.get("error", piece).get("message", response.status)
                            raise MembershipError(f"{url}: {_short(message)}")
                        blob = base64.b64decode(piece["result"].get("blob", ""))
                    yield blob
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise MembershipError(f"{url} does not answer") from error

    async def changes(self, first: int) -> AsyncGenerator[list[Change]]:
        """All changes from a revision on, as they happen. It never ends by itself.

        A list has all changes of each of its revisions.

        Raises:
            CompactedError: etcd does not have the first ones any more.
        """
        url = f"{self.url}/v3/watch"
        request = {"key": "AA==", "range_end": "AA==", "start_revision": first, "fragment": True}
        incomplete: list[Change] = []
        try:
            async with self.session.post(
                url,
                json={"create_request": request},
                headers=_REQUIRE_LEADER,
                timeout=_WATCH,
                read_bufsize=_WATCH_BYTES,
            ) as response:
                async for line in response.content:
                    with self._form():
                        answer: dict[str, Any] = json.loads(line).get("result", {})
                        if int(answer.get("compact_revision", 0)):
                            raise CompactedError(f"etcd has compacted revision {first}")
                        if not answer or answer.get("canceled"):
                            reason = _short(answer.get("cancel_reason", "it ended"))
                            raise MembershipError(f"{url}: {reason}")
                        changes = [*incomplete, *map(_change, answer.get("events", ()))]
                    incomplete = []
                    if answer.get("fragment") and changes:
                        # The rest of the last revision may come in the next answer.
                        last = changes[-1].revision
                        incomplete = [change for change in changes if change.revision == last]
                        if sum(change.size for change in incomplete) > _REVISION_BYTES:
                            raise MembershipError(f"{url}: revision {last} is too large")
                        changes = changes[: -len(incomplete)]
                    if changes:
                        yield changes
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise MembershipError(f"{url} does not answer") from error
        raise MembershipError(f"{url}: the connection ended")

    async def write(self, changes: Sequence[Change]) -> None:
        """Write the values of different keys at once."""
        operations: list[dict[str, Any]] = []
        for change in changes:
            if change.value is None:
                operations.append({"requestDeleteRange": {"key": change.key}})
            else:
                put = {"key": change.key, "value": change.value, "lease": change.lease}
                operations.append({"requestPut": put})
        await self._post("kv/txn", {"success": operations})

    async def grant_lease(self, id_: int, seconds: int) -> None:
        """Create a lease, unless it exists."""
        try:
            await self._post("lease/grant", {"ID": id_, "TTL": seconds})
        except MembershipError as error:
            if "lease already exists" not in str(error):
                raise

    async def _post(
        self, path: str, body: Mapping[str, Any], within: aiohttp.ClientTimeout = _TIMEOUT
    ) -> dict[str, Any]:
        url = f"{self.url}/v3/{path}"
        try:
            async with self.session.post(url, json=body, timeout=within) as response:
                data = await read_at_most(response, _ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise MembershipError(f"{url} does not answer") from error
        with self._form():
            content: dict[str, Any] = json.loads(data or b"")
            if response.status != 200:
                raise MembershipError(f"{url}: {_short(content.get('message', response.status))}")
            return content

    @contextmanager
    def _form(self) -> Generator[None]:
        """Report an answer that etcd does not give."""
        try:
            yield
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise MembershipError(f"{self.url} does not answer like etcd") from error


@asynccontextmanager
async def connect(url: str, trust: ssl.SSLContext) -> AsyncGenerator[EtcdApi]:
    """The API of a member, with the certificates of a client of etcd."""
    connector = aiohttp.TCPConnector(ssl=trust)
    # etcd does not compress, and a few bytes can be unpacked to any size.
    plain = {"Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(
        connector=connector, headers=plain, auto_decompress=False
    ) as session:
        yield EtcdApi(session, url)


def ready_member(ready: Sequence[int], index: int | None) -> int:
    """The index of the member to connect to: this one, or any.

    Raises:
        MembershipError: it is not ready.
    """
    if not ready:
        raise MembershipError("no etcd member is ready")
    if index is not None and index not in ready:
        raise MembershipError(f"etcd-{index} is not ready")
    return ready[-1] if index is None else index


def _short(message: object) -> str:
    """The begin of a message of the server."""
    return str(message)[:_MESSAGE_CHARACTERS]


def _change(event: Mapping[str, Any]) -> Change:
    pair: dict[str, Any] = event["kv"]
    value = None if event.get("type") == "DELETE" else pair.get("value", "")
    return Change(int(pair["mod_revision"]), pair["key"], value, int(pair.get("lease", 0)))


def _member(listed: Mapping[str, Any]) -> ListedMember:
    return ListedMember(
        id=listed["ID"],
        peer_url=listed["peerURLs"][0],
        started=bool(listed.get("name")),
        learner=bool(listed.get("isLearner")),
    )
