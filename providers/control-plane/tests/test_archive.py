"""The archive of changes: its segments, its files, and backups of earlier moments."""

import base64
import json
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from capelin.contract import ConditionSpec
from capelin_control_plane.api import LastBackup
from capelin_control_plane.backup.archive import (
    Batch,
    Segment,
    SegmentId,
    SegmentReader,
    expired_segments,
    newest_segment,
    next_segments,
    read_changes,
    segments_after,
    segments_of,
    write_segment,
)
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.manifests import Manifest, NeededBackup
from capelin_control_plane.backup.point_in_time import Pending, backup_moment, base_backup, replay
from capelin_control_plane.backup.stores import FolderStore, Workers
from capelin_control_plane.etcd.api import Change, CompactedError, EtcdApi, MembershipError
from capelin_control_plane.operations.archive import Archive
from capelin_control_plane.operations.backup import BackupState
from hypothesis import given
from hypothesis import strategies as st

from tests.support.web import api_server

NOW = datetime(2026, 11, 26, 10, tzinfo=UTC)
KEY, AUTHORITY, OTHER = b"k" * 32, "a" * 64, "b" * 64


def change(revision: int, key: str = "key", value: str | None = "value") -> Change:
    return Change(revision, base64.b64encode(key.encode()).decode(), value)


def batch(*revisions: int, second: int = 0) -> Batch:
    return Batch(NOW + timedelta(seconds=second), tuple(map(change, revisions)))


def segment(chain: int, *batches: Batch) -> Segment:
    created = Segment(SegmentId(chain, batches[0].changes[0].revision), NOW)
    for one in batches:
        created.add(one)
    return created


def manifest(second: int, revision: int = 1) -> Manifest:
    return Manifest(
        namespace="default",
        cluster="one",
        control_plane="one",
        authority=AUTHORITY,
        kubernetes_version="v1.34.4",
        etcd_version="3.6.8",
        revision=revision,
        taken_at=NOW + timedelta(seconds=second),
        seconds=1,
        snapshot_bytes=1,
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FolderStore]:
    workers = Workers(1)
    yield FolderStore(tmp_path, Path("one"), workers)
    workers.close()


async def archived(store: FolderStore, after: int) -> list[int]:
    """The revisions that the archive returns after another one."""
    async with aclosing(read_changes(store, KEY, AUTHORITY, after)) as batches:
        return [one.revision async for found in batches for one in found.changes]


def test_names_tell_the_segments_of_control_planes_apart() -> None:
    ids = [SegmentId(5, 5), SegmentId(5, 90), SegmentId(200, 200)]
    names = [*(it.name(AUTHORITY) for it in reversed(ids)), SegmentId(1, 1).name(OTHER)]
    found = segments_of([*names, "20261126T100000Z.json", "changes-x-1", "etcd.partial"], AUTHORITY)
    assert found == ids


@pytest.mark.parametrize(
    ("after", "expected"),
    [(3, []), (4, [5, 90]), (50, [5, 90]), (89, [90]), (150, [90]), (199, [200]), (500, [200])],
)
def test_segments_up_to_the_next_gap_follow_a_revision(after: int, expected: list[int]) -> None:
    segments = [SegmentId(5, 5), SegmentId(5, 90), SegmentId(200, 200)]
    assert [it.first for it in segments_after(segments, after)] == expected


@pytest.mark.parametrize(
    ("revision", "expected"), [(88, []), (89, [5]), (150, [5]), (199, [5, 90]), (999, [5, 90])]
)
def test_a_segment_expires_when_a_backup_has_all_its_changes(
    revision: int, expected: list[int]
) -> None:
    segments = [SegmentId(5, 5), SegmentId(5, 90), SegmentId(200, 200)]
    assert [it.first for it in expired_segments(segments, revision)] == expected


def test_the_archive_continues_its_chain_if_etcd_still_has_the_changes() -> None:
    assert next_segments(None, 0, 70) == [SegmentId(71, 71)]
    assert next_segments(SegmentId(5, 50), 60, 70) == [SegmentId(5, 61), SegmentId(71, 71)]
    # etcd has older data than the archive.
    assert next_segments(SegmentId(5, 50), 60, 59) == [SegmentId(60, 60)]


@given(
    st.lists(st.lists(st.text(max_size=20) | st.none(), min_size=1), min_size=1, max_size=20),
    st.integers(1, 100),
)
def test_a_segment_is_read_as_it_was_written(values: list[list[str | None]], size: int) -> None:
    batches: list[Batch] = []
    revision = 1
    growing = Segment(SegmentId(1, 1), NOW)
    for group in values:
        changes = tuple(change(revision + n, "key", value) for n, value in enumerate(group))
        batches.append(Batch(NOW, changes))
        growing.add(batches[-1])
        revision += len(group)
        growing.content()
    reader, content = SegmentReader("segment"), growing.content()
    read = [
        found
        for start in range(0, len(content), size)
        for found in reader.update(content[start : start + size])
    ]
    assert read == batches
    assert growing.last == revision - 1


def test_a_segment_ends_with_its_age() -> None:
    growing = segment(1, batch(1))
    assert not growing.is_full(NOW + timedelta(minutes=4))
    assert growing.is_full(NOW + timedelta(minutes=5))
    following = growing.following(NOW)
    assert (following.id, following.last) == (SegmentId(1, 2), 1)


async def test_a_segment_grows_in_the_store(store: FolderStore) -> None:
    assert await newest_segment(store, KEY, AUTHORITY) == (None, 0)
    growing = segment(3, batch(3, 4))
    await write_segment(store, KEY, AUTHORITY, growing)
    assert await archived(store, 2) == [3, 4]
    growing.add(batch(5))
    await write_segment(store, KEY, AUTHORITY, growing)
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(6)))
    assert await newest_segment(store, KEY, AUTHORITY) == (SegmentId(3, 6), 6)
    assert await archived(store, 2) == [3, 4, 5, 6]
    assert await archived(store, 4) == [5, 6]
    assert await archived(store, 9) == []
    content = b"".join([piece async for piece in store.open(growing.id.name(AUTHORITY))])
    assert b"value" not in content


async def test_missing_changes_are_reported(store: FolderStore) -> None:
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(3, 4)))
    await write_segment(store, KEY, AUTHORITY, segment(9, batch(9)))
    with pytest.raises(BackupError, match="no changes after revision 4"):
        await archived(store, 2)
    with pytest.raises(BackupError, match="no changes after revision 1"):
        await archived(store, 1)
    assert await archived(store, 8) == [9]
    await write_segment(store, KEY, AUTHORITY, segment(9, batch(12)))
    with pytest.raises(BackupError, match="no changes after revision 9"):
        await archived(store, 8)


async def test_changes_do_not_continue_with_other_keys(store: FolderStore) -> None:
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(3, 4)))
    await write_segment(store, KEY, AUTHORITY, segment(5, batch(5)))
    with pytest.raises(BackupError, match="no changes after revision 4"):
        await archived(store, 2)
    assert await archived(store, 4) == [5]


async def test_two_providers_may_archive_the_same_changes(store: FolderStore) -> None:
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(3, 4, 5)))
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(5, 6)))
    assert await archived(store, 2) == [3, 4, 5, 6]


@pytest.mark.parametrize("line", [b"[", b"[]\n"], ids=["one line", "many lines"])
def test_a_segment_has_a_largest_size(line: bytes) -> None:
    """A tenant has the key, and can pack any size into a few bytes."""
    compressor, reader = zlib.compressobj(9), SegmentReader("segment")
    whole = line * ((1 << 20) // len(line))
    packed = b"".join(compressor.compress(whole) for _ in range(64)) + compressor.flush()
    with pytest.raises(BackupError, match="segment is damaged"):
        list(reader.update(packed))


async def test_a_damaged_segment_is_reported(store: FolderStore, tmp_path: Path) -> None:
    await write_segment(store, KEY, AUTHORITY, segment(3, batch(3)))
    with pytest.raises(BackupError, match="another one"):
        await newest_segment(store, b"x" * 32, AUTHORITY)
    path = next((tmp_path / "one").glob("changes-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupError, match="damaged"):
        await archived(store, 2)
    with pytest.raises(BackupError, match="segment is damaged"):
        list(SegmentReader("segment").update(b"no segment"))


def test_the_last_backup_before_a_moment_is_the_base() -> None:
    manifests = [manifest(20), manifest(10), manifest(0)]
    assert base_backup(manifests, NOW + timedelta(seconds=15)).name == manifest(10).name
    with pytest.raises(BackupError, match="oldest one: 20261126T100000Z"):
        base_backup(manifests, NOW - timedelta(seconds=1))
    assert base_backup(manifests, None).name == manifest(20).name


@pytest.mark.parametrize(
    ("reached", "requested", "moment"),
    [
        # Every archived change is requested.
        (0, None, None),
        (7, None, 8),
        (7.5, None, 8),
        (7, 7, 7),
        (7, 127, 127),
    ],
)
def test_a_backup_has_the_requested_moment_or_the_second_after_the_archive(
    reached: float, requested: int | None, moment: int | None
) -> None:
    def at(second: float | None) -> datetime | None:
        return None if second is None else NOW + timedelta(seconds=second)

    end = at(reached)
    assert end is not None
    assert backup_moment(NOW, end, at(requested)) == at(moment)


def test_a_moment_after_the_end_of_the_archive_is_rejected() -> None:
    end = NOW + timedelta(seconds=7)
    with pytest.raises(BackupError, match="not complete after 2026-11-26T10:00:07Z"):
        backup_moment(NOW, end, end + timedelta(minutes=2, seconds=1))


def test_a_moment_during_a_backup_needs_the_one_before() -> None:
    # Its snapshot, which followed the upload of other files, may have later writes.
    slow = replace(manifest(10), seconds=30)
    manifests = [slow, manifest(0)]
    assert base_backup(manifests, NOW + timedelta(seconds=39)).name == manifest(0).name
    assert base_backup(manifests, NOW + timedelta(seconds=40)).name == slow.name


class Written:
    """An etcd that keeps written values, and the number of changes of each transaction."""

    def __init__(self) -> None:
        self.values: dict[str, str | None] = {}
        self.leases: list[int] = []
        self.transactions: list[int] = []

    async def write(self, changes: Sequence[Change]) -> None:
        assert len({one.key for one in changes}) == len(changes)
        self.values.update({one.key: one.value for one in changes})
        self.transactions.append(len(changes))

    async def grant_lease(self, id_: int, seconds: int) -> None:
        assert seconds == 3600
        self.leases.append(id_)


async def replayed(*batches: Batch, second: int | None) -> tuple[Written, float]:
    """The values after a replay, and the second up to which the archive is complete."""

    async def read() -> AsyncGenerator[Batch]:
        for one in batches:
            yield one

    etcd = Written()
    moment = None if second is None else NOW + timedelta(seconds=second)
    reached = await replay(cast("EtcdApi", etcd), read(), NOW, moment)
    return etcd, (reached - NOW).total_seconds()


async def test_changes_are_replayed_up_to_a_moment() -> None:
    first = Batch(NOW + timedelta(seconds=1), (change(1, "a", "1"), change(2, "a", "2")))
    leased = Change(3, "b", "3", lease=7)
    second = Batch(NOW + timedelta(seconds=2), (leased, change(4, "a", None)))
    etcd, reached = await replayed(first, second, second=1)
    assert (list(etcd.values.values()), reached) == (["2"], 1)
    etcd, reached = await replayed(first, second, second=30)
    assert (list(etcd.values.values()), etcd.leases, reached) == ([None, "3"], [7], 2)
    etcd, reached = await replayed(first, second, second=None)
    assert (list(etcd.values.values()), reached) == ([None, "3"], 2)


@pytest.mark.parametrize(
    ("sizes", "transactions"),
    [
        ([1] * 250, [100, 100, 50]),
        ([600 << 10] * 3, [1, 1, 1]),
        # Exactly a MiB fits into each transaction.
        ([512 << 10] * 4, [2, 2]),
        ([512 << 10, (512 << 10) + 1], [1, 1]),
        ([2 << 20, 0], [1, 1]),
    ],
)
async def test_a_replay_keeps_the_limits_of_transactions(
    sizes: list[int], transactions: list[int]
) -> None:
    changes = [change(number, f"key-{number}", "x" * size) for number, size in enumerate(sizes, 1)]
    etcd, _ = await replayed(Batch(NOW, tuple(changes)), second=None)
    assert etcd.transactions == transactions
    assert [len(value or "") for value in etcd.values.values()] == sizes


@pytest.mark.parametrize(("following", "reached"), [(100, 90), (130, 1)])
async def test_changes_that_arrived_late_do_not_hide_a_gap(following: int, reached: float) -> None:
    """While no provider runs, the moment of a change is unknown."""
    _, found = await replayed(batch(1, second=1), batch(2, second=following), second=90)
    assert found == reached


async def test_an_idle_archive_is_complete(store: FolderStore) -> None:
    growing = segment(3, batch(3))
    growing.add(Batch(NOW + timedelta(seconds=30), ()))
    assert growing.last == 3
    await write_segment(store, KEY, AUTHORITY, growing)
    assert await newest_segment(store, KEY, AUTHORITY) == (SegmentId(3, 3), 3)
    async with aclosing(read_changes(store, KEY, AUTHORITY, 3)) as batches:
        assert [found.received_at async for found in batches] == [NOW + timedelta(seconds=30)]


def test_a_segment_accepts_no_gap() -> None:
    growing = segment(3, batch(3))
    with pytest.raises(ValueError, match="no changes after revision 3"):
        growing.add(batch(5))


def test_changes_with_other_keys_begin_another_chain() -> None:
    newest = SegmentId(5, 50, "aaaaaaaa")
    assert next_segments(newest, 60, 70, "bbbbbbbb") == [SegmentId(71, 71, "bbbbbbbb")]
    assert next_segments(newest, 60, 70, "aaaaaaaa")[0] == SegmentId(5, 61, "aaaaaaaa")


def test_a_transaction_writes_each_key_once() -> None:
    pending = Pending()
    assert pending.accepts(change(1, "a"))
    pending.add(change(1, "a"))
    assert pending.accepts(change(2, "b"))
    assert not pending.accepts(change(2, "a"))
    assert not pending.accepts(change(2, "b", "x" * (1 << 21)))
    assert pending.take() == [change(1, "a")]
    assert pending.accepts(change(2, "b", "x" * (1 << 21)))


def event(revision: int, value: str | None = "dg==", **fields: Any) -> dict[str, Any]:
    """An event as etcd's gateway sends it."""
    pair = {"key": "aw==", "mod_revision": str(revision), **fields}
    return {"type": "DELETE", "kv": pair} if value is None else {"kv": {**pair, "value": value}}


@asynccontextmanager
async def watched(*answers: dict[str, Any]) -> AsyncGenerator[EtcdApi]:
    """An etcd that sends these answers to a watch, and ends."""

    async def watch(request: web.Request) -> web.StreamResponse:
        assert (request.path, (await request.json())["create_request"]["start_revision"]) == (
            "/v3/watch",
            5,
        )
        response = web.StreamResponse()
        await response.prepare(request)
        for answer in answers:
            await response.write(json.dumps({"result": answer}).encode() + b"\n")
        return response

    async with api_server(watch) as url, aiohttp.ClientSession() as session:
        yield EtcdApi(session, url)


async def test_changes_arrive_with_all_of_their_revision() -> None:
    answers = (
        {"created": True},
        {"events": [event(5), event(6, None)]},
        {"events": [event(7, lease="12"), event(8)], "fragment": True},
        {"events": [event(8, "")]},
    )
    async with watched(*answers) as etcd, aclosing(etcd.changes(5)) as lists:
        received = [await anext(lists) for _ in range(3)]
        with pytest.raises(MembershipError, match="connection ended"):
            await anext(lists)
    assert received == [
        [Change(5, "aw==", "dg=="), Change(6, "aw==", None)],
        [Change(7, "aw==", "dg==", 12)],
        [Change(8, "aw==", "dg=="), Change(8, "aw==", "")],
    ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"compact_revision": "9", "canceled": True}, CompactedError),
        ({"canceled": True, "cancel_reason": "no leader"}, MembershipError),
    ],
)
async def test_the_end_of_a_watch_is_reported(
    answer: dict[str, Any], error: type[Exception]
) -> None:
    async with watched({"created": True}, answer) as etcd, aclosing(etcd.changes(5)) as lists:
        with pytest.raises(error):
            await anext(lists)


@pytest.mark.parametrize(
    ("revision", "epoch", "reason"),
    [
        (8, "aaaaaaaa", "ArchiveHealthy"),
        (7, "aaaaaaaa", "ArchiveInterrupted"),
        (8, "bbbbbbbb", "ArchiveInterrupted"),
    ],
)
def test_the_condition_depends_on_the_newest_backup(revision: int, epoch: str, reason: str) -> None:
    fine = ConditionSpec("ArchiveHealthy", "True", "ArchiveHealthy")
    archive = Archive(fine, NeededBackup(8, "aaaaaaaa"))
    newest = LastBackup(name="x", time=NOW, revision=revision, bytes=1)
    assert archive.condition_with(BackupState(fine, newest, epoch=epoch)).reason == reason
    assert archive.condition_with(None).reason == "ArchiveInterrupted"
