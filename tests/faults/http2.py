"""Sequential requests over HTTP/2 connections, like those of Kubernetes' own clients.

After GOAWAY, a connection gets no further request. If the server did not process a request, the
client repeats it over a new connection. Available libraries do not read pending answers after a
GOAWAY, which the protocol requires.
"""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.load import Answer, Connection, Load, trust

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9
_REFUSED_STREAM = 7


class NotProcessedError(Exception):
    """The server did not process a request, so any request can be repeated."""


class Http2Load(Load):
    """The same requests over HTTP/2."""

    async def connect(self) -> Connection:
        return await Http2Connection.open(self)

    async def exchange(self, method: str, path: str, content: object) -> Answer:
        """Send a request, repeat it if the server did not process it, and read the response."""
        while True:
            with suppress(NotProcessedError):
                return await super().exchange(method, path, content)


@dataclass
class Http2Connection:
    """A connection with one stream at a time."""

    host: str
    reader: StreamReader
    writer: StreamWriter
    is_over: bool = False
    """Whether the server accepts no further request over it."""
    _streams: int = 0
    _encoder: Encoder = field(default_factory=Encoder)
    _decoder: Decoder = field(default_factory=Decoder)
    _frames: "asyncio.Queue[Frame | None]" = field(default_factory=asyncio.Queue["Frame | None"])
    _receiving: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, load: Load) -> "Http2Connection":
        address = urlsplit(load.config.server.address)
        context = trust(load.config)
        context.set_alpn_protocols(["h2"])
        streams = await asyncio.open_connection(address.hostname, address.port, ssl=context)
        connection = cls(address.netloc, *streams)
        connection.writer.write(_PREFACE + SettingsFrame(0).serialize())
        connection._receiving = asyncio.create_task(connection._receive())
        return connection

    async def exchange(self, method: str, path: str, content: object) -> Answer:
        """Send one request and read the response."""
        stream = 2 * self._streams + 1
        self._streams += 1
        self._send(stream, method, path, content)
        await self.writer.drain()
        headers: dict[str, str] = {}
        block, text, ended = b"", b"", False
        while not ended or not headers:
            match await self._frames.get():
                case None:
                    raise EOFError("the connection ended before the answer")
                case GoAwayFrame(last_stream_id=last) if last < stream:
                    raise NotProcessedError
                case RstStreamFrame(stream_id=reset, error_code=code) if reset == stream:
                    if code == _REFUSED_STREAM:
                        raise NotProcessedError
                    raise EOFError(f"the server ended the request with the code {code}")
                case HeadersFrame() | ContinuationFrame() as frame:
                    ended = ended or "END_STREAM" in frame.flags
                    block += frame.data
                    if "END_HEADERS" in frame.flags:
                        headers |= self._decoded(block)
                        block = b""
                case DataFrame() as frame:
                    ended = "END_STREAM" in frame.flags
                    text += frame.data
                case _:
                    pass
        later = headers.get("retry-after", "")
        return Answer(
            int(headers[":status"]), text.decode(), float(later) if later.isdecimal() else None
        )

    def close(self) -> None:
        self.is_over = True
        if self._receiving is not None:
            self._receiving.cancel()
        self.writer.close()

    def _send(self, stream: int, method: str, path: str, content: object) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        headers = self._encoder.encode(
            [
                (":method", method),
                (":scheme", "https"),
                (":authority", self.host),
                (":path", path),
                ("content-type", "application/json"),
            ]
        )
        ends: Sequence[str] = () if body else ("END_STREAM",)
        frames: list[Frame] = [HeadersFrame(stream, headers, flags=["END_HEADERS", *ends])]
        if body:
            frames.append(DataFrame(stream, body, flags=["END_STREAM"]))
        self.writer.write(b"".join(frame.serialize() for frame in frames))

    def _decoded(self, block: bytes) -> dict[str, str]:
        return {_text(name): _text(value) for name, value, *_ in self._decoder.decode(block)}

    async def _receive(self) -> None:
        """Handle frames of the connection, and pass the others to the request."""
        try:
            while True:
                head = await self.reader.readexactly(_HEADER_BYTES)
                frame, length = Frame.parse_frame_header(memoryview(head))
                frame.parse_body(memoryview(await self.reader.readexactly(length)))
                match frame:
                    case SettingsFrame() if "ACK" not in frame.flags:
                        self.writer.write(SettingsFrame(0, flags=["ACK"]).serialize())
                    case PingFrame() if "ACK" not in frame.flags:
                        pong = PingFrame(0, opaque_data=frame.opaque_data, flags=["ACK"])
                        self.writer.write(pong.serialize())
                    case GoAwayFrame():
                        self.is_over = True
                    case DataFrame() if frame.flow_controlled_length:
                        window = WindowUpdateFrame(0, frame.flow_controlled_length)
                        self.writer.write(window.serialize())
                    case _:
                        pass
                self._frames.put_nowait(frame)
        except (OSError, EOFError):
            self.is_over = True
            self._frames.put_nowait(None)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
