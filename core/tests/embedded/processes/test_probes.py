"""What counts as alive, and what does not."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from capelin.embedded.processes import alive

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(*answers: bytes) -> AsyncGenerator[tuple[str, list[int]]]:
    """Gives these answers, one after the other, on as many connections as it takes."""
    left = iter(answers)
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                connections[-1] += 1
                answer = next(left)
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield f"http://127.0.0.1:{port}/livez?exclude=etcd", connections


def answer(status: str, body: bytes = b"ok", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (answer("200 OK"), ""),
        (answer("403 Forbidden"), ""),
        (answer("500 Internal Server Error", b"[+]ping ok\n[-]shoal failed"), "not yet: shoal"),
        (answer("503 Service Unavailable"), "it answers 503"),
        (b"shoal\r\n\r\n", "{url} does not answer"),
        (b"x" * 100_000 + b"\r\n\r\n", "{url} does not answer"),
        (b"", "{url} does not answer"),
        (b"HTTP/1.1 200 OK\r\n", "{url} did not answer for 0.2 s"),
    ],
)
async def test_whoever_answers_that_it_is_not_broken_is_alive(given: bytes, said: str) -> None:
    async with server(given) as (url, _):
        asked = alive(url, within=0.2)
        assert await anext(asked) == said.format(url=url)
        await asked.aclose()


async def test_a_connection_is_kept_and_made_anew_when_it_was_lost() -> None:
    good = answer("200 OK")
    closing = answer("200 OK", b"ok", "Connection: close")
    async with server(good, good, b"", good, closing, good) as (url, connections):
        asked = alive(url, within=5)
        assert [bool(await anext(asked)) for _ in range(6)] == [False, False, True, *[False] * 3]
        assert connections == [3, 2, 1]
        await asked.aclose()


async def test_where_nobody_listens_nobody_is_alive() -> None:
    async with server() as (url, _):
        pass
    asked = alive(url, within=5)
    assert await anext(asked) == f"{url} does not answer"
    await asked.aclose()
