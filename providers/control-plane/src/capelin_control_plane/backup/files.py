"""The files of backups: encrypted, and published in one step by their manifest."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from capelin_embedded.processes import private_folder
from pydantic import TypeAdapter

from capelin_control_plane.backup.encryption import (
    BackupError,
    Decryption,
    Encryption,
    purpose_of,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.stores import (
    MOST_FILES,
    Store,
    StoreError,
    Upload,
    names_in,
    read_small,
)

_PIECE: Final = 2**20
_HASH_BYTES: Final = 32
_MANIFEST: Final = ".json"
_AUTHORITIES: Final = ".authorities"
_SNAPSHOT: Final = ".snapshot"
_OBJECTS: Final = ".objects"
_PARTS: Final = (_AUTHORITIES, _SNAPSHOT)
"""The files of every backup. Those of earlier releases have no objects."""
_MOST_BACKUPS: Final = MOST_FILES // 4
_LARGEST_PART: Final = 64 << 20
"""The largest file that is read at once."""
_READS: Final = 16
"""How many manifests to read at once."""
_ADAPTER: Final = TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True)
class Listed:
    """The backups in a store."""

    manifests: tuple[Manifest, ...]
    damaged: tuple[str, ...]
    """The names of the backups whose manifest cannot be read."""
    names: frozenset[str] = field(default=frozenset(), compare=False)
    """The names of all files."""


def list_backups(folder: Path) -> Listed:
    """The backups in a folder, the newest first. A damaged one does not hide the others."""
    listing = _Listing(names_in(folder))
    for name in listing.manifests:
        listing.add(name, read_small(folder / name))
    return listing.listed()


async def read_backups(store: Store) -> Listed:
    """The backups in a store, the newest first. A damaged one does not hide the others."""
    listing = _Listing(await store.names())
    for start in range(0, len(listing.manifests), _READS):
        some = listing.manifests[start : start + _READS]
        contents = await asyncio.gather(*map(store.read, some))
        for name, content in zip(some, contents, strict=True):
            listing.add(name, content)
    return listing.listed()


class _Listing:
    """Collects backups from the names of files and the contents of manifests."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._found: list[Manifest] = []
        self._damaged: list[str] = []
        self.manifests = sorted(
            (name for name in names if name[:1].isdigit() and name.endswith(_MANIFEST)),
            reverse=True,
        )
        if len(self.manifests) > _MOST_BACKUPS:
            raise StoreError(f"the folder has more than {_MOST_BACKUPS} backups")

    def add(self, name: str, content: bytes | None) -> None:
        """Read a manifest. It has no content if another provider has deleted it meanwhile."""
        if content is None:
            return
        stem = name.removesuffix(_MANIFEST)
        try:
            manifest = _ADAPTER.validate_json(content)
        except ValueError:
            self._damaged.append(stem)
            return
        complete = self._names.issuperset(f"{stem}{part}" for part in _PARTS)
        if manifest.name == stem and complete:
            self._found.append(manifest)
        else:
            self._damaged.append(stem)

    def listed(self) -> Listed:
        return Listed((*self._found,), (*self._damaged,), self._names)


async def delete_backup(store: Store, name: str) -> None:
    """Delete a backup. The manifest goes first, so that no backup lacks a file."""
    for suffix in (_MANIFEST, *_PARTS, _OBJECTS):
        await store.delete(f"{name}{suffix}")


async def delete_leftovers(store: Store) -> None:
    """Delete the files of backups that were never published or not deleted completely."""
    await store.abort_uploads()
    names = set(await store.names())
    for name in sorted(names):
        stem, dot, suffix = name.partition(".")
        is_part = stem[:1].isdigit() and f"{dot}{suffix}" in {*_PARTS, _OBJECTS}
        if is_part and f"{stem}{_MANIFEST}" not in names:
            await store.delete(name)


class BackupWriter:
    """Writes a backup. It does not exist until `publish`."""

    def __init__(self, store: Store, name: str, key: bytes, authority: str) -> None:
        self._store, self._name = store, name
        self._key, self._authority = key, authority

    async def authorities(self, content: bytes) -> None:
        """Write the CAs and keys."""
        await self._write(_AUTHORITIES, single(content))

    async def objects(self, content: bytes) -> None:
        """Write the objects of Cluster API."""
        await self._write(_OBJECTS, single(content))

    async def snapshot(self, pieces: AsyncIterable[bytes]) -> int:
        """Write the snapshot of etcd, and verify it. Returns its size."""
        digest = SnapshotHash()

        async def hashed() -> AsyncGenerator[bytes]:
            async for piece in pieces:
                digest.update(piece)
                yield piece
            digest.verify()

        await self._write(_SNAPSHOT, hashed())
        return digest.size

    async def publish(self, manifest: Manifest) -> None:
        """Have the backup exist.

        Raises:
            BackupError: another process has deleted its files, which were not published yet.
        """
        names = await self._store.names()
        if any(f"{self._name}{part}" not in names for part in _PARTS):
            raise BackupError(f"files of backup {self._name} were deleted: try again")
        async with _upload(self._store, f"{self._name}{_MANIFEST}") as upload:
            await upload.write(_ADAPTER.dump_json(manifest, indent=2))

    async def _write(self, part: str, pieces: AsyncIterable[bytes]) -> None:
        purpose = purpose_of(self._authority, self._name, part)
        await write_encrypted(self._store, f"{self._name}{part}", self._key, purpose, pieces)


async def write_encrypted(
    store: Store, name: str, key: bytes, purpose: bytes, pieces: AsyncIterable[bytes]
) -> None:
    """Write a file. It exists completely afterwards, and not at all before."""
    encryption = Encryption(key, purpose)
    async with _upload(store, name) as upload:
        await upload.write(encryption.header)
        async for piece in pieces:
            for chunk in encryption.update(piece):
                await upload.write(chunk)
        await upload.write(encryption.finish())


async def read_encrypted(
    store: Store, name: str, key: bytes, purpose: bytes
) -> AsyncGenerator[bytes]:
    """The content of a file in pieces.

    Raises:
        BackupError: it is damaged, or the key is another one.
    """
    decryption = Decryption(key, purpose, name)
    async with aclosing(store.open(name)) as pieces:
        async for piece in pieces:
            for content in decryption.update(piece):
                yield content
    yield decryption.finish()


async def single(content: bytes) -> AsyncGenerator[bytes]:
    """The content of a small file."""
    yield content


@asynccontextmanager
async def _upload(store: Store, name: str) -> AsyncGenerator[Upload]:
    upload = await store.create(name)
    try:
        yield upload
        await upload.finish()
    except BaseException:
        await upload.abort()
        raise


class SnapshotHash:
    """Compares a snapshot of etcd with the SHA-256 at its end."""

    def __init__(self) -> None:
        self.size = 0
        self._hash, self._tail = hashlib.sha256(), b""

    def update(self, data: bytes) -> None:
        """Add the next bytes of the snapshot."""
        self.size += len(data)
        data = self._tail + data
        self._hash.update(data[:-_HASH_BYTES])
        self._tail = data[-_HASH_BYTES:]

    def verify(self) -> None:
        """Compare. Call it after the last byte.

        Raises:
            BackupError: the snapshot is incomplete or damaged.
        """
        if self.size % 512 != _HASH_BYTES or self._hash.digest() != self._tail:
            raise BackupError("the snapshot is not complete: its SHA-256 differs")


async def read_snapshot(store: Store, manifest: Manifest, key: bytes) -> AsyncGenerator[bytes]:
    """The snapshot of a backup in pieces. Do not use it before the last one: it is verified there.

    Raises:
        BackupError: it is damaged, or the key is another one.
    """
    digest = SnapshotHash()
    async with aclosing(_read_part(store, manifest, key, _SNAPSHOT)) as pieces:
        async for piece in pieces:
            digest.update(piece)
            yield piece
    digest.verify()


async def write_snapshot(path: Path, snapshot: AsyncGenerator[bytes]) -> None:
    """Write a snapshot into a new private file. Do not use it if this fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        async with aclosing(snapshot) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(file.flush)


async def read_authorities(store: Store, manifest: Manifest, key: bytes) -> bytes:
    """The CAs and keys of a backup.

    Raises:
        BackupError: they are damaged, or the key is another one.
    """
    return await _read_small_part(store, manifest, key, _AUTHORITIES)


async def read_objects(store: Store, manifest: Manifest, key: bytes) -> bytes | None:
    """The objects of Cluster API in a backup. None if it is of a release without them.

    Raises:
        BackupError: they are damaged, or the key is another one.
    """
    if f"{manifest.name}{_OBJECTS}" not in await store.names():
        return None
    return await _read_small_part(store, manifest, key, _OBJECTS)


async def _read_small_part(store: Store, manifest: Manifest, key: bytes, part: str) -> bytes:
    content = bytearray()
    async with aclosing(_read_part(store, manifest, key, part)) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > _LARGEST_PART:
                raise BackupError(f"{manifest.name}{part} is too large")
    return bytes(content)


def _read_part(store: Store, manifest: Manifest, key: bytes, part: str) -> AsyncGenerator[bytes]:
    purpose = purpose_of(manifest.authority, manifest.name, part)
    return read_encrypted(store, f"{manifest.name}{part}", key, purpose)


def open_backup(manifest_path: Path, key: bytes, target: Path) -> Manifest:
    """Decrypt a backup into the files `etcd.db` and `authorities.json` of a new folder.

    Raises:
        BackupError: a file is missing or damaged, or the key is another one.
    """
    try:
        manifest = _ADAPTER.validate_json(manifest_path.read_bytes())
        private_folder(target)
        snapshot = SnapshotHash()
        for part, name in zip(_PARTS, ("authorities.json", "etcd.db"), strict=True):
            source = manifest_path.with_suffix(part)
            purpose = purpose_of(manifest.authority, manifest.name, part)
            descriptor = os.open(target / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for content in _decrypted(source, key, purpose):
                    file.write(content)
                    if part == _SNAPSHOT:
                        snapshot.update(content)
        snapshot.verify()
    except (OSError, ValueError) as error:
        raise BackupError(f"{manifest_path}: {error}") from error
    return manifest


def _decrypted(path: Path, key: bytes, purpose: bytes) -> Iterator[bytes]:
    decryption = Decryption(key, purpose, str(path))
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield from decryption.update(piece)
    yield decryption.finish()
