"""A real S3 server: versitygw, built from its pinned Go module."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from capelin.pki import issue, new_ca
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, is_listening
from capelin_embedded.binaries import Binaries, Component, Project

VERSITYGW = Component(
    "versitygw",
    Project(
        "versitygw",
        "Versity S3 Gateway",
        sources={},
        stamps={},
        modules=Path(__file__).parent / "modules",
    ),
    "github.com/versity/versitygw/cmd/versitygw",
)
BUCKET = "backups"
KEY_ID, SECRET = "capelin", "a-secret-for-tests"
SECRET_DATA = {
    "AWS_ACCESS_KEY_ID": KEY_ID.encode(),
    "AWS_SECRET_ACCESS_KEY": f"{SECRET}\n".encode(),
}


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    host: str
    port: int
    ca: str
    """The certificate of its CA."""
    objects: Path
    """The folder with the objects of the bucket."""
    certificate: Path
    key: Path

    @property
    def endpoint(self) -> str:
        return f"https://{self.host}:{self.port}"

    def keys(self) -> list[str]:
        """The keys of all objects."""
        return sorted(
            str(path.relative_to(self.objects))
            for path in self.objects.rglob("*")
            if path.is_file() and ".sgwtmp" not in path.parts
        )

    def uploads(self) -> list[Path]:
        """The uploads that were begun, and neither completed nor aborted."""
        return list(self.objects.glob(".sgwtmp/multipart/*/*"))


@asynccontextmanager
async def s3_server(folder: Path, host: str = "127.0.0.1") -> AsyncGenerator[S3Server]:
    """Run a server with TLS until the end of the context."""
    program = await Binaries().path(VERSITYGW)
    port = free_port(host)
    ca = new_ca("s3", now=datetime.now(UTC))
    serving = issue(
        ca, common_name="s3", usages=["server"], addresses=[host], now=datetime.now(UTC)
    )
    certificate, key, data = folder / "tls.crt", folder / "tls.key", folder / "data"
    server = S3Server(host, port, ca.certificate_pem.decode(), data / BUCKET, certificate, key)
    _prepare(server.objects, {certificate: serving.certificate_pem, key: serving.private_key_pem})
    settings = {**os.environ, "ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    command = [f"--port={host}:{port}", f"--cert={certificate}", f"--key={key}", "--quiet"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *command, "posix", data, stdout=log, stderr=log, env=settings
        )
    try:
        await until(lambda: is_listening(host, port))
        yield server
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _prepare(folder: Path, files: Mapping[Path, bytes]) -> None:
    folder.mkdir(parents=True)
    for path, content in files.items():
        path.write_bytes(content)
