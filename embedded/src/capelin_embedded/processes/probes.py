"""Probes of processes over TCP and HTTP."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 5.0
_MAX_RESPONSE_BYTES = 64 * 1024
_CHUNK = 16 * 1024

ResultT = TypeVar("ResultT")


async def tcp_probe(address: str, port: int) -> AsyncGenerator[str, None]:
    """Succeeds when the port accepts connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError:
            yield f"nothing listens on {address}:{port}"
        else:
            writer.close()
            yield ""


async def readiness_probe(
    url: str, *, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> AsyncGenerator[str, None]:
    """Succeeds when the URL answers 200. Lists the failing checks of a component.

    Without a CA, it uses plain HTTP.
    """
    trust = None if ca is None else ssl.create_default_context(cafile=ca)
    if trust is not None and certificate is not None:
        trust.load_cert_chain(certificate, key)
    async with _Connection(url, trust) as connection:
        while True:
            status, text = await connection.ask(_TIMEOUT_SECONDS)
            if status is None:
                yield text
            else:
                yield "" if status == 200 else _failing_checks(status, text)


async def liveness_probe(
    url: str, *, ca: Path | None = None, within: float = _TIMEOUT_SECONDS
) -> AsyncGenerator[str, None]:
    """Succeeds when the URL answers anything but a server error.

    It presents no client certificate, which would expire one day: a rejection is an answer too.
    """
    async with _Connection(url, _trusting(ca)) as connection:
        while True:
            status, text = await connection.ask(within)
            if status is None:
                yield text
            else:
                yield _failing_checks(status, text) if status >= 500 else ""


_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name."""


class _Connection:
    """A persistent connection that sends the same request repeatedly.

    Probes run as long as their processes, so they avoid the HTTP client, which takes twice the CPU
    time and more memory.
    """

    def __init__(self, url: str, trust: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._url = url
        self._host, self._port, self._trust = parts.hostname or "", parts.port or 443, trust
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        self._request = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        self._stream: _Stream | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def ask(self, within: float) -> tuple[int | None, str]:
        """The status and the body, or no status and an error without a response in time."""
        try:
            async with asyncio.timeout(within):
                return await self._get()
        except TimeoutError:
            self.close()
            return None, f"{self._url} did not answer for {within:g} s"
        except (OSError, EOFError, ValueError):
            self.close()
            return None, f"{self._url} does not answer"

    async def _get(self) -> tuple[int, str]:
        """The status and the body. EOFError or ValueError if the response is invalid."""
        if self._stream is None:
            self._stream = await _connect(self._host, self._port, self._trust)
        stream = self._stream
        await stream.write(self._request)
        head = (await stream.read_until(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        length = headers.get("content-length")
        is_chunked = headers.get("transfer-encoding") == "chunked"
        if is_chunked:
            text = await stream.read_chunks()
        else:
            text = b"" if length is None else await stream.read_exactly(int(length))
        if (length is None and not is_chunked) or headers.get("connection") == "close":
            self.close()
        return int(head[0].partition(" ")[2][:3]), text.decode(errors="replace")

    def close(self) -> None:
        """Use another connection next time."""
        if self._stream is not None:
            self._stream.abort()
            self._stream = None


def _trusting(ca: Path | None) -> ssl.SSLContext | None:
    return None if ca is None else _trust(ca, ca.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _trust(ca: Path, _: int) -> ssl.SSLContext:
    """Shared by all probes. The file's modification time distinguishes a renewed CA.

    It verifies no dates: a process is alive whatever the clock shows, and a kubelet verifies none.
    """
    trust = ssl.create_default_context(cafile=ca)
    trust.verify_flags |= _NO_CHECK_TIME
    return trust


def _failing_checks(status: int, text: str) -> str:
    """The failing checks in the body of a health endpoint."""
    failing = [
        line.removeprefix("[-]").split()[0] for line in text.splitlines() if line.startswith("[-]")
    ]
    return f"not yet: {', '.join(failing)}" if failing else f"it answers {status}"


class _Stream:
    """A connection, with TLS if there is a CA. asyncio's TLS would keep 256 KiB for each."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: "_Tls | None",
    ) -> None:
        self._reader, self._writer, self._tls = reader, writer, tls
        self._received = b""

    async def write(self, data: bytes) -> None:
        if self._tls is None:
            self._writer.write(data)
        else:
            await self._with_tls(self._tls, lambda session: session.write(data))

    async def read_until(self, end: bytes) -> bytes:
        """The data up to `end`. ValueError if it is too long, EOFError if the connection ends."""
        while end not in self._received:
            if len(self._received) > _MAX_RESPONSE_BYTES:
                raise ValueError("the response is too long")
            await self._receive()
        data, _, self._received = self._received.partition(end)
        return data + end

    async def read_exactly(self, count: int) -> bytes:
        """This many bytes. ValueError if they are too many, EOFError if the connection ends."""
        if count > _MAX_RESPONSE_BYTES:
            raise ValueError("the response is too long")
        while len(self._received) < count:
            await self._receive()
        data, self._received = self._received[:count], self._received[count:]
        return data

    async def read_chunks(self) -> bytes:
        """A body in chunks. ValueError if it is invalid or too long, EOFError if it has no end."""
        text = b""
        while size := int(await self.read_until(b"\r\n"), 16):
            text += (await self.read_exactly(size + 2))[:size]
            if len(text) > _MAX_RESPONSE_BYTES:
                raise ValueError("the response is too long")
        await self.read_until(b"\r\n")
        return text

    async def handshake(self) -> None:
        """Do the TLS handshake. ssl.SSLError (an OSError) if the server is not trusted."""
        if self._tls is not None:
            await self._with_tls(self._tls, ssl.SSLObject.do_handshake)

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _receive(self) -> None:
        if self._tls is None:
            data = await self._reader.read(_CHUNK)
        else:
            data = await self._with_tls(self._tls, lambda session: session.read(_CHUNK))
        if not data:
            raise EOFError
        self._received += data

    async def _with_tls(self, tls: "_Tls", act: Callable[[ssl.SSLObject], ResultT]) -> ResultT:
        """Run an operation of TLS, which may have to send and receive first."""
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
    def __init__(self, trust: ssl.SSLContext, host: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = trust.wrap_bio(self.incoming, self.outgoing, server_hostname=host)


async def _connect(host: str, port: int, trust: ssl.SSLContext | None) -> _Stream:
    """Connect. With `trust`, verify the server."""
    reader, writer = await asyncio.open_connection(host, port, limit=_CHUNK)
    stream = _Stream(reader, writer, None if trust is None else _Tls(trust, host))
    try:
        await stream.handshake()
    except BaseException:
        stream.abort()
        raise
    return stream
