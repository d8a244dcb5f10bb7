"""The files of the archive: one for each segment, encrypted like a backup's."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from capelin_control_plane.backup.archive import (
    Batch,
    Segment,
    SegmentId,
    SegmentReader,
    segments_after,
    segments_of,
)
from capelin_control_plane.backup.encryption import BackupError, purpose_of
from capelin_control_plane.backup.files import read_encrypted, single, write_encrypted
from capelin_control_plane.backup.stores import Store


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
