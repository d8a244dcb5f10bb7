"""Files that a release is built from, by their SHA-256: from the cache, else from their sources."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from capelin.errors import UserError
from capelin_embedded.binaries import BinariesError, open_web
from capelin_embedded.folders import cache_folder

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file, wherever it comes from."""

    name: str
    sha256: str
    urls: tuple[str, ...]
    """Its sources, the first choice first."""


class DownloadError(UserError):
    """A file cannot be downloaded, or is not the pinned one."""


class Downloads:
    """A folder of files named by their digests, filled on demand. A full one needs no network."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "packages"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def cached(self, sha256: str) -> Path | None:
        """The file of this digest, if the folder has it undamaged."""
        file = self.folder / sha256
        return file if file.is_file() and _sha256(file.read_bytes()) == sha256 else None

    def add(self, name: str, data: bytes) -> Pinned:
        """Keep a file of this machine as it is now."""
        pinned = Pinned(name, _sha256(data), ())
        self._keep(pinned, data)
        return pinned

    def fetch(self, wanted: Iterable[Pinned]) -> dict[str, Path]:
        """The files, by their digests."""
        return asyncio.run(self._fetch_all({pinned.sha256: pinned for pinned in wanted}))

    async def _fetch_all(self, files: dict[str, Pinned]) -> dict[str, Path]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def fetch(pinned: Pinned) -> Path:
            async with turn:
                return self.cached(pinned.sha256) or self._keep(pinned, await _first(pinned))

        return dict(zip(files, await asyncio.gather(*map(fetch, files.values())), strict=True))

    def _keep(self, pinned: Pinned, data: bytes) -> Path:
        actual = _sha256(data)
        if actual != pinned.sha256:
            raise DownloadError(
                f"{pinned.name} is damaged or forged.",
                reason=f"Its SHA-256 is {actual}, but the lock file has {pinned.sha256}.",
            )
        # Renamed into place, so that another process never reads half of it.
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as partial:
            partial.write(data)
        return Path(partial.name).replace(self.folder / actual)


async def _first(pinned: Pinned) -> bytes:
    """The file from the first source that has it. Proxies come from the environment."""
    reasons: list[str] = []
    async with open_web(os.environ) as web:
        for url in pinned.urls:
            try:
                async with web.get(url, {}) as response:
                    if response.ok:
                        return await response.read()
                    reasons.append(f"{url}: {response.status}")
            except BinariesError as error:
                reasons.append(f"{url}: {error}")
    raise DownloadError(f"{pinned.name} cannot be downloaded.", reason="; ".join(reasons))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
