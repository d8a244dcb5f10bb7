"""A proxy in front of an S3 server that breaks or holds connections, or answers that it is busy."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from tests.s3.versitygw import S3Server

_BODY = b"<Error><Code>SlowDown</Code></Error>"
_BUSY = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)


@dataclass
class Faults:
    """The faults of the next connections."""

    server: S3Server
    """The server as clients reach it through the proxy."""
    cuts: list[int] = field(default_factory=list[int])
    """After how many bytes from the client the next connections break."""
    busy: int = 0
    """How many of the next connections get the answer 503."""
    most: int | None = None
    """After how many bytes from all clients it forwards nothing more, until it is opened."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def faulty(server: S3Server) -> AsyncGenerator[Faults]:
    """Run a proxy until the end of the context."""
    trust = ssl.create_default_context(cadata=server.ca)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError):
            await _serve(faults, server, trust, reader, writer)
        writer.transport.abort()
        tasks.discard(task)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    listener = await asyncio.start_server(serve, server.host, 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    faults = Faults(replace(server, port=port))
    async with listener:
        yield faults
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    faults: Faults,
    server: S3Server,
    trust: ssl.SSLContext,
    reader: StreamReader,
    writer: StreamWriter,
) -> None:
    if faults.busy:
        faults.busy -= 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_BUSY)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return
    left = faults.cuts.pop(0) if faults.cuts else None
    from_server, to_server = await asyncio.open_connection(server.host, server.port, ssl=trust)
    answering = asyncio.create_task(_copy(from_server, writer))
    try:
        while data := await reader.read(65536):
            if left is not None:
                left -= len(data)
                if left < 0:
                    return
            if faults.most is not None:
                faults.most -= len(data)
                if faults.most < 0:
                    faults.held.set()
                    await faults.opened.wait()
            to_server.write(data)
            await to_server.drain()
    finally:
        to_server.transport.abort()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
