"""The requests of a load, recorded by a server."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.client import Config, Server
from capelin.pki import issue, new_ca

from tests.load import Load

NOW = datetime.now(UTC)
CA = new_ca("ca", now=NOW)
LEAF = issue(CA, common_name="api", usages=("server",), addresses=["127.0.0.1"], now=NOW)
GOOD = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Api:
    """A server with scripted answers that records the connection of each request."""

    answer: Callable[[int], bytes]
    received: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        mine = self.connections
        with suppress(EOFError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                await reader.readexactly(length)
                self.received.append((mine, head.split()[0]))
                response = self.answer(len(self.received))
                writer.write(response)
                if not response or b"close" in response:
                    break
        writer.close()


@asynccontextmanager
async def loaded(api: Api, folder: Path, *, keeps: bool, times: int = 4) -> AsyncGenerator[Load]:
    """A load that has sent this many requests to the server."""
    (folder / "pair").write_bytes(LEAF.certificate_pem + LEAF.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "pair")
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    load = Load(Config(Server(f"https://127.0.0.1:{port}", ca=CA.certificate_pem)), keeps=keeps)
    running = asyncio.create_task(load.run())
    try:
        await load.reaches(times + 1)
        yield load
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        server.close()


@pytest.mark.parametrize(("keeps", "connections"), [(False, [1, 2, 3, 4]), (True, [1, 1, 1, 1])])
async def test_each_request_opens_a_connection_unless_connections_are_reused(
    keeps: bool, connections: list[int], tmp_path: Path
) -> None:
    api = Api(lambda _: GOOD)
    async with loaded(api, tmp_path, keeps=keeps) as load:
        assert [number for number, _ in api.received[:4]] == connections
        assert [method for _, method in api.received[:4]] == ["POST", "GET", "POST", "GET"]
        assert load.failed == []
        assert len(load.written) == 2


async def test_a_connection_closed_between_requests_fails_no_request(tmp_path: Path) -> None:
    closing = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    api = Api(lambda number: closing if number == 2 else GOOD)
    async with loaded(api, tmp_path, keeps=True) as load:
        assert [number for number, _ in api.received[:4]] == [1, 1, 2, 2]
        assert load.failed == []


@pytest.mark.parametrize("keeps", [False, True])
async def test_lost_answer_is_a_failure(keeps: bool, tmp_path: Path) -> None:
    api = Api(lambda number: b"" if number == 2 else GOOD)
    async with loaded(api, tmp_path, keeps=keeps) as load:
        assert [method for _, method in api.received[:4]] == ["POST", "GET", "POST", "GET"]
        (failed,) = load.failed
        assert failed.startswith("GET /api/v1/namespaces/default/configmaps/key-000000")


async def test_a_failed_request_records_status_and_body(tmp_path: Path) -> None:
    head = b"HTTP/1.1 503 Sorry\r\nTransfer-Encoding: chunked\r\n\r\n"
    unavailable = head + b"4\r\nbusy\r\n4\r\n now\r\n0\r\n\r\n"
    api = Api(lambda number: unavailable if number == 1 else GOOD)
    async with loaded(api, tmp_path, keeps=True) as load:
        assert load.failed == ["POST /api/v1/namespaces/default/configmaps: 503 busy now"]
        assert api.received[:4] == [(1, "POST"), (1, "POST"), (1, "GET"), (1, "POST")]


async def test_a_request_is_repeated_after_retry_after(tmp_path: Path) -> None:
    head = b"HTTP/1.1 429 Later\r\nRetry-After: 0\r\nConnection: close\r\n"
    api = Api(lambda number: head + b"Content-Length: 0\r\n\r\n" if number == 2 else GOOD)
    async with loaded(api, tmp_path, keeps=True) as load:
        assert api.received[:4] == [(1, "POST"), (1, "GET"), (2, "GET"), (2, "POST")]
        assert load.failed == []
        assert load.postponed == 1


async def test_a_truncated_response_is_a_failure(tmp_path: Path) -> None:
    broken = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nbu"
    api = Api(lambda number: broken if number == 2 else GOOD)
    async with loaded(api, tmp_path, keeps=True) as load:
        (failed,) = load.failed
        assert failed.startswith("GET /api/v1/namespaces/default/configmaps/key-000000")
