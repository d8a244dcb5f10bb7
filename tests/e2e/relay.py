"""A load balancer for API servers: it forwards connections to the members that accept them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

PORT = 6443
_CONNECT_SECONDS = 2.0
Members = Callable[[], Awaitable[Sequence[str]]]


@asynccontextmanager
async def relay(address: tuple[str, int], members: Members) -> AsyncGenerator[None]:
    """Forward connections from an address to the members in turn."""
    turn = 0

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        found = list(await members())
        first = turn % max(len(found), 1)
        with suppress(OSError):
            for member in (*found[first:], *found[:first]):
                with suppress(OSError):
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        answers, requests = await asyncio.open_connection(member, PORT)
                    await asyncio.gather(_copy(reader, requests), _copy(answers, writer))
                    break
            writer.close()

    server = await asyncio.start_server(forward, *address)
    try:
        yield
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
