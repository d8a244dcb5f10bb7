"""HTTPS to hook servers, like Cluster API's: one POST, no redirects."""

import asyncio
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Self

import aiohttp
from yarl import URL

from capelin.api import format_duration
from capelin.client import (
    CredentialError,
    describe_connection_error,
    read_at_most,
    tls_context,
)
from capelin.runtime.client.endpoint import Endpoint
from capelin.runtime.client.errors import EndpointError, FailureKind, NoResponseError

MAX_RESPONSE_BYTES = 20 * 1024 * 1024
"""The largest response that the client reads."""

_MAX_CONTEXTS = 64
_CONNECT_SHARE = 0.9
"""The share of a call's time for connecting, so that its timeout differs from the call's."""
_SHOWN_BYTES = 512


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The certificate and key of a caller. They are read again when the files change."""

    certificate: Path
    key: Path

    def state(self) -> tuple[int, ...]:
        """A value that changes when a file changes.

        Raises:
            EndpointError: A file is missing.
        """
        try:
            stats = [path.stat() for path in (self.certificate, self.key)]
        except OSError as error:
            raise EndpointError(
                f"cannot read the client certificate: {error.filename} ({error.strerror})"
            ) from None
        return tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_ino))


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response with any status."""

    status: int
    body: bytes
    seconds: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def failure_kind(self) -> FailureKind | None:
        """Why its status is not that of a hook's response, or `None`."""
        if 300 <= self.status < 400:
            return "redirect"
        return None if self.status == 200 else "status"

    def check(self, handler: str) -> None:
        """Reject any status but 200.

        Raises:
            NoResponseError: The status is another.
        """
        match self.failure_kind:
            case None:
                return
            case "redirect":
                message = f"{handler} redirects (status {self.status}), which callers do not follow"
            case _:
                text = self.body[: _SHOWN_BYTES + 1].decode(errors="replace")
                text = text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}..."
                message = f"{handler} responded with status {self.status}: {text!r}"
        raise NoResponseError(self.failure_kind, message)


class Connections:
    """Connections to hook servers, kept open and reused."""

    def __init__(self, client_certificate: ClientCertificate | None = None) -> None:
        self._client_certificate = client_certificate
        self._contexts: dict[object, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request and return the response, with any status.

        Raises:
            NoResponseError: No response came, or not in time.
            EndpointError: The endpoint or the client certificate is unusable.
        """
        query = f"timeout={format_duration(timedelta(seconds=seconds))}"
        url = URL(f"https://{endpoint.through or endpoint.authority}{path}?{query}", encoded=True)
        tls = self._tls(endpoint.ca)
        start = perf_counter()
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().post(
                    url,
                    # aiohttp sends a file in pieces, however large it is.
                    data=BytesIO(body),
                    ssl=tls,
                    server_hostname=endpoint.host,
                    headers={"Host": endpoint.authority, **(headers or {})},
                    # Cluster API sends neither, and servers have to work without them.
                    skip_auto_headers=() if headers else ("Content-Type", "Accept"),
                    # A server could redirect its callers, and their data, to any other server.
                    allow_redirects=False,
                    # Above the threshold, aiohttp would wait for the next full second.
                    timeout=aiohttp.ClientTimeout(
                        total=None, connect=seconds * _CONNECT_SHARE, ceil_threshold=math.inf
                    ),
                ) as response,
            ):
                return HttpResponse(
                    status=response.status,
                    body=await _read(response),
                    seconds=perf_counter() - start,
                    headers=dict(response.headers),
                )
        except aiohttp.ConnectionTimeoutError as error:
            reason = describe_connection_error(error)
            raise _no_response("unreachable", endpoint, reason) from None
        except TimeoutError:
            raise _no_response("timeout", endpoint, f"no response in {seconds:g} s") from None
        except aiohttp.ClientError as error:
            reason = describe_connection_error(error) + self._hint(error)
            raise _no_response(_kind(error), endpoint, reason) from None

    def _hint(self, error: aiohttp.ClientError) -> str:
        """A likely cause that TLS hides from a client: the server rejected its certificate."""
        if not isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(
            getattr(error, "os_error", error.__cause__), ConnectionResetError
        ):
            return ""
        if self._client_certificate is None:
            return ", perhaps because it requires a client certificate"
        return ", perhaps because it does not trust the client certificate"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "capelin"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _tls(self, ca: bytes | None) -> ssl.SSLContext:
        own = self._client_certificate
        key = (ca, None if own is None else own.state())
        if (found := self._contexts.get(key)) is None:
            found = self._make_context(ca)
            while len(self._contexts) >= _MAX_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[key] = found
        return found

    def _make_context(self, ca: bytes | None) -> ssl.SSLContext:
        own = self._client_certificate
        try:
            if own is None:
                return tls_context(ca, None, None)
            return tls_context(ca, own.certificate.read_bytes(), own.key.read_bytes())
        except CredentialError as error:
            raise EndpointError(str(error)) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = await read_at_most(response, MAX_RESPONSE_BYTES)
    if body is None:
        limit = f"{MAX_RESPONSE_BYTES // 2**20} MiB"
        raise NoResponseError("unreadable", f"a response is above {limit}")
    return body


def _no_response(kind: FailureKind, endpoint: Endpoint, reason: str) -> NoResponseError:
    return NoResponseError(kind, f"{endpoint.url} does not respond ({reason})")


def _kind(error: aiohttp.ClientError) -> FailureKind:
    tls = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)
    return "untrusted" if isinstance(error, tls) else "unreachable"
