"""A connection that is kept for a long time and used seldom, so it may not take much memory.

asyncio keeps a buffer of 256 KiB for each TLS connection.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")

_CHUNK = 16 * 1024


class Stream:
    """A connection, with TLS where there is somebody to trust."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: "_Tls | None",
        limit: int,
    ) -> None:
        self._reader, self._writer, self._tls, self._limit = reader, writer, tls, limit
        self._received = b""

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        if self._tls is None:
            self._writer.write(data)
        else:
            await self._negotiated(self._tls, lambda session: session.write(data))

    async def read_until(self, end: bytes) -> bytes:
        """What arrives up to this end; ValueError if that is too much, EOFError if it does not."""
        while end not in self._received:
            if len(self._received) > self._limit:
                raise ValueError("the answer is too long")
            await self._receive()
        found, _, self._received = self._received.partition(end)
        return found + end

    async def read_exactly(self, count: int) -> bytes:
        """So many bytes; ValueError if that is too much, EOFError if they do not come."""
        if count > self._limit:
            raise ValueError("the answer is too long")
        while len(self._received) < count:
            await self._receive()
        found, self._received = self._received[:count], self._received[count:]
        return found

    async def shake_hands(self) -> None:
        """Agree on a cipher, and see who it is; ssl.SSLError (an OSError) if it is another."""
        if self._tls is not None:
            await self._negotiated(self._tls, ssl.SSLObject.do_handshake)

    def abort(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def _receive(self) -> None:
        if self._tls is None:
            data = await self._reader.read(_CHUNK)
        else:
            data = await self._negotiated(self._tls, lambda session: session.read(_CHUNK))
        if not data:
            raise EOFError
        self._received += data

    async def _negotiated(self, tls: "_Tls", act: Callable[[ssl.SSLObject], ResultT]) -> ResultT:
        """Do something with TLS, which may want to send and to hear something first."""
        while True:
            try:
                result = act(tls.session)
            except ssl.SSLWantReadError:
                self._writer.write(tls.outgoing.read())
                data = await self._reader.read(_CHUNK)
                if not data:
                    raise EOFError from None
                tls.incoming.write(data)
            else:
                self._writer.write(tls.outgoing.read())
                return result


class _Tls:
    """A TLS session with what comes in for it and goes out from it."""

    def __init__(self, trust: ssl.SSLContext, host: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = trust.wrap_bio(self.incoming, self.outgoing, server_hostname=host)


async def connect(host: str, port: int, trust: ssl.SSLContext | None, *, limit: int) -> Stream:
    """Connect, and with trust have the other side show who it is."""
    reader, writer = await asyncio.open_connection(host, port, limit=_CHUNK)
    stream = Stream(reader, writer, None if trust is None else _Tls(trust, host), limit)
    try:
        await stream.shake_hands()
    except BaseException:
        stream.abort()
        raise
    return stream
