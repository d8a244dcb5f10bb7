"""HTTP for hooks: uvicorn's protocol with bounds, and one write for each response.

uvicorn limits neither the head of a request nor the time for it, and keeps every connection. This
cuts off slow or endless clients. If there are too many connections, it closes those that have
waited for their client the longest. So no client costs the others anything.

uvicorn also writes the head and the body of a response separately. With TLS these are two records,
two system calls and two wake-ups of the client, for a response that fits into one packet.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)

_LINGER_SECONDS = 1.0
"""The time for a client to read why it was cut off."""


@dataclass(slots=True)
class Limits:
    """The bounds of one server, and the connections that wait for their client."""

    head_bytes: int = 64 * 1024
    """The request line and headers together. Those of Cluster API have some hundred bytes."""
    head_seconds: float = 10.0
    """The time for them, from their first byte or from the start of the connection."""
    connections: int = 1000
    waiting: "dict[HookProtocol, None]" = field(default_factory=dict["HookProtocol", None])
    """Connections without a complete request, the longest waiting first."""


class HookProtocol(HttpToolsProtocol):
    """A connection with bounds."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._pending = 0
        """Bytes since the last complete head or piece of a body."""
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start, and close another connection if there are too many."""
        super().connection_made(BufferedTransport(transport, self.loop))
        limits = self._limits
        limits.waiting[self] = None
        self._start_head_timer()
        if len(self.connections) > limits.connections:
            # If all others have a complete request, this connection is closed.
            next(iter(limits.waiting)).cut_off()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.waiting.pop(self, None)
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, up to the bounds."""
        if self.transport.is_closing():
            return
        self._pending += len(data)
        super().data_received(data)
        if self._pending > self._limits.head_bytes:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
            self.loop.call_later(_LINGER_SECONDS, self.cut_off)
        elif self._in_head and self._pending and self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._pending = 0
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending = 0
        self._in_head = True
        self._limits.waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has already come."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._limits.waiting[self] = None

    def cut_off(self) -> None:
        """End the connection at once, whatever its client still sends."""
        self._limits.waiting.pop(self, None)
        self._stop_head_timer()
        self.transport.abort()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self.cut_off)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class BufferedTransport(asyncio.Transport):
    """Writes all data between two runs of the event loop in one piece."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
