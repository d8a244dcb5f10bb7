"""Probes decide when processes of a control plane are ready."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from capelin_control_plane.backends.processes import instance_status
from capelin_control_plane.backends.processes.components import etcd_metrics_port, etcd_port
from capelin_control_plane.backends.processes.instance_status import reachability, readiness
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.instances import Instance
from capelin_embedded.addresses import free_address
from capelin_embedded.processes import Probe

MEMBER = Instance("etcd", 1, "v1.34.4", ("etcd",))
NO_LEADER = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
WELL = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    ports = (etcd_port(MEMBER.index), etcd_metrics_port(MEMBER.index))
    return StateDir(tmp_path, free_address(str(tmp_path), ports=ports))


@asynccontextmanager
async def answering(address: str, port: int, response: bytes) -> AsyncGenerator[list[bytes]]:
    """A server with one fixed response, and the request lines it received."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        writer.write(response)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, address, port):
        yield requests


async def result_of(probe: Probe | None) -> str:
    assert probe is not None
    answers = probe()
    try:
        return await anext(answers)
    finally:
        await answers.aclose()


async def test_member_without_a_leader_is_not_ready(
    state_dir: StateDir,
) -> None:
    with socket.create_server((state_dir.address, etcd_port(1))):
        async with answering(state_dir.address, etcd_metrics_port(1), NO_LEADER):
            assert await result_of(reachability(state_dir, MEMBER)) == ""
            assert await result_of(readiness(state_dir, MEMBER)) == "it answers 503"


async def test_full_member_is_ready(
    state_dir: StateDir,
) -> None:
    async with answering(state_dir.address, etcd_metrics_port(1), WELL) as requests:
        assert await result_of(readiness(state_dir, MEMBER)) == ""
    assert requests == [b"GET /health?exclude=NOSPACE HTTP/1.1"]


def content(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_probe_uses_the_renewed_certificate(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(url: str, *, certificate: Path, **_: object) -> AsyncGenerator[str, None]:
        assert url.endswith("/readyz")
        shown = content(certificate)
        while True:
            yield "" if shown == b"renewed" else "it answers 401"

    monkeypatch.setattr(instance_status, "readiness_probe", asks)
    server = Instance("kube-apiserver", 0, "v1.34.4", ("kube-apiserver",))
    answers = readiness(state_dir, server)()
    certificate = state_dir.certificate("admin")
    assert str(certificate) in await anext(answers)
    certificate.parent.mkdir()
    certificate.write_text("expired")
    os.utime(certificate, (0, 0))
    assert await anext(answers) == "it answers 401"
    certificate.write_text("renewed")
    assert await anext(answers) == ""
    await answers.aclose()
