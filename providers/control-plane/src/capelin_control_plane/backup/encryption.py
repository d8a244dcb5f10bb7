"""The encryption of backups: chunks of AES-256-GCM, none of which can be changed or left out."""

import os
import struct
from collections.abc import Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FEWEST_KEY_BYTES: Final = 32
_MAGIC: Final = b"capelin-backup/1\n"
_SALT_BYTES: Final = 16
_HEADER_BYTES: Final = len(_MAGIC) + _SALT_BYTES
_CHUNK_BYTES: Final = 2**20
_TAG_BYTES: Final = 16


class BackupError(Exception):
    """A backup cannot be written or read."""


class Encryption:
    """Encrypts a file of a backup."""

    def __init__(self, key: bytes, purpose: bytes) -> None:
        self.header = _MAGIC + os.urandom(_SALT_BYTES)
        self._cipher = _cipher(key, self.header, purpose)
        self._pending, self._index = bytearray(), 0

    def update(self, data: bytes) -> Iterator[bytes]:
        """The chunks that are complete with more data. At most one stays in memory."""
        self._pending += data
        while len(self._pending) > _CHUNK_BYTES:
            chunk = bytes(self._pending[:_CHUNK_BYTES])
            del self._pending[:_CHUNK_BYTES]
            yield self._encrypted(chunk, is_last=False)

    def finish(self) -> bytes:
        """The last chunk."""
        return self._encrypted(bytes(self._pending), is_last=True)

    def _encrypted(self, chunk: bytes, *, is_last: bool) -> bytes:
        nonce = _nonce(self._index, is_last=is_last)
        self._index += 1
        return self._cipher.encrypt(nonce, chunk, self.header)


class Decryption:
    """Decrypts a file of a backup."""

    def __init__(self, key: bytes, purpose: bytes, name: str) -> None:
        self._key, self._purpose, self._name = key, purpose, name
        self._header = b""
        self._cipher: AESGCM | None = None
        self._pending, self._index = bytearray(), 0

    def update(self, data: bytes) -> Iterator[bytes]:
        """The content of the chunks that are complete with more data.

        Raises:
            BackupError: the file is damaged, or the key is another one.
        """
        self._pending += data
        if self._cipher is None:
            if len(self._pending) < _HEADER_BYTES:
                return
            self._header = bytes(self._pending[:_HEADER_BYTES])
            del self._pending[:_HEADER_BYTES]
            if not self._header.startswith(_MAGIC):
                raise BackupError(f"{self._name} is not part of a backup")
            self._cipher = _cipher(self._key, self._header, self._purpose)
        size = _CHUNK_BYTES + _TAG_BYTES
        # Only the end of the file shows that a chunk is the last one.
        while len(self._pending) > size:
            chunk = bytes(self._pending[:size])
            del self._pending[:size]
            yield self._decrypted(self._cipher, chunk, is_last=False)

    def finish(self) -> bytes:
        """The content of the last chunk.

        Raises:
            BackupError: the file is incomplete or damaged, or the key is another one.
        """
        if self._cipher is None:
            raise BackupError(f"{self._name} is not part of a backup")
        if not self._pending:
            raise BackupError(f"{self._name} is empty")
        return self._decrypted(self._cipher, bytes(self._pending), is_last=True)

    def _decrypted(self, cipher: AESGCM, chunk: bytes, *, is_last: bool) -> bytes:
        try:
            content = cipher.decrypt(_nonce(self._index, is_last=is_last), chunk, self._header)
        except InvalidTag:
            raise BackupError(f"{self._name} is damaged, or the key is another one") from None
        self._index += 1
        return content


def _cipher(key: bytes, header: bytes, purpose: bytes) -> AESGCM:
    # Each file has its own key, so that numbers can be nonces.
    salt = header[len(_MAGIC) :]
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=purpose).derive(key))


def _nonce(index: int, *, is_last: bool) -> bytes:
    return struct.pack(">IQ", int(is_last), index)


def purpose_of(*parts: str) -> bytes:
    """The purpose of a file, which its key depends on."""
    return "\0".join(parts).encode()
