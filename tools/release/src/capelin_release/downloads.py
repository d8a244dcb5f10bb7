"""Files that a release is built from, by their SHA-256: from the cache, else from their sources."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.binaries import BinariesError, open_web
from capelin.embedded.folders import cache_folder
from capelin.errors import UserError

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file, wherever it comes from."""

    name: str
    sha256: str
    urls: tuple[str, ...]
    """Where it may be, the first choice first."""


class DownloadError(UserError):
    """A file cannot be had, or is not the pinned one."""


class Downloads:
    """A folder of files named by their digests, filled on demand. A full one needs no network."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "packages"

    def fetch(self, wanted: Iterable[Pinned]) -> dict[str, Path]:
        """The files, by their digests.

        Raises:
            DownloadError: None of a file's sources has it, or one has other bytes.
        """
        files = {pinned.sha256: pinned for pinned in wanted}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return asyncio.run(self._fetch_all(files))

    async def _fetch_all(self, files: dict[str, Pinned]) -> dict[str, Path]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def fetch(pinned: Pinned) -> Path:
            async with turn:
                return await self._fetch(pinned)

        return dict(zip(files, await asyncio.gather(*map(fetch, files.values())), strict=True))

    async def _fetch(self, pinned: Pinned) -> Path:
        file = self.folder / pinned.sha256
        if file.is_file() and _sha256(file.read_bytes()) == pinned.sha256:
            return file
        self._keep(pinned, await _first(pinned), file)
        return file

    def _keep(self, pinned: Pinned, data: bytes, file: Path) -> None:
        actual = _sha256(data)
        if actual != pinned.sha256:
            raise DownloadError(
                f"{pinned.name} is damaged or forged.",
                reason=f"Its SHA-256 is {actual}, and the lock file says {pinned.sha256}.",
            )
        # Renamed into place, so that another process never reads half of it.
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as partial:
            partial.write(data)
        Path(partial.name).replace(file)


async def read_url(url: str) -> bytes:
    """The body of a response. Proxies and certificates come from the environment.

    Raises:
        DownloadError: The server does not answer, or not with success.
    """
    try:
        async with open_web(os.environ) as web, web.get(url, {}) as response:
            if not response.ok:
                raise DownloadError(f"{url}: {response.status}")
            return await response.read()
    except BinariesError as error:
        raise DownloadError(f"{url}: {error}") from error


async def _first(pinned: Pinned) -> bytes:
    reasons: list[str] = []
    for url in pinned.urls:
        try:
            return await read_url(url)
        except DownloadError as error:
            reasons.append(error.message)
    raise DownloadError(f"{pinned.name} cannot be downloaded.", reason="; ".join(reasons))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
