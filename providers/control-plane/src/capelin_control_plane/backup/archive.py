"""The archive of etcd's changes since a backup: segments, each in an encrypted file."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from capelin_control_plane.backup.encryption import BackupError, purpose_of
from capelin_control_plane.backup.files import read_encrypted, single, write_encrypted
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.etcd.api import Change

_NAME: Final = re.compile("changes-([0-9a-f]{16})-([0-9]{20})-([0-9]{20})-([0-9a-f]{0,8})")
_SEGMENT_BYTES: Final = 1 << 20
_SEGMENT_AGE: Final = timedelta(minutes=5)
_LONGEST_LINE: Final = 32 << 20
"""A batch is one answer of etcd. A tenant has the key of the archive, and can write others."""
_MOST_BYTES: Final = 512 << 20
"""Of the lines of a segment. Each of them is released before the next one is read."""
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that arrived together."""

    received_at: datetime
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """A segment. Those of one chain have every change since its beginning."""

    chain: int
    """The first revision of the chain. A gap begins another one."""
    first: int
    """The first revision of the segment."""
    epoch: str = ""
    """Another one begins with other keys or another version, which the changes need."""

    def name(self, authority: str) -> str:
        """The name of its file."""
        return f"changes-{authority[:16]}-{self.chain:020d}-{self.first:020d}-{self.epoch}"


def segments_of(names: Collection[str], authority: str) -> list[SegmentId]:
    """The segments of a control plane, in their order."""
    matches = filter(None, map(_NAME.fullmatch, names))
    own = (match for match in matches if match[1] == authority[:16])
    return sorted(SegmentId(int(match[2]), int(match[3]), match[4]) for match in own)


def segments_after(segments: Iterable[SegmentId], revision: int) -> list[SegmentId]:
    """The segments with the changes after a revision, up to the next gap."""
    segments = list(segments)
    chain = max((it.chain for it in segments if it.chain <= revision + 1), default=None)
    own = [it for it in segments if it.chain == chain]
    begin = max((it.first for it in own if it.first <= revision + 1), default=0)
    return [it for it in own if it.first >= begin]


def expired_segments(segments: Iterable[SegmentId], revision: int) -> list[SegmentId]:
    """The segments of which a backup with this revision has every change."""
    return [it for it, following in pairwise(segments) if following.first <= revision + 1]


def next_segments(
    newest: SegmentId | None, archived: int, present: int, epoch: str = ""
) -> list[SegmentId]:
    """The segments with which the archive can continue, the best one first.

    etcd may have forgotten the first changes of any but the last one.

    Args:
        newest: The newest segment.
        archived: Its last revision.
        present: The revision of etcd.
        epoch: The present keys and version.
    """
    chain = SegmentId(present + 1, present + 1, epoch)
    if newest is None or archived > present or newest.epoch != epoch:
        return [chain]
    return [SegmentId(newest.chain, archived + 1, epoch), chain]


class Segment:
    """A segment that grows. The store gets its whole content again each time."""

    def __init__(self, id_: SegmentId, began: datetime) -> None:
        self.id, self.last, self.began = id_, id_.first - 1, began
        self._compressor, self._content = zlib.compressobj(1), bytearray()

    def add(self, batch: Batch) -> None:
        """Append changes. Without any, the segment is complete up to a moment.

        Raises:
            ValueError: earlier changes are missing.
        """
        if batch.changes:
            if batch.changes[0].revision != self.last + 1:
                raise ValueError(f"etcd sent no changes after revision {self.last}")
            self.last = batch.changes[-1].revision
        self._content += self._compressor.compress(_line(batch))

    def content(self) -> bytes:
        """The content until now."""
        self._content += self._compressor.flush(zlib.Z_SYNC_FLUSH)
        return bytes(self._content)

    def following(self, now: datetime) -> "Segment":
        """The next segment of the chain."""
        return Segment(replace(self.id, first=self.last + 1), now)

    def is_full(self, now: datetime) -> bool:
        """Whether the next changes belong to another segment."""
        return len(self._content) >= _SEGMENT_BYTES or now - self.began >= _SEGMENT_AGE


class SegmentReader:
    """Reads the content of a segment in pieces."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._decompressor, self._pending = zlib.decompressobj(), bytearray()
        self._size = 0

    def update(self, data: bytes) -> Iterator[Batch]:
        """The batches that are complete with more data.

        Raises:
            BackupError: the segment is damaged.
        """
        try:
            is_complete = False
            while not is_complete:
                content = self._decompressor.decompress(data, _PIECE)
                data = self._decompressor.unconsumed_tail
                is_complete = not data and len(content) < _PIECE
                yield from map(_batch, self._lines(content))
        except (zlib.error, ValueError, TypeError) as error:
            raise BackupError(f"{self._name} is damaged: {error}") from error

    def _lines(self, content: bytes) -> list[bytearray]:
        """The lines that are complete with more content."""
        self._size += len(content)
        begin, end, rest = content.rpartition(b"\n")
        self._pending += begin
        if len(self._pending) > _LONGEST_LINE or self._size > _MOST_BYTES:
            raise BackupError(f"{self._name} is damaged: it is too large")
        if not end:
            self._pending += rest
            return []
        lines = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        return lines


def _line(batch: Batch) -> bytes:
    changes = [[c.revision, c.key, c.value, c.lease] for c in batch.changes]
    content = {"at": batch.received_at.isoformat(), "changes": changes}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _batch(line: bytearray) -> Batch:
    content: dict[str, Any] = json.loads(line)
    changes = tuple(Change(*change) for change in content["changes"])
    return Batch(datetime.fromisoformat(content["at"]), changes)


async def write_segment(store: Store, key: bytes, authority: str, segment: Segment) -> None:
    """Write a segment in place of its earlier content."""
    name = segment.id.name(authority)
    purpose = purpose_of(authority, name)
    await write_encrypted(store, name, key, purpose, single(segment.content()))


async def newest_segment(store: Store, key: bytes, authority: str) -> tuple[SegmentId | None, int]:
    """The newest segment and its last revision."""
    segments = segments_of(await store.names(), authority)
    if not segments:
        return None, 0
    last = segments[-1].first - 1
    async with aclosing(_read_segment(store, key, authority, segments[-1])) as batches:
        async for batch in batches:
            last = max((change.revision for change in batch.changes), default=last)
    return segments[-1], last


async def delete_segments(store: Store, authority: str, segments: Iterable[SegmentId]) -> None:
    """Delete segments."""
    for segment in segments:
        await store.delete(segment.name(authority))


async def read_changes(
    store: Store, key: bytes, authority: str, after: int
) -> AsyncGenerator[Batch]:
    """The archived changes after a revision.

    Raises:
        BackupError: changes are missing, a segment is damaged, or the key is another one.
    """
    last = after
    segments = segments_of(await store.names(), authority)
    chain = segments_after(segments, after)
    for segment in chain:
        if segment.first > last + 1:
            raise BackupError(f"the archive has no changes after revision {last}")
        async with aclosing(_read_segment(store, key, authority, segment)) as batches:
            async for batch in batches:
                changes = tuple(change for change in batch.changes if change.revision > last)
                if changes or not batch.changes:
                    last = max((change.revision for change in changes), default=last)
                    yield Batch(batch.received_at, changes)
    if segments and segments[-1].chain > (chain[-1].chain if chain else after + 1):
        # The next chain has a gap before it, or its changes need other keys.
        raise BackupError(f"the archive has no changes after revision {last}")


async def _read_segment(
    store: Store, key: bytes, authority: str, segment: SegmentId
) -> AsyncGenerator[Batch]:
    name = segment.name(authority)
    reader = SegmentReader(name)
    async with aclosing(read_encrypted(store, name, key, purpose_of(authority, name))) as pieces:
        async for piece in pieces:
            batches = reader.update(piece)
            # A batch can be large, and a tenant can have written it.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                yield batch
