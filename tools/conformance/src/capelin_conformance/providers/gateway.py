"""Stands between a checked manager and the API server, so that checks can disturb its requests."""

import asyncio
import json
import re
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, Literal, Self

import aiohttp
from aiohttp import web
from capelin.client import Config, Credentials, Server, User, load_certificate, new_kubeconfig
from capelin.pki import issue, new_ca
from yarl import URL

Fault = Literal["conflict", "throttled", "internal", "timeout", "cut", "lost"]
"""`cut`: the connection ends before the API server gets the request. `lost`: after it."""

FAULTS: Final[tuple[Fault, ...]] = ("conflict", "lost", "throttled", "internal", "timeout", "cut")

_HOST: Final = "127.0.0.1"
_STATUSES: Final[dict[Fault, tuple[int, str]]] = {
    "conflict": (409, "Conflict"),
    "throttled": (429, "TooManyRequests"),
    "internal": (500, "InternalError"),
    "timeout": (504, "Timeout"),
}
_KILLS_PER_PATH: Final = 3
_NAMESPACED: Final = re.compile(r"/namespaces/([^/]+)/(?!events(?:[/?]|$))")
"""The path of an object in a namespace. Events do not belong to a provider's result."""
_HOP_BY_HOP: Final = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
_MAX_BYTES: Final = 16 << 20


class Gateway:
    """Forwards requests on an address of this machine. Only its kubeconfig can use it."""

    def __init__(self, config: Config) -> None:
        self._address = config.server.address
        self._credentials = Credentials(config)
        self._faults: dict[str, list[Fault]] = {}
        self._held: dict[str, list[str]] = {}
        self._writes: Counter[str] = Counter()
        self._watches: set[asyncio.Task[None]] = set()
        self._watched: set[str] = set()
        self._expired: set[str] = set()
        self._session: aiohttp.ClientSession
        self.kubeconfig = b""
        """A kubeconfig whose requests this gateway forwards."""

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config) -> AsyncGenerator[Self]:
        """Serve during a block."""
        gateway = cls(config)
        now = datetime.now(UTC)
        ca = new_ca("capelin-conformance", now=now)
        pair = issue(
            ca, common_name="manager", usages=["server", "client"], addresses=[_HOST], now=now
        )
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cadata=ca.certificate_pem.decode()
        )
        context.verify_mode = ssl.CERT_REQUIRED
        load_certificate(context, pair.certificate_pem, pair.private_key_pem)
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_route("*", "/{path:.*}", gateway._handle)
        # A manager that was killed must not keep its watches.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, _HOST, 0, ssl_context=context).start()
            gateway.kubeconfig = new_kubeconfig(
                Server(f"https://{_HOST}:{runner.addresses[0][1]}", ca=ca.certificate_pem),
                User(certificate=pair.certificate_pem, key=pair.private_key_pem),
                cluster="conformance",
                username="manager",
            )
            gateway._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=10),
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
            )
            async with gateway._session:
                yield gateway
        finally:
            await runner.cleanup()

    @contextmanager
    def failing(self, namespace: str, faults: Iterable[Fault]) -> Generator[None]:
        """During a block, the next requests about objects in a namespace fail, one for each fault.

        Only a request that changes an existing object can fail with a conflict.
        """
        self._faults[namespace] = [*faults]
        try:
            yield
        finally:
            del self._faults[namespace]

    @contextmanager
    def holding(self, namespace: str) -> Generator[list[str]]:
        """During a block, keep the API server's responses to the first writes of each path.

        The manager does not get them. The list has the paths.
        """
        self._held[namespace] = held = []
        self._writes.clear()
        try:
            yield held
        finally:
            del self._held[namespace]

    def expire_watches(self) -> None:
        """End all watches. A watch that continues one of them gets the status 410."""
        self._expired |= self._watched
        for task in [*self._watches]:
            task.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.query.get("watch") in {"1", "true"}:
            return await self._watch(request)
        match = _NAMESPACED.search(request.path)
        namespace = match[1] if match else ""
        fault = self._next_fault(namespace, request.method)
        if fault in _STATUSES:
            return _failure(*_STATUSES[fault])
        if fault == "cut":
            return _hung_up(request)
        async with self._forward(request) as upstream:
            body = await upstream.read()
        if fault == "lost":
            return _hung_up(request)
        held = self._held.get(namespace)
        if held is not None and request.method != "GET" and upstream.ok:
            self._writes[request.path] += 1
            if self._writes[request.path] <= _KILLS_PER_PATH:
                held.append(request.path)
                # Ends with the manager's connection.
                await asyncio.Event().wait()
        return web.Response(status=upstream.status, headers=_kept(upstream.headers), body=body)

    def _next_fault(self, namespace: str, method: str) -> Fault | None:
        faults = self._faults.get(namespace)
        if not faults or (faults[0] == "conflict" and method not in {"PUT", "PATCH"}):
            return None
        return faults.pop(0)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        selectors = (request.query.get(name, "") for name in ("labelSelector", "fieldSelector"))
        key = " ".join((request.path, *selectors))
        self._watched.add(key)
        if key in self._expired and request.query.get("resourceVersion", "0") not in {"", "0"}:
            self._expired.remove(key)
            failure = _failure(410, "Expired")
            if "protobuf" not in request.headers.get("Accept", ""):
                # API servers respond with an event. Clients of the other format accept both.
                failure.set_status(200)
                event = {"type": "ERROR", "object": json.loads(failure.text or "")}
                # Clients wait for the end of the line.
                failure.text = f"{json.dumps(event)}\n"
            return failure
        async with self._forward(request) as upstream:
            response = web.StreamResponse(status=upstream.status, headers=_kept(upstream.headers))
            await response.prepare(request)
            copying = asyncio.create_task(_copy(upstream, response))
            self._watches.add(copying)
            try:
                await asyncio.wait({copying})
            finally:
                copying.cancel()
                self._watches.remove(copying)
        return response

    @asynccontextmanager
    async def _forward(self, request: web.Request) -> AsyncGenerator[aiohttp.ClientResponse]:
        proof = await self._credentials.proof()
        url = URL(f"{self._address}{request.raw_path}", encoded=True)
        headers = {**_kept(request.headers), **dict(proof.headers)}
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=await request.read() or None,
            ssl=proof.tls or False,
            allow_redirects=False,
        ) as upstream:
            yield upstream


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message, without those of its connection."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _copy(upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    with suppress(aiohttp.ClientError, ConnectionError):
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)


def _failure(code: int, reason: str) -> web.Response:
    status = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": "capelin conformance disturbed this request",
        "code": code,
    }
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(status, status=code, headers=headers)


def _hung_up(request: web.Request) -> web.Response:
    """End the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
