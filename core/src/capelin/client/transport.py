"""Sends requests to one API server: connections, credentials, rate limit, retries, timeouts."""

import asyncio
import ipaddress
import logging
import os
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from capelin import tracing
from capelin.client.auth import Credentials, Proof
from capelin.client.config import Config
from capelin.client.destinations import (
    Destinations,
    guarded_connector,
)
from capelin.client.errors import (
    LOCAL_ADDRESSES,
    AddressRefusedError,
    ApiError,
    ClientError,
    ConfigError,
    ResponseTooLarge,
    Unreachable,
    describe_connection_error,
    error_of,
)
from capelin.client.retries import Answered, ConnectionLost, RateLimiter, retry_delay
from capelin.hosts import is_loopback
from capelin.json_text import values

_CHUNK = 1 << 16
log = logging.getLogger(__name__)

# API servers close idle connections after 90 s. We close them earlier, so that we never send a
# request on a connection that the server is about to close.
_IDLE_CONNECTION = 60.0
_MAX_WARNINGS = 1000
MAX_BYTES: Final = 128 << 20
WORKLOAD_MAX_BYTES: Final = 16 << 20
"""Tenants control API servers of workload clusters, and all of them share the manager's memory."""
_BYTES_OF_VALUE: Final = 16
_MAX_ERROR_BYTES: Final = 256 << 10


def proxy_for(address: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for `address` from `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, like in Go."""
    parts = urlsplit(address)
    proxy = _variable(environ, f"{parts.scheme}_proxy")
    host = parts.hostname or ""
    if not proxy or is_loopback(host):
        return None
    exceptions = [entry.strip().lower() for entry in _variable(environ, "no_proxy").split(",")]
    if any(_matches(exception, host, parts.port) for exception in exceptions if exception):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _matches(exception: str, host: str, port: int | None) -> bool:
    if exception == "*":
        return True
    address = _ip_address(host)
    if address is not None and "/" in exception:
        try:
            return address in ipaddress.ip_network(exception, strict=False)
        except ValueError:
            return False
    name, _, exception_port = exception.partition(":")
    if exception_port.isdecimal() and int(exception_port) != port:
        return False
    name = exception if address is not None and address.version == 6 else name
    name = name.removeprefix("*")
    return host == name.removeprefix(".") or (
        address is None and host.endswith(name if name.startswith(".") else f".{name}")
    )


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The decompressed body. None as soon as it exceeds the limit: the connection is then closed.

    aiohttp's own `read` with a size returns the part that has arrived.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        size += len(chunk)
        if size > limit:
            response.close()
            return None
        chunks.append(chunk)
    return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Rate limits and timeouts of a client."""

    qps: float = 100
    """Requests per second. The default is that of CAPI's own managers, and 0 means no limit."""
    burst: int = 200
    """Requests that may be sent at once before `qps` applies."""
    timeout: float = 60
    """Seconds for a request with all its retries."""
    connect_timeout: float = 10
    """Seconds to open a connection, TLS handshake included."""
    connections: int = 100
    """Maximum number of concurrent requests, not counting watches."""
    silence: float = 90
    """Seconds without data after which a watch counts as broken. Bookmarks come every minute."""
    user_agent: str = "capelin"
    traces: tuple[aiohttp.TraceConfig, ...] = ()
    """aiohttp traces of every request, for example for metrics."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered for each attempt of a request, until its response is complete."""
    max_bytes: int | None = None
    """Largest response and largest line of a watch, decompressed: 128 MiB if `None`, and 16 MiB
    for workload clusters. A list may have four times as much in all its pages."""

    destinations: Destinations | None = None
    """Allowed addresses if a tenant chose the server, or `None` for any. If set, the client rejects
    a kubeconfig's `proxy-url`, and errors do not quote responses."""

    @property
    def response_bytes(self) -> int:
        return MAX_BYTES if self.max_bytes is None else self.max_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an API server."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = False
    """Sending it twice has the same effect as sending it once."""
    patient: bool = True
    """Retry when the server answers with `Retry-After`."""
    timeout: float | None = None
    max_bytes: int | None = None
    """Largest response, if smaller than the general limit."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete successful response."""

    status: int
    content_type: str
    body: bytes


class Transport:
    """Requests to one API server over persistent connections."""

    def __init__(self, config: Config, options: ClientOptions) -> None:
        self._config = config
        self._options = options
        self._proxy = config.server.proxy or proxy_for(config.server.address, os.environ)
        self._destinations = options.destinations
        if options.destinations is not None:
            self._check_destination(options.destinations)
        self._credentials = Credentials(config)
        self._limiter = RateLimiter(options.qps, options.burst) if options.qps > 0 else None
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self._warned: set[str] = set()
        self._closed = False
        self._slots = asyncio.Semaphore(options.connections)
        self._timeout = aiohttp.ClientTimeout(connect=options.connect_timeout)

    def _check_destination(self, destinations: Destinations) -> None:
        server = self._config.server
        if server.proxy is not None:
            raise ConfigError("the kubeconfig has a proxy-url, which is not allowed here")
        host = urlsplit(server.address).hostname or ""
        if not destinations.allows_host(host):
            raise ConfigError(f"the kubeconfig's server {host} is not allowed: {LOCAL_ADDRESSES}")
        if self._proxy is not None:
            # The administrator's proxy resolves names, and may itself be on this machine.
            self._destinations = None

    @property
    def max_bytes(self) -> int:
        return self._options.response_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True
        # Closing a connection on this side does not wake readers that wait for its next bytes.
        for response in self._responses:
            response.content.set_exception(aiohttp.ClientConnectionError())
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, request: Request) -> Response:
        """Send a request, retry it if that is safe, and return the complete response.

        Raises:
            ApiError: The server rejected the request.
            ResponseTooLarge: The response is larger than the options allow.
            Unreachable: The server did not respond, or not in time.
        """
        clock, failure = asyncio.get_running_loop().time, None
        seconds = request.timeout or self._options.timeout
        deadline = clock() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                attempt = 0
                while True:
                    attempt += 1
                    # A pause before the next attempt needs no slot.
                    async with self._slots:
                        result = await self._attempt(request)
                    if isinstance(result, Response):
                        return result
                    failure, outcome = result
                    delay = retry_delay(
                        outcome,
                        repeatable=request.repeatable,
                        attempt=attempt,
                        jitter=random.random(),  # noqa: S311 - spreads load, protects nothing
                    )
                    if delay is None or clock() + delay > deadline:
                        raise failure
                    await asyncio.sleep(delay)
        except TimeoutError:
            raise failure or self._unreachable(f"no answer within {seconds:g} s") from None

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[aiohttp.StreamReader]:
        """Send a request once, and read its endless response as it arrives.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: The server did not respond, or the response stopped.
        """
        limits = aiohttp.ClientTimeout(
            connect=self._options.connect_timeout, sock_read=self._options.silence
        )
        try:
            for may_retry in (True, False):
                proof = await self._ready()
                async with self._request(request, proof, limits) as response:
                    if response.status < 300:
                        yield response.content
                        return
                    failure = self._error(response.status, await self._error_body(response))
                if not (may_retry and await self._has_new_credentials(proof, response)):
                    raise failure
        except aiohttp.ClientError as error:
            self._raise_if_refused(error)
            raise self._unreachable(describe_connection_error(error)) from None

    async def _attempt(
        self, request: Request
    ) -> "Response | tuple[ClientError, Answered | ConnectionLost]":
        """Send once, or twice if the credentials have changed meanwhile."""
        for may_retry in (True, False):
            proof = await self._ready()
            try:
                with self._options.around():
                    async with self._request(request, proof, self._timeout) as response:
                        body = await self._body(request, response)
            except aiohttp.ClientSSLError as error:
                raise self._unreachable(describe_connection_error(error)) from None
            except aiohttp.ClientError as error:
                self._raise_if_refused(error)
                sent = not isinstance(error, _NEVER_SENT)
                failure = self._unreachable(describe_connection_error(error))
                return failure, ConnectionLost(sent)
            if response.status < 300:
                return Response(response.status, response.content_type, body)
            if not (may_retry and await self._has_new_credentials(proof, response)):
                break
        wait = _retry_after(response) if request.patient else None
        return self._error(response.status, body), Answered(response.status, wait)

    async def _body(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        if response.status >= 300:
            return await self._error_body(response)
        limit = min(self.max_bytes, request.max_bytes or self.max_bytes)
        body = await read_at_most(response, limit)
        if body is None:
            raise self.too_large("a response", limit)
        self.check_values("a response", body)
        return body

    async def _error_body(self, response: aiohttp.ClientResponse) -> bytes:
        """The body of an error, or nothing if it is too large for a `Status`."""
        return await read_at_most(response, min(self.max_bytes, _MAX_ERROR_BYTES)) or b""

    def _error(self, status: int, body: bytes) -> ApiError:
        return error_of(status, body, is_trusted=self._options.destinations is None)

    def check_values(self, what: str, data: bytes) -> None:
        """Reject JSON that takes much more memory and time than its size suggests.

        Raises:
            ResponseTooLarge: A value has less than 16 bytes on average. Those of Kubernetes have
                more than 20.
        """
        most = self.max_bytes // _BYTES_OF_VALUE
        if len(data) > most and values(data) > most:
            raise self._too_large(what, f"{most:,} values")

    def too_large(self, what: str, limit: int) -> ResponseTooLarge:
        return self._too_large(what, size_text(limit))

    def _too_large(self, what: str, limit: str) -> ResponseTooLarge:
        address = self._config.server.address
        return ResponseTooLarge(f"API server at {address} sent {what} of more than {limit}")

    async def _has_new_credentials(self, proof: Proof, response: aiohttp.ClientResponse) -> bool:
        """Whether the server rejected the credentials, and new ones are available."""
        return response.status == 401 and await self._credentials.after_refusal(proof) is not None

    async def _ready(self) -> Proof:
        if self._closed:
            raise RuntimeError("the client is closed")
        proof = await self._credentials.proof()
        if self._limiter is not None:
            await self._limiter.wait()
        return proof

    @asynccontextmanager
    async def _request(
        self, request: Request, proof: Proof, limits: aiohttp.ClientTimeout
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = self._open()
        headers = [("Accept", request.accept), *proof.headers]
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        query = f"?{urlencode(request.parameters)}" if request.parameters else ""
        server = self._config.server
        async with self._session.request(
            request.method,
            URL(f"{server.address}{request.path}{query}", encoded=True),
            data=request.body,
            headers=headers,
            ssl=proof.tls if proof.tls is not None else True,
            server_hostname=server.tls_server_name,
            proxy=self._proxy,
            timeout=limits,
            # Following a redirect would send the credentials to its target.
            allow_redirects=False,
        ) as response:
            for warning in response.headers.getall("Warning", ()):
                self._warn(warning)
            self._responses.add(response)
            try:
                yield response
            finally:
                self._responses.discard(response)

    def _open(self) -> aiohttp.ClientSession:
        connector = guarded_connector(self._destinations, idle_seconds=_IDLE_CONNECTION)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self._options.user_agent},
            # Servers that a tenant chose learn nothing about our traces.
            trace_configs=[
                *self._options.traces,
                *tracing.client_traces(propagate=self._options.destinations is None),
            ],
        )
        # aiohttp sends a DELETE twice, even if the first one may have deleted the object.
        session._retry_connection = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        return session

    def _warn(self, header: str) -> None:
        """Log each of the API server's warnings once: deprecated versions, unknown fields.

        A tenant controls the warnings of the server that it chose, so this ignores them.
        """
        if self._options.destinations is not None:
            return
        if header not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(header)
            log.warning("%s", header.removeprefix("299 - ").strip('"'))

    def _raise_if_refused(self, error: aiohttp.ClientError) -> None:
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
            error.os_error, AddressRefusedError
        ):
            address = self._config.server.address
            raise ConfigError(
                f"API server at {address} is not allowed: {LOCAL_ADDRESSES}"
            ) from None

    def _unreachable(self, reason: str) -> Unreachable:
        address = self._config.server.address
        error = Unreachable(f"API server at {address} does not answer ({reason})")
        error.server = address
        return error


_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    header = response.headers.get("Retry-After", "")
    return float(header) if header.isdecimal() else None
