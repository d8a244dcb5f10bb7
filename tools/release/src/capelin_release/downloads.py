"""Files that a release is built from, by their SHA-256: from the cache, else from their sources."""

import hashlib
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from capelin.embedded.folders import cache_folder
from capelin.errors import UserError

_TIMEOUT = 60.0
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
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(files, pool.map(self._fetch, files.values()), strict=True))

    def _fetch(self, pinned: Pinned) -> Path:
        file = self.folder / pinned.sha256
        if file.is_file() and _sha256(file.read_bytes()) == pinned.sha256:
            return file
        data = _first(pinned.name, pinned.urls)
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
        return file


def read_url(url: str) -> bytes:
    """What a URL answers. Proxies and certificates come from the environment.

    Raises:
        OSError: It does not answer, or not with success.
    """
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadError(f"{url} is no address of a web server.")
    request = urllib.request.Request(url, headers={"User-Agent": "capelin"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
        return response.read()


def _first(name: str, urls: Sequence[str]) -> bytes:
    reasons: list[str] = []
    for url in urls:
        try:
            return read_url(url)
        except urllib.error.HTTPError as error:
            reasons.append(f"{url}: {error.code} {error.reason}")
        except OSError as error:
            reasons.append(f"{url}: {error.strerror or error}")
    raise DownloadError(f"{name} cannot be downloaded.", reason="; ".join(reasons))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
