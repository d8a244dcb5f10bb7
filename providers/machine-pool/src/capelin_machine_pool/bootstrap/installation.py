"""Programs that the provider installs on a machine: archives of a folder, or commands."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from capelin.versions import Version

STATE_FOLDER: Final = "/var/lib/capelin"
ARCHIVES: Final = f"{STATE_FOLDER}/archives"
_PARTS: Final = 8
"""Parts of archives that are in memory at once."""
_SUMS: Final = "SHA256SUMS"
_MAX_SUMS: Final = 1 << 20
_LINE: Final = re.compile(r"([0-9a-f]{64})[ \t][ *](\S+)")


def is_version(text: str) -> bool:
    """Whether a text is a version as a kubelet reports it: `v1.2.3`."""
    try:
        Version.parse(text)
    except ValueError:
        return False
    return text.startswith("v")


class NoArchiveError(Exception):
    """The folder has no usable archive. The text names the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A file of the provider that is unpacked below the root folder of a machine."""

    path: Path
    sha256: str
    size: int
    slots: asyncio.Semaphore = field(repr=False, compare=False)
    """The limit for parts in memory."""

    @property
    def name(self) -> str:
        return self.path.name

    @asynccontextmanager
    async def part(self, offset: int, length: int) -> AsyncGenerator[bytes]:
        """A part of it. Few parts exist at a time."""
        async with self.slots:
            yield await asyncio.to_thread(_read, self.path, offset, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """How a machine gets the programs of a Kubernetes version."""

    version: str = ""
    commands: tuple[str, ...] = ()
    archive: Archive | None = None


NOTHING: Final = Installation()
"""The machine has its programs already."""


class Archives:
    """A folder of the provider with archives of programs.

    It has a file SHA256SUMS as `sha256sum` writes it. Files without a line there are not used.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._slots = asyncio.Semaphore(_PARTS)

    async def find(self, version: str, architecture: str) -> Archive:
        """The archive with the programs of a version.

        Raises:
            NoArchiveError: It does not exist, or does not have its checksum.
        """
        if self._folder is None:
            raise NoArchiveError("the provider has no archives: start it with --host-bundles")
        if not is_version(version) or not architecture.isalnum():
            raise NoArchiveError(f"{version} is not a version with an archive: write v1.2.3")
        name = f"kubernetes-{version}-linux-{architecture}.tar.gz"
        return await asyncio.to_thread(_find, self._folder, name, self._slots)


def _find(folder: Path, name: str, slots: asyncio.Semaphore) -> Archive:
    where, path = "the folder of --host-bundles", folder / name
    try:
        with (folder / _SUMS).open() as file:
            lines = file.read(_MAX_SUMS).splitlines()
    except (OSError, UnicodeDecodeError):
        raise NoArchiveError(f"{where} has no readable file {_SUMS}") from None
    sums = {match[2]: match[1] for line in lines if (match := _LINE.fullmatch(line))}
    if name not in sums:
        raise NoArchiveError(f"{where} has no {name}: add it, and its line in {_SUMS}")
    try:
        status = path.stat()
        digest = _digest(path, status.st_size, status.st_mtime_ns)
    except OSError:
        raise NoArchiveError(f"{where} has no readable {name}") from None
    if digest != sums[name]:
        raise NoArchiveError(f"{name} in {where} does not have the checksum in {_SUMS}")
    return Archive(path, digest, status.st_size, slots)


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, changed: int) -> str:
    del size, changed
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
