"""Downloads: fallback to the next source, and the cache."""

import hashlib
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from capelin_release.downloads import DownloadError, Downloads, Pinned


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/fish" else 404)
        self.end_headers()
        self.wfile.write(b"fish")

    def log_message(self, *_: object) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


@pytest.fixture
def server() -> Generator[str]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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
