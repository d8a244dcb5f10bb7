"""Packages of the tests: `.deb` files, wheels and layers made in memory, and a web server."""

import base64
import hashlib
import io
import lzma
import struct
import tarfile
import threading
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from capelin_release.debian import LockedPackage
from capelin_release.files import File, Package

PACKAGE = Package("wheel", "sample", "1.0", "pkg:pypi/sample@1.0")


@contextmanager
def serving(files: Mapping[str, bytes]) -> Generator[str]:
    """The URL of a web server that has files at these paths."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in files else 404)
            self.end_headers()
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *_: object) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def a_file(content: bytes = b"", mode: int = 0o644) -> File:
    return File(PACKAGE, mode, content=content)


def an_elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


def a_tar(members: Mapping[str, bytes | str | None], modes: Mapping[str, int]) -> bytes:
    """Files by content, links by target, folders by None."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, content in members.items():
            info = tarfile.TarInfo(path)
            info.mode = modes.get(path, 0o644)
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return stream.getvalue()


def a_deb(
    folder: Path,
    name: str,
    members: Mapping[str, bytes | str | None],
    *,
    modes: Mapping[str, int] | None = None,
    version: str = "1.0-1",
    suffix: str = ".xz",
) -> LockedPackage:
    """A Debian package in a cache of downloads, and its line in a lock file."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n".encode()
    sums = "".join(
        f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}  {path.removeprefix('./')}\n"
        for path, content in members.items()
        if isinstance(content, bytes)
    )
    data = b"!<arch>\n" + b"".join(
        an_ar_member(member, content)
        for member, content in (
            ("debian-binary", b"2.0\n"),
            (
                "control.tar.xz",
                lzma.compress(a_tar({"./control": control, "./md5sums": sums.encode()}, {})),
            ),
            (f"data.tar{suffix}", lzma.compress(a_tar(members, modes or {}))),
        )
    )
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(exist_ok=True)
    (folder / digest).write_bytes(data)
    return LockedPackage(name, version, "amd64", "debian", f"pool/{name}.deb", digest)


def an_ar_member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def a_wheel(name: str, files: Mapping[str, bytes], *, record: bytes | None = None) -> bytes:
    version = "1.0"
    folder = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    contents = {**files, f"{folder}/METADATA": metadata.encode()}
    right = "".join(
        f"{path},sha256={_encoded(hashlib.sha256(content).digest())},{len(content)}\n"
        for path, content in contents.items()
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, content in {**contents, f"{folder}/RECORD": record or right.encode()}.items():
            archive.writestr(path, content)
    return stream.getvalue()


def _encoded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
