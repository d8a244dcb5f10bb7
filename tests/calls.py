"""Calls of hooks over kept connections, like those of Cluster API's client."""

import json
import ssl
from asyncio import StreamReader, StreamWriter, open_connection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured
from capelin.runtime import AnyHook
from capelin.runtime.v1alpha1 import API_VERSION

from tests.extensions import HOST


def request_for(hook: AnyHook, handler: str, fields: Unstructured) -> bytes:
    """The whole HTTP request that calls a handler."""
    kind = {"apiVersion": API_VERSION, "kind": f"{hook.id.name}Request"}
    body = json.dumps({**kind, **fields}).encode()
    path = hook.id.path(handler)
    head = f"POST {path}?timeout=10s HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


@dataclass
class Connection:
    """A connection to an extension for sequential calls."""

    port: int
    reader: StreamReader
    writer: StreamWriter
    calls: int = 0

    @classmethod
    async def open(cls, port: int, trust: ssl.SSLContext) -> "Connection":
        """Connect to a port of the tests' address."""
        return cls(port, *await open_connection(HOST, port, ssl=trust))

    @property
    def serial_number(self) -> str:
        """Serial number of the server's certificate."""
        certificate: dict[str, Any] = self.writer.get_extra_info("peercert")
        return str(certificate["serialNumber"])

    @property
    def is_over(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    async def call(self, request: bytes) -> Unstructured:
        """Send a request, and read its response.

        Raises:
            OSError: the connection broke.
            EOFError: the other side has closed it.
        """
        self.calls += 1
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200"), head
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return json.loads(await self.reader.readexactly(length))

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()
