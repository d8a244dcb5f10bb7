"""The files of backups: encrypted, and published in one step by their manifest."""

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from capelin.embedded.processes import private_folder, write_private
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import TypeAdapter

from capelin_control_plane.backups import Manifest

FEWEST_KEY_BYTES: Final = 32
_MAGIC: Final = b"capelin-backup/1\n"
_SALT_BYTES: Final = 16
_CHUNK_BYTES: Final = 2**20
_TAG_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MANIFEST: Final = ".json"
_PARTS: Final = (".authorities", ".snapshot")
_PARTIAL: Final = ".partial"
_ADAPTER: Final = TypeAdapter(Manifest)


class BackupError(Exception):
    """A backup cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The backups in a folder."""

    manifests: tuple[Manifest, ...]
    damaged: tuple[str, ...]
    """The names of the backups whose manifest cannot be read."""


def list_backups(folder: Path) -> Listed:
    """The backups in a folder, the newest first. A damaged one does not hide the others."""
    manifests: list[Manifest] = []
    damaged: list[str] = []
    for path in sorted(folder.glob(f"[0-9]*{_MANIFEST}"), reverse=True):
        try:
            manifest = _ADAPTER.validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            damaged.append(path.stem)
        else:
            named = manifest.name == path.stem
            complete = all(path.with_suffix(part).is_file() for part in _PARTS)
            if named and complete:
                manifests.append(manifest)
            else:
                damaged.append(path.stem)
    return Listed(tuple(manifests), tuple(damaged))


def delete_backup(folder: Path, name: str) -> None:
    """Delete a backup. The manifest goes first, so that no backup lacks a file."""
    for suffix in (_MANIFEST, *_PARTS):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


def delete_leftovers(folder: Path) -> None:
    """Delete the files of backups that were never published or not deleted completely."""
    for path in folder.glob("[0-9]*"):
        is_part = path.suffix in (*_PARTS, _PARTIAL)
        if is_part and not (folder / f"{path.name.partition('.')[0]}{_MANIFEST}").exists():
            path.unlink(missing_ok=True)


class BackupWriter:
    """Writes a backup. Nothing of it exists until `publish`."""

    def __init__(self, root: Path, folder: Path, name: str, key: bytes, authority: str) -> None:
        if not root.is_dir():
            # A volume that is not mounted must not fill the disk below it.
            raise BackupError(f"{root} is not a folder")
        path = root
        for part in folder.relative_to(root).parts:
            path = private_folder(path / part)
        self._folder, self._name = folder, name
        self._key, self._authority = key, authority

    def authorities(self, content: bytes) -> None:
        """Write the CAs and keys."""
        with self._encrypted(".authorities") as file:
            file.write(content)

    def snapshot(self) -> "EncryptedFile":
        """The file for the snapshot of etcd."""
        return self._encrypted(".snapshot")

    def publish(self, manifest: Manifest) -> None:
        """Have the backup exist."""
        for part in _PARTS:
            path = self._folder / f"{self._name}{part}"
            path.with_name(f"{path.name}{_PARTIAL}").replace(path)
        _sync(self._folder)
        content = _ADAPTER.dump_json(manifest, indent=2)
        write_private(self._folder / f"{self._name}{_MANIFEST}", content, lasting=True)
        _sync(self._folder)

    def _encrypted(self, part: str) -> "EncryptedFile":
        path = self._folder / f"{self._name}{part}{_PARTIAL}"
        return EncryptedFile(path, self._key, _purpose(self._authority, self._name, part))


class EncryptedFile:
    """A file in chunks of AES-256-GCM, none of which can be changed, moved or left out."""

    def __init__(self, path: Path, key: bytes, purpose: bytes) -> None:
        header = _MAGIC + os.urandom(_SALT_BYTES)
        self._cipher, self._header = _cipher(key, header, purpose), header
        self._pending, self._index = bytearray(), 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._file.write(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._write(bytes(self._pending), is_last=True)
                self._file.flush()
                os.fsync(self._file.fileno())

    def write(self, data: bytes) -> None:
        """Encrypt more data. At most a chunk stays in memory."""
        self._pending += data
        while len(self._pending) > _CHUNK_BYTES:
            self._write(bytes(self._pending[:_CHUNK_BYTES]), is_last=False)
            del self._pending[:_CHUNK_BYTES]

    def _write(self, chunk: bytes, *, is_last: bool) -> None:
        nonce = _nonce(self._index, is_last=is_last)
        self._file.write(self._cipher.encrypt(nonce, chunk, self._header))
        self._index += 1


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
            purpose = _purpose(manifest.authority, manifest.name, part)
            descriptor = os.open(target / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for chunk in _decrypted(source, key, purpose):
                    file.write(chunk)
                    if name == "etcd.db":
                        snapshot.update(chunk)
        snapshot.verify()
    except (OSError, ValueError) as error:
        raise BackupError(f"{manifest_path}: {error}") from error
    return manifest


def _decrypted(path: Path, key: bytes, purpose: bytes) -> Iterator[bytes]:
    with path.open("rb") as file:
        header = file.read(len(_MAGIC) + _SALT_BYTES)
        if not header.startswith(_MAGIC):
            raise BackupError(f"{path} is not part of a backup")
        cipher = _cipher(key, header, purpose)
        chunk, index = file.read(_CHUNK_BYTES + _TAG_BYTES), 0
        while chunk:
            following = file.read(_CHUNK_BYTES + _TAG_BYTES)
            try:
                yield cipher.decrypt(_nonce(index, is_last=not following), chunk, header)
            except InvalidTag:
                raise BackupError(f"{path} is damaged, or the key is another one") from None
            chunk, index = following, index + 1
        if index == 0:
            raise BackupError(f"{path} is empty")


def _cipher(key: bytes, header: bytes, purpose: bytes) -> AESGCM:
    # Each file has its own key, so that numbers can be nonces.
    salt = header[len(_MAGIC) :]
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=purpose).derive(key))


def _nonce(index: int, *, is_last: bool) -> bytes:
    return struct.pack(">IQ", int(is_last), index)


def _purpose(*parts: str) -> bytes:
    return "\0".join(parts).encode()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
