"""Cluster API's reference extension in Go and Capelin's drop-in replacement, as processes."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from capelin.pki import issue, new_ca
from capelin_embedded.addresses import address_of, free_port, is_listening
from capelin_embedded.binaries import Binaries

HOST = address_of(f"tests of extensions {os.getpid()}")
"""A loopback address of this process's own: no other program takes a port of it in between."""

CLOCK = "clock"
"""The file with the time of the lifecycle extension."""

_INTEGRATION = Path(__file__).parent / "integration"
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - only asked for a free port


@dataclass(frozen=True, slots=True)
class Running:
    """A program that listens."""

    port: int
    pid: int


def certificates(folder: Path) -> bytes:
    """Write a certificate to `tls.crt` and `tls.key` and its CA to `ca.crt`. Return the CA."""
    now = datetime.now(UTC)
    ca = new_ca("extension", now=now)
    shown = issue(ca, common_name="extension", usages=["server"], addresses=[HOST], now=now)
    (folder / "ca.crt").write_bytes(ca.certificate_pem)
    (folder / "tls.crt").write_bytes(shown.certificate_pem)
    (folder / "tls.key").write_bytes(shown.private_key_pem)
    return ca.certificate_pem


@asynccontextmanager
async def reference(folder: Path, kubeconfig: Path, *options: str) -> AsyncGenerator[Running]:
    """Cluster API's reference extension with the certificates of a folder."""
    # It has no flag for the address: it listens on all of them.
    port = free_port(_ALL_ADDRESSES)
    async with _running(
        folder / "reference.log",
        port,
        str(await Binaries().path("test-extension")),
        f"--kubeconfig={kubeconfig}",
        f"--webhook-port={port}",
        f"--webhook-cert-dir={folder}",
        f"--health-addr={HOST}:0",
        f"--diagnostics-address={HOST}:0",
        *options,
    ) as running:
        yield running


@asynccontextmanager
async def drop_in(folder: Path, kubeconfig: Path, *options: str) -> AsyncGenerator[Running]:
    """Capelin's drop-in with the certificates of a folder."""
    program = _INTEGRATION / "reference_extension.py"
    settings = {"KUBECONFIG": kubeconfig}
    async with _extension(program, folder, "capelin", *options, settings=settings) as running:
        yield running


@asynccontextmanager
async def example(program: Path, folder: Path, *options: str) -> AsyncGenerator[Running]:
    """An example, with the certificates of a folder and its log there."""
    async with _extension(program, folder, "example", *options) as running:
        yield running


@asynccontextmanager
async def lifecycle(
    folder: Path, kubeconfig: Path, name: str, *options: str, port: int = 0
) -> AsyncGenerator[Running]:
    """The lifecycle extension with a clock that tests set, with the certificates of a folder.

    Its log there has its name. Without a port, it takes any.
    """
    program = _INTEGRATION / "lifecycle_extension.py"
    settings = {"KUBECONFIG": kubeconfig, "CLOCK": folder / CLOCK}
    async with _extension(program, folder, name, *options, settings=settings, port=port) as running:
        yield running


@asynccontextmanager
async def _extension(
    program: Path,
    folder: Path,
    name: str,
    *options: str,
    settings: Mapping[str, Path] = MappingProxyType({}),
    port: int = 0,
) -> AsyncGenerator[Running]:
    """An extension in Python, with the certificates of a folder, and its log there."""
    port = port or free_port(HOST)
    async with _running(
        folder / f"{name}.log",
        port,
        "env",
        *(f"{variable}={value}" for variable, value in settings.items()),
        sys.executable,
        str(program),
        f"--host={HOST}",
        f"--port={port}",
        "--probes-port=0",
        f"--cert-dir={folder}",
        "--drain-seconds=0",
        *options,
    ) as running:
        yield running


@asynccontextmanager
async def _running(log: Path, port: int, *command: str) -> AsyncGenerator[Running]:
    """Run a server until the end of the context."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file)
    try:
        async with asyncio.timeout(60):
            while not await is_listening(HOST, port):
                if process.returncode is not None:
                    raise RuntimeError(f"{command[0]} has ended. Its log is {log}")
                await asyncio.sleep(0.1)
        yield Running(port, process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
