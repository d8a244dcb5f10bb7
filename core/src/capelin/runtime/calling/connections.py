"""HTTPS to servers of hooks, as Cluster API talks to them: one POST, no redirect, no waiting on."""

import asyncio
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from capelin.api.durations import format_duration
from capelin.client import CredentialError, describe_connection_error, tls_context
from capelin.runtime.calling.addresses import Address
from capelin.runtime.calling.errors import AddressError, NoAnswerError, Trouble

MAX_ANSWER_BYTES = 20 * 1024 * 1024
"""What is read of an answer: above any that makes sense."""

_CONTEXTS_KEPT = 64
_PIECE = 64 * 1024
_CONNECTING = 0.9
"""How much of a call's time a connection may take, so that its end comes before the call's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The certificate and key that a caller shows; read again when the files change."""

    certificate: Path
    key: Path

    def state(self) -> tuple[int, ...]:
        """Something that changes when a file does.

        Raises:
            AddressError: a file is not there.
        """
        try:
            found = [path.stat() for path in (self.certificate, self.key)]
        except OSError as error:
            raise AddressError(
                f"the client certificate cannot be read: {error.filename} ({error.strerror})"
            ) from None
        return tuple(number for one in found for number in (one.st_mtime_ns, one.st_ino))


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes
    seconds: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Connections:
    """Connections to servers, kept and used again."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity
        self._contexts: dict[object, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all of them."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self,
        address: Address,
        path: str,
        body: bytes,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Ask, and return what came back, whatever it says.

        Raises:
            NoAnswerError: nothing came back, or not in time.
            AddressError: the address or the identity cannot be used.
        """
        said = f"timeout={format_duration(timedelta(seconds=seconds))}"
        url = URL(f"https://{address.through or address.authority}{path}?{said}", encoded=True)
        trusted = self._trusting(address.ca)
        start = perf_counter()
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().post(
                    url,
                    # As a file, it is sent piece by piece however large it is.
                    data=BytesIO(body),
                    ssl=trusted,
                    server_hostname=address.host,
                    headers={"Host": address.authority, **(headers or {})},
                    # Cluster API says neither, and servers have to do without.
                    skip_auto_headers=() if headers else ("Content-Type", "Accept"),
                    # A server could send its callers, and what they know, to wherever it likes.
                    allow_redirects=False,
                    # Above the threshold, aiohttp would wait for the next full second.
                    timeout=aiohttp.ClientTimeout(
                        total=None, connect=seconds * _CONNECTING, ceil_threshold=math.inf
                    ),
                ) as response,
            ):
                return HttpAnswer(
                    status=response.status,
                    body=await _read(response),
                    seconds=perf_counter() - start,
                    headers=dict(response.headers),
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise _lost(
                "unreachable", address, describe_connection_error(error), reached=False
            ) from None
        except TimeoutError:
            raise _lost("timeout", address, f"no answer within {seconds:g} s") from None
        except aiohttp.ClientError as error:
            reached = not isinstance(error, aiohttp.ClientConnectorError)
            raise _lost(
                _trouble(error), address, describe_connection_error(error), reached=reached
            ) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "capelin"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _trusting(self, ca: bytes | None) -> ssl.SSLContext:
        key = (ca, None if self._identity is None else self._identity.state())
        if (found := self._contexts.get(key)) is None:
            found = self._context(ca)
            while len(self._contexts) >= _CONTEXTS_KEPT:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[key] = found
        return found

    def _context(self, ca: bytes | None) -> ssl.SSLContext:
        try:
            if self._identity is None:
                return tls_context(ca, None, None)
            return tls_context(
                ca, self._identity.certificate.read_bytes(), self._identity.key.read_bytes()
            )
        except CredentialError as error:
            raise AddressError(str(error)) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(_PIECE):
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            response.close()
            raise NoAnswerError(
                "unreadable", f"an answer has more than {MAX_ANSWER_BYTES // 2**20} MiB"
            )
        pieces.append(piece)
    return b"".join(pieces)


def _lost(trouble: Trouble, address: Address, why: str, *, reached: bool = True) -> NoAnswerError:
    return NoAnswerError(trouble, f"{address.url} does not answer ({why})", reached=reached)


def _trouble(error: aiohttp.ClientError) -> Trouble:
    tls = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)
    return "untrusted" if isinstance(error, tls) else "unreachable"
