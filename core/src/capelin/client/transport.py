"""Carries requests to one API server: connections, credentials, pace, retries, time limits."""

import asyncio
import logging
import os
import random
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from capelin.client import retries
from capelin.client.config import Config
from capelin.client.credentials import Credentials, Proof
from capelin.client.errors import ClientError, Unreachable, error_of
from capelin.client.limiter import Limiter
from capelin.client.proxies import proxy_for
from capelin.client.reasons import why_lost

log = logging.getLogger(__name__)

# API servers close idle connections after 90 s: closing first never loses a request to that.
_IDLE_CONNECTION = 60.0
_WARNINGS_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Options:
    """How hard and how patiently to ask."""

    qps: float = 100
    """Requests a second, as CAPI's own managers; 0 for as many as there are."""
    burst: int = 200
    """Requests at once before `qps` counts."""
    timeout: float = 60
    """Seconds for a request with all its retries."""
    connect_timeout: float = 10
    """Seconds for a connection to be there, TLS included."""
    connections: int = 100
    """Requests under way at the same time; watches do not count."""
    silence: float = 90
    """Seconds without a word after which a watch is taken for dead. Bookmarks come each minute."""
    user_agent: str = "capelin"
    traces: tuple[aiohttp.TraceConfig, ...] = ()
    """Who wants to know of every request: a metric, say."""


@dataclass(frozen=True, slots=True)
class Call:
    """One thing to ask of an API server."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = False
    """Asking twice is the same as asking once."""
    patient: bool = True
    """Wait and ask again when the server says so."""
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer, whole."""

    status: int
    content_type: str
    body: bytes


class Transport:
    """One API server over connections that are kept and used again."""

    def __init__(self, config: Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._proxy = config.server.proxy or proxy_for(config.server.address, os.environ)
        self._credentials = Credentials(config)
        self._limiter = Limiter(options.qps, options.burst) if options.qps > 0 else None
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self._warned: set[str] = set()
        self._closed = False
        self._slots = asyncio.Semaphore(options.connections)
        self._timeout = aiohttp.ClientTimeout(connect=options.connect_timeout)

    @property
    def closed(self) -> bool:
        """Whether this is the end."""
        return self._closed

    async def close(self) -> None:
        """Close every connection. Watches that still run end."""
        self._closed = True
        # Closing a connection on this side does not wake those who wait for its next bytes.
        for response in self._responses:
            response.content.set_exception(aiohttp.ClientConnectionError())
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> Reply:
        """Ask, again where that is safe, and return the whole answer.

        Raises:
            ApiError: the server said no.
            Unreachable: there was no answer, or not in time.
        """
        clock, failure = asyncio.get_running_loop().time, None
        seconds = call.timeout or self._options.timeout
        deadline = clock() + seconds
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                attempt = 0
                while True:
                    attempt += 1
                    answer = await self._attempt(call)
                    if isinstance(answer, Reply):
                        return answer
                    failure, outcome = answer
                    pause = retries.pause(
                        outcome,
                        repeatable=call.repeatable,
                        attempt=attempt,
                        jitter=random.random(),  # noqa: S311 - spreads load, guards nothing
                    )
                    if pause is None or clock() + pause > deadline:
                        raise failure
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise failure or self._unreachable(f"no answer within {seconds:g} s") from None

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncGenerator[aiohttp.StreamReader]:
        """Ask once for an answer that has no end, and read it as it comes.

        Raises:
            ApiError: the server said no.
            Unreachable: there was no answer, or it broke off, or fell silent.
        """
        limits = aiohttp.ClientTimeout(
            connect=self._options.connect_timeout, sock_read=self._options.silence
        )
        try:
            for again in (True, False):
                proof = await self._ready()
                async with self._request(call, proof, limits) as response:
                    if response.status < 300:
                        yield response.content
                        return
                    failure = error_of(response.status, await response.read())
                if not (again and await self._has_renewed(proof, response)):
                    raise failure
        except aiohttp.ClientError as error:
            raise self._unreachable(why_lost(error)) from None

    async def _attempt(
        self, call: Call
    ) -> Reply | tuple[ClientError, retries.Answered | retries.Lost]:
        """Ask once, or once more if the credentials turn out to have changed."""
        for again in (True, False):
            proof = await self._ready()
            try:
                async with self._request(call, proof, self._timeout) as response:
                    body = await response.read()
            except aiohttp.ClientSSLError as error:
                raise self._unreachable(why_lost(error)) from None
            except aiohttp.ClientError as error:
                sent = not isinstance(error, _NEVER_SENT)
                return self._unreachable(why_lost(error)), retries.Lost(sent)
            if response.status < 300:
                return Reply(response.status, response.content_type, body)
            if not (again and await self._has_renewed(proof, response)):
                break
        wait = _retry_after(response) if call.patient else None
        return error_of(response.status, body), retries.Answered(response.status, wait)

    async def _has_renewed(self, proof: Proof, response: aiohttp.ClientResponse) -> bool:
        """Whether the server refused to know us, and there is something else to show by now."""
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
        self, call: Call, proof: Proof, limits: aiohttp.ClientTimeout
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = self._open()
        headers = [("Accept", call.accept), *proof.headers]
        if call.body is not None:
            headers.append(("Content-Type", call.content_type))
        query = f"?{urlencode(call.parameters)}" if call.parameters else ""
        server = self._config.server
        async with self._session.request(
            call.method,
            URL(f"{server.address}{call.path}{query}", encoded=True),
            data=call.body,
            headers=headers,
            ssl=proof.tls if proof.tls is not None else True,
            server_hostname=server.tls_server_name,
            proxy=self._proxy,
            timeout=limits,
            # Following one would carry the credentials to wherever it points.
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
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_IDLE_CONNECTION, socket_factory=_socket
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self._options.user_agent},
            trace_configs=list(self._options.traces),
        )

    def _warn(self, header: str) -> None:
        """Say once what the API server warns of: deprecated versions, unknown fields."""
        if header not in self._warned and len(self._warned) < _WARNINGS_KEPT:
            self._warned.add(header)
            log.warning("%s", header.removeprefix("299 - ").strip('"'))

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(f"API server at {self._config.server.address} does not answer ({why})")


_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    said = response.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() else None


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within a minute that the other machine is gone."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
