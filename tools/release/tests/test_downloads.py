"""Downloads: fallback to the next source, and the cache."""

import hashlib
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin_release.downloads import DownloadError, Downloads, Pinned

from tools.release.tests.packages import serving


@pytest.fixture
def server() -> Generator[str]:
    with serving({"/fish": b"fish"}) as url:
        yield url


def test_a_download_tries_the_next_source_and_then_uses_the_cache(
    server: str, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"fish").hexdigest()
    downloads = Downloads(tmp_path / "downloads")
    found = downloads.fetch([Pinned("fish", digest, (f"{server}/gone", f"{server}/fish"))])
    assert found[digest].read_bytes() == b"fish"
    assert downloads.fetch([Pinned("fish", digest, ())]) == found


def test_an_error_names_all_failed_sources(server: str, tmp_path: Path) -> None:
    urls = (f"{server}/gone", "http://127.0.0.1:1/fish")
    with pytest.raises(DownloadError, match=r"fish cannot be downloaded") as error:
        Downloads(tmp_path / "downloads").fetch([Pinned("fish", "0" * 64, urls)])
    assert f"{server}/gone: 404" in error.value.reason
    assert "127.0.0.1 does not answer" in error.value.reason


def test_downloads_accept_only_http_urls(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"fish")
    pinned = Pinned("fish", hashlib.sha256(b"fish").hexdigest(), (file.as_uri(),))
    with pytest.raises(DownloadError, match="fish cannot be downloaded"):
        Downloads(tmp_path / "downloads").fetch([pinned])
