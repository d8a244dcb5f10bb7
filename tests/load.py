"""Sequential requests to a control plane, which are repeated only after Retry-After."""

import asyncio
import json
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

from capelin.client import Config, tls_context

_PATIENCE_SECONDS = 30.0
_TOO_MANY = 429
_PATH = "/api/v1/namespaces/default/configmaps"


@dataclass
class Load:
    """Writes objects, reads them, and records every failed request.

    Each request opens a connection, unless `keeps` is true: then only a request after a closed
    connection opens a new one. Like Kubernetes' own clients, it repeats a request after a response
    429 with Retry-After.
    """

    config: Config
    pause: float = 0.0
    keeps: bool = False
    prefix: str = "key"
    """Prefix of the names of its objects, since other clients may write at the same time."""
    sent: int = 0
    written: set[str] = field(default_factory=set[str])
    failed: list[str] = field(default_factory=list[str])
    postponed: int = 0
    """Number of requests that were repeated after Retry-After."""
    _sent: asyncio.Condition = field(default_factory=asyncio.Condition)
    _kept: "Connection | None" = None

    async def reaches(self, count: int) -> None:
        async with self._sent:
            await self._sent.wait_for(lambda: self.sent >= count)

    async def run(self) -> None:
        """Send requests until cancelled."""
        try:
            for number in range(10**9):
                name = f"{self.prefix}-{number:06}-{'kept' if self.keeps else 'new'}"
                if await self._request("POST", _PATH, {"metadata": {"name": name}}):
                    self.written.add(name)
                    await self._request("GET", f"{_PATH}/{name}")
                await asyncio.sleep(self.pause)
        finally:
            if self._kept is not None:
                self._kept.close()

    async def _request(self, method: str, path: str, content: object = None) -> bool:
        async with self._sent:
            self.sent += 1
            self._sent.notify_all()
        try:
            answer = await self.exchange(method, path, content)
            while answer.status == _TOO_MANY and answer.retry_after is not None:
                self.postponed += 1
                await asyncio.sleep(answer.retry_after)
                answer = await self.exchange(method, path, content)
        except (OSError, EOFError) as error:
            self.failed.append(f"{method} {path}: {error!r}")
            return False
        if answer.status >= 300:
            self.failed.append(f"{method} {path}: {answer.status} {answer.text}")
        return answer.status < 300

    async def exchange(self, method: str, path: str, content: object) -> "Answer":
        """Send a request once and read the response."""
        async with asyncio.timeout(_PATIENCE_SECONDS), self._connection() as connection:
            return await connection.exchange(method, path, content)

    async def connect(self) -> "Connection":
        return await _Http1Connection.open(self.config.server.address, self._trust)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return trust(self.config)

    @asynccontextmanager
    async def _connection(self) -> "AsyncGenerator[Connection]":
        last, self._kept = self._kept, None
        if last is not None and last.is_over:
            last.close()
            last = None
        connection = last or await self.connect()
        try:
            yield connection
            if self.keeps:
                self._kept = connection
        finally:
            if self._kept is None:
                connection.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of an API server."""

    status: int
    text: str
    retry_after: float | None = None
    """Seconds until the request may be repeated, if the response has Retry-After."""


class Connection(Protocol):
    """A connection for one request at a time."""

    @property
    def is_over(self) -> bool: ...

    async def exchange(self, method: str, path: str, content: object) -> Answer:
        """Send one request and read the response."""
        ...

    def close(self) -> None:
        """Close it."""


@dataclass
class _Http1Connection:
    host: str
    reader: StreamReader
    writer: StreamWriter

    @classmethod
    async def open(cls, url: str, context: ssl.SSLContext) -> "_Http1Connection":
        address = urlsplit(url)
        streams = await asyncio.open_connection(address.hostname, address.port, ssl=context)
        return cls(address.netloc, *streams)

    @property
    def is_over(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    async def exchange(self, method: str, path: str, content: object) -> Answer:
        """Send one request and read the response."""
        body = b"" if content is None else json.dumps(content).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}"
        self.writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        await self.writer.drain()
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        headers = dict(line.split(": ", 1) for line in lines if line)
        length = int(headers.get("content-length", "0"))
        text = await self.reader.readexactly(length)
        if headers.get("transfer-encoding") == "chunked":
            text = await self._chunks()
        if headers.get("connection") == "close":
            self.close()
        later = headers.get("retry-after", "")
        seconds = float(later) if later.isdecimal() else None
        return Answer(int(status.split()[1]), text.decode(), seconds)

    async def _chunks(self) -> bytes:
        chunks = b""
        while size := int(await self._line(), 16):
            chunks += await self.reader.readexactly(size)
            await self._line()
        await self._line()
        return chunks

    async def _line(self) -> bytes:
        return await self.reader.readuntil(b"\r\n")

    def close(self) -> None:
        self.writer.close()


def trust(config: Config) -> ssl.SSLContext:
    """TLS settings from a kubeconfig with embedded certificates."""
    parts = (config.server.ca, config.user.certificate, config.user.key)
    ca, certificate, key = (part if isinstance(part, bytes) else None for part in parts)
    return tls_context(ca, certificate, key)
