"""Requests that are seldom repeated, by what a server sees of them."""

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
    """A server that answers as it is told, and knows on which connection each request came."""

    answer: Callable[[int], bytes]
    came: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        mine = self.connections
        with suppress(EOFError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                await reader.readexactly(length)
                self.came.append((mine, head.split()[0]))
                said = self.answer(len(self.came))
                writer.write(said)
                if not said or b"close" in said:
                    break
        writer.close()


@asynccontextmanager
async def asked(api: Api, folder: Path, *, keeps: bool, times: int = 4) -> AsyncGenerator[Load]:
    """A load on that server that has sent so many requests."""
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
async def test_each_request_has_its_connection_unless_they_are_kept(
    keeps: bool, connections: list[int], tmp_path: Path
) -> None:
    api = Api(lambda _: GOOD)
    async with asked(api, tmp_path, keeps=keeps) as load:
        assert [number for number, _ in api.came[:4]] == connections
        assert [method for _, method in api.came[:4]] == ["POST", "GET", "POST", "GET"]
        assert load.failed == []
        assert len(load.written) == 2


async def test_a_kept_connection_that_was_closed_in_time_fails_nothing(tmp_path: Path) -> None:
    closing = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    api = Api(lambda number: closing if number == 2 else GOOD)
    async with asked(api, tmp_path, keeps=True) as load:
        assert [number for number, _ in api.came[:4]] == [1, 1, 2, 2]
        assert load.failed == []


@pytest.mark.parametrize("keeps", [False, True])
async def test_lost_answer_is_a_failure(keeps: bool, tmp_path: Path) -> None:
    api = Api(lambda number: b"" if number == 2 else GOOD)
    async with asked(api, tmp_path, keeps=keeps) as load:
        assert [method for _, method in api.came[:4]] == ["POST", "GET", "POST", "GET"]
        (failed,) = load.failed
        assert failed.startswith("GET /api/v1/namespaces/default/configmaps/key-000000")


async def test_a_refused_request_has_failed_with_what_was_said(tmp_path: Path) -> None:
    head = b"HTTP/1.1 503 Sorry\r\nTransfer-Encoding: chunked\r\n\r\n"
    said = head + b"4\r\nbusy\r\n4\r\n now\r\n0\r\n\r\n"
    api = Api(lambda number: said if number == 1 else GOOD)
    async with asked(api, tmp_path, keeps=True) as load:
        assert load.failed == ["POST /api/v1/namespaces/default/configmaps: 503 busy now"]
        assert api.came[:4] == [(1, "POST"), (1, "POST"), (1, "GET"), (1, "POST")]


async def test_a_request_is_repeated_where_the_server_asks_for_that(tmp_path: Path) -> None:
    head = b"HTTP/1.1 429 Later\r\nRetry-After: 0\r\nConnection: close\r\n"
    api = Api(lambda number: head + b"Content-Length: 0\r\n\r\n" if number == 2 else GOOD)
    async with asked(api, tmp_path, keeps=True) as load:
        assert api.came[:4] == [(1, "POST"), (1, "GET"), (2, "GET"), (2, "POST")]
        assert load.failed == []
        assert load.postponed == 1


async def test_an_answer_that_breaks_off_is_none(tmp_path: Path) -> None:
    broken = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nbu"
    api = Api(lambda number: broken if number == 2 else GOOD)
    async with asked(api, tmp_path, keeps=True) as load:
        (failed,) = load.failed
        assert failed.startswith("GET /api/v1/namespaces/default/configmaps/key-000000")
