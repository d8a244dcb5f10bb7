"""HTTP as uvicorn speaks it, but that the head and the body of an answer leave together.

uvicorn writes them one after the other. Under TLS that is two records, two system calls and two
times that the client wakes up, for an answer that fits into one packet.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class HookProtocol(HttpToolsProtocol):
    """A connection that gathers what it writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to speak."""
        super().connection_made(BufferedTransport(transport, self.loop))


class BufferedTransport(asyncio.Transport):
    """Passes on in one piece what is written until the event loop comes round again."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write soon."""
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        """Write what is left, and close."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Take no more from the client for a while."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
