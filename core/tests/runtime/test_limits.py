"""Limits of the hook server, which protect clients from slow, endless or greedy ones."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pytest
import uvicorn
from capelin.body_budget import BodyBudget, OverloadedError
from capelin.runtime import Call, Extension, Response, proceed
from capelin.runtime.server import app as app_module
from capelin.runtime.server.app import App, time_limit
from capelin.runtime.server.http import HookProtocol, Limits
from capelin.runtime.v1alpha1 import BeforeClusterCreate
from capelin.testing.waiting import until
from uvicorn.server import ServerState

PATH = BeforeClusterCreate.id.path("try")
BODY = b'{"cluster":{}}'
SECONDS = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def post(body: bytes = BODY, *, length: int | None = None, path: str = PATH) -> bytes:
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(
    app: App, limits: Limits | None = None
) -> AsyncGenerator[Callable[[], Awaitable[Streams]]]:
    """Runs a server with these limits. Yields a function that opens a connection."""
    protocol: Any = partial(HookProtocol, limits or Limits())
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        server.close()
        for writer in opened:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        await until(lambda: not state.connections)


async def fine(_: object) -> Response:
    return proceed("fine")


async def name_of(call: Call[BeforeClusterCreate, None]) -> Response:
    return proceed(call.request.cluster.name)


def extension(function: Any = fine) -> App:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="try", timeout_seconds=30)(function)
    return App(ext)


async def respond(streams: Streams, request: bytes) -> dict[str, Any]:
    reader, writer = streams
    writer.write(request)
    async with asyncio.timeout(SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split()[0])
        return json.loads(await reader.readexactly(size))


async def rest(streams: Streams) -> bytes:
    """Data until the server closes the connection."""
    async with asyncio.timeout(SECONDS):
        try:
            return await streams[0].read()
        except ConnectionError:
            return b""


async def send_endlessly(streams: Streams, piece: bytes, most: int) -> int:
    """Number of bytes sent before the server closed the connection."""
    sent = 0
    while sent < most and not streams[1].is_closing() and not streams[0].at_eof():
        streams[1].write(piece)
        sent += len(piece)
        try:
            await streams[1].drain()
        except ConnectionError:
            break
        await asyncio.sleep(0)
    return sent


ENDLESS = {
    "headers": (b"POST / HTTP/1.1\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    "header": (b"POST / HTTP/1.1\r\nx: ", b"y" * 1000),
    "path": (b"POST /", b"y" * 1000),
    "trailers": (
        f"POST {PATH} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".encode(),
        b"x: " + b"y" * 1000 + b"\r\n",
    ),
    "chunk extension": (
        f"POST {PATH} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;".encode(),
        b"y" * 1000,
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_the_server_disconnects_an_endless_head(kind: str) -> None:
    start, piece = ENDLESS[kind]
    async with serving(extension(), Limits(head_bytes=16 * 1024)) as connect:
        endless = await connect()
        endless[1].write(start)
        assert await send_endlessly(endless, piece, 8 * 2**20) < 8 * 2**20
        assert (await respond(await connect(), post()))["message"] == "fine"


async def test_a_large_head_gets_status_431() -> None:
    async with serving(extension(), Limits(head_bytes=1024)) as connect:
        streams = await connect()
        streams[1].write(b"POST / HTTP/1.1\r\nx: " + b"y" * 2000)
        assert b" 431 " in await rest(streams)


@pytest.mark.parametrize("start", [b"", b"POST", b"POST / HTTP/1.1\r\nx: y\r\n"])
async def test_the_server_disconnects_a_slow_head(start: bytes) -> None:
    async with serving(extension(), Limits(head_seconds=0.05)) as connect:
        streams = await connect()
        streams[1].write(start)
        assert await rest(streams) == b""


async def test_the_server_disconnects_a_slow_second_head() -> None:
    async with serving(extension(), Limits(head_seconds=0.05)) as connect:
        streams = await connect()
        assert (await respond(streams, post()))["message"] == "fine"
        streams[1].write(b"POST")
        assert await rest(streams) == b""


async def test_a_keep_alive_connection_may_be_idle_for_longer() -> None:
    async with serving(extension(), Limits(head_seconds=0.05)) as connect:
        streams = await connect()
        for _ in range(2):
            assert (await respond(streams, post()))["message"] == "fine"
            # Meanwhile the server disconnects another one.
            assert await rest(await connect()) == b""


async def test_the_longest_waiting_connection_closes_at_the_limit() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Call[BeforeClusterCreate, None]) -> Response:
        begun.set()
        await go.wait()
        return proceed("slow")

    async with serving(extension(slow), Limits(connections=2)) as connect:
        working = await connect()
        response = asyncio.create_task(respond(working, post()))
        await begun.wait()
        idle = await connect()
        partial_body = await connect()
        assert await rest(idle) == b""
        partial_body[1].write(post(b"{", length=100))
        newest = await connect()
        assert await rest(partial_body) == b""
        go.set()
        assert (await response)["message"] == "slow"
        assert (await respond(newest, post()))["message"] == "slow"


async def test_a_new_connection_closes_if_all_others_are_busy() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Call[BeforeClusterCreate, None]) -> Response:
        begun.set()
        await go.wait()
        return proceed("slow")

    async with serving(extension(slow), Limits(connections=1)) as connect:
        response = asyncio.create_task(respond(await connect(), post()))
        await begun.wait()
        assert await rest(await connect()) == b""
        go.set()
        assert (await response)["message"] == "slow"


async def test_slow_large_bodies_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_TOTAL_BYTES", 3 * 2**20)
    large = orjson.dumps({"cluster": {"spec": {"filler": "x" * 2**20}}})
    async with serving(extension()) as connect:
        slow = [await connect() for _ in range(4)]
        for streams in slow:
            streams[1].write(post(large[:-1], length=len(large)))
            await streams[1].drain()
        assert (await respond(await connect(), post(large)))["message"] == "fine"
        assert b"fine" not in await rest(slow[0])


class Reader:
    def __init__(self) -> None:
        self.errors: list[type[Exception]] = []

    def abort(self, error: type[Exception]) -> None:
        self.errors.append(error)


def test_the_budget_drops_the_oldest_incomplete_body() -> None:
    budget = BodyBudget(100)
    complete, oldest, newer, newest = (Reader() for _ in range(4))
    budget.take(complete, 40)
    budget.complete(complete)
    budget.take(oldest, 30)
    budget.take(newer, 30)
    budget.take(newest, 20)
    assert [r.errors for r in (complete, oldest, newer)] == [[], [OverloadedError], []]
    with pytest.raises(OverloadedError):
        budget.take(newest, 60)
    assert newer.errors == [OverloadedError]
    budget.release(complete)
    budget.take(newest, 60)


@pytest.mark.parametrize("depth", [900, 2000, 100_000])
async def test_deep_json_fails_and_does_not_affect_later_requests(depth: int) -> None:
    deep = b'{"cluster":{"spec":' + b"[" * depth + b"]" * depth + b"}}"
    async with serving(extension(name_of)) as connect:
        streams = await connect()
        assert (await respond(streams, post(deep)))["status"] == "Failure"
        named = b'{"cluster":{"metadata":{"name":"blue"}}}'
        assert (await respond(streams, post(named)))["message"] == "blue"


async def test_huge_queries_are_not_cached() -> None:
    cached = app_module._time_limit.cache_info().currsize  # pyright: ignore[reportPrivateUsage]
    for number in range(100):
        query = f"timeout=1s&{number}=".encode() + b"x" * 30_000
        assert time_limit(10, query) == 9.5
    assert app_module._time_limit.cache_info().currsize <= cached + 1  # pyright: ignore[reportPrivateUsage]
    async with serving(extension()) as connect:
        path = f"{PATH}?timeout=5s&{'x' * 30_000}"
        assert (await respond(await connect(), post(path=path)))["message"] == "fine"
