"""Responses of hostile API servers do not fill the memory that all tenants share."""

from __future__ import annotations

import threading
import time
import zlib
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import pytest
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import (
    Client,
    ClientOptions,
    Config,
    ResponseTooLarge,
    Server,
    Unreadable,
    WorkloadClients,
)

from tests.support.kernel import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.tests.client.conftest import Scripted

MIB = 1 << 20
GIB = 1 << 30


def bomb() -> bytes:
    """About 1 MiB of gzip that unpacks to 1 GiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(MIB)
    start = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    # Data after a full flush does not refer to earlier data, so one block can be repeated.
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * 1023


class Hostile(BaseHTTPRequestHandler):
    """Sends as much as the client accepts. The first part of the path selects the attack."""

    protocol_version = "HTTP/1.1"
    packed = b""

    def do_GET(self) -> None:
        chunk = b'"' + b"x" * (MIB - 1)
        try:
            match self.path.split("/")[1]:
                case "bomb":
                    self._head(200, len(self.packed), "gzip")
                    self.wfile.write(self.packed)
                case "error":
                    self._head(500, GIB)
                    self._repeat(chunk)
                case _:
                    self._head(200, GIB)
                    self._repeat(chunk)
        except OSError:
            self.close_connection = True

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def _head(self, status: int, length: int, encoding: str = "identity") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _repeat(self, chunk: bytes) -> None:
        for _ in range(1024):
            self.wfile.write(chunk)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing."""


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    Hostile.packed = bomb()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Peak:
    """Growth of this process's memory to its peak while a block runs."""

    def __enter__(self) -> Self:
        self.growth = 0
        self._before = memory("self")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.growth = max(self.growth, memory("self") - self._before)
            time.sleep(0.002)


class Management:
    """Holds the kubeconfig Secret of a tenant."""

    manager = "test"

    def __init__(self, address: str) -> None:
        kubeconfig = (
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
            f"clusters: [{{name: c, cluster: {{server: '{address}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c}}]\n"
        )
        self.secret = Secret.of("evil-kubeconfig", "team-b", data={"value": kubeconfig.encode()})


@pytest.mark.parametrize("attack", ["stream", "bomb"])
@pytest.mark.parametrize("request_", ["get", "list", "iterate", "raw"])
async def test_an_endless_response_of_a_workload_cluster_fails(
    hostile: str, attack: str, request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    management: Any = Management(f"{hostile}/{attack}")
    monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    clients = WorkloadClients(management)
    with Peak() as peak:
        async with clients.client("evil", "team-b", secret=management.secret) as client:
            read = {
                "get": lambda: client.get(ConfigMap, "a", "b"),
                "list": lambda: client.list(ConfigMap),
                "iterate": lambda: anext(client.iterate(ConfigMap)),
                "raw": lambda: client.request("GET", "/version"),
            }[request_]
            with pytest.raises(ResponseTooLarge, match="sent a response of more than 16 MiB"):
                await read()
    await clients.close()
    assert peak.growth < 64 * MIB


async def test_an_endless_error_response_is_not_read_completely(hostile: str) -> None:
    config = Config(Server(f"{hostile}/error"))
    with Peak() as peak:
        async with Client(config) as client:
            with pytest.raises(Exception, match="status 500"):
                await client.get(ConfigMap, "a", "b")
    assert peak.growth < 64 * MIB


async def test_a_request_may_have_a_smaller_limit(server: Scripted) -> None:
    server.then(server.reply(200, b"x" * 2048, Content_Type="text/plain"))
    async with server.client() as client:
        with pytest.raises(ResponseTooLarge, match="more than 1 KiB"):
            await client.request("GET", "/log", max_bytes=1024)


async def test_an_endless_line_of_a_watch_fails(server: Scripted) -> None:
    server.then(server.stream(*[b"x" * 1024] * 3, ending=server.stay_silent))
    async with server.client(max_bytes=2048) as client:
        with pytest.raises(ResponseTooLarge, match="sent a line of a watch of more than 2 KiB"):
            await anext(client.watch(ConfigMap, since="1"))


async def test_a_list_of_endless_pages_fails(server: Scripted) -> None:
    page: dict[str, Any] = {"metadata": {"continue": "more"}, "items": [], "pad": "x" * 900}
    server.then(*[server.reply(200, page)] * 10)
    async with server.client(max_bytes=1024) as client:
        with pytest.raises(ResponseTooLarge, match="sent a list of more than 4 KiB"):
            await client.list(ConfigMap)
    assert len(server.requests) == 5


async def test_large_objects_are_listed_in_smaller_pages(server: Scripted) -> None:
    large: dict[str, Any] = {"metadata": {}, "items": [], "pad": "x" * 2000}
    metadata = {"name": "a", "namespace": "b", "uid": "1", "resourceVersion": "1"}
    small = {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": metadata}]}
    server.then(server.reply(200, large), server.reply(200, small))
    async with server.client(max_bytes=1024) as client:
        listing = await client.list(ConfigMap)
    assert [item.name for item in listing.items] == ["a"]
    assert [request.target.rpartition("limit=")[2] for request in server.requests] == ["500", "62"]


def test_responses_of_the_management_cluster_may_be_larger() -> None:
    assert ClientOptions().response_bytes == 128 * MIB
    assert ClientOptions(max_bytes=MIB).response_bytes == MIB


@pytest.mark.parametrize(
    "items",
    [
        b"1," * 1_000_000 + b"1",
        b"[" * 2_000_000,
        b'""' * 3_000_000,
        b'{"metadata":{"name":"a"}},' * 150_000 + b"{}",
    ],
    ids=["numbers", "brackets", "strings", "objects"],
)
async def test_number_of_values_is_limited(server: Scripted, items: bytes) -> None:
    server.then(*[server.reply(200, b'{"metadata":{},"items":[' + items + b"]}")] * 8)
    async with server.client(max_bytes=16 * MIB) as client:
        started = time.process_time()
        with pytest.raises((ResponseTooLarge, Unreadable), match=r"more than|JSON"):
            await client.list(Node)
    assert time.process_time() - started < 3
