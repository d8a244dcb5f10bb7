"""A clock that jumps and an API that fails, between the providers and the machine.

A separate Python of the campaign starts the providers and their supervisor. They read the clock
from a file (libfaketime), and the providers reach the management API server through a proxy in the
campaign's process.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from aiohttp import (
    ClientConnectionError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    TCPConnector,
    web,
)
from capelin.client import Config, Server, tls_context
from yarl import URL

_HOST = "127.0.0.1"
_HANG_SECONDS = 40.0
_NOT_PASSED_ON = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "content-encoding"}
)

ApiError = Literal["500", "409", "429", "hang", "reset", "lost response", "expired watches"]
"""How a request fails. A lost response: the request is carried out, and 500 is the response."""

_STATUSES = {"500": 500, "409": 409, "429": 429, "lost response": 500}
_REASONS = {500: "InternalError", 409: "Conflict", 429: "TooManyRequests"}


@dataclass
class ApiProxy:
    """Passes requests on to the management API server, or fails them."""

    port: int
    kubeconfig: Path
    """The kubeconfig of the environment, which must exist before the first request."""
    error: ApiError | None = None
    share: float = 1.0
    """The share of requests that fail, as long as there is an error."""
    random: Random = Random(0)  # noqa: S311, RUF009 - failures need no secret randomness
    failed: int = 0
    _server: Server | None = None
    _session: ClientSession | None = None
    _ended: asyncio.Event | None = None

    @asynccontextmanager
    async def failing(self, error: ApiError, share: float) -> AsyncGenerator[None]:
        """Fail a share of all requests, for as long as the block lasts."""
        self.error, self.share, self._ended = error, share, asyncio.Event()
        try:
            yield
        finally:
            self.error = None
            self._ended.set()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve for as long as the block lasts."""
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, _HOST, self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()
            if self._session is not None:
                await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        error = self.error
        watches = "watch" in request.query
        if error is None or self.random.random() >= self.share:
            return await self._forward(request)
        if error == "expired watches":
            return await self._forward(request) if not watches else _failure(410, "Expired")
        if error == "409" and request.method in {"GET", "HEAD"}:
            return await self._forward(request)
        self.failed += 1
        if error == "hang":
            with suppress(TimeoutError):
                assert self._ended is not None
                await asyncio.wait_for(self._ended.wait(), _HANG_SECONDS)
        if error in {"hang", "reset"}:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        if error == "lost response" and not watches:
            await self._carry_out(request)
        status = _STATUSES[error]
        return _failure(status, _REASONS[status])

    async def _carry_out(self, request: web.Request) -> None:
        async with self._send(request) as response:
            await response.read()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        response = None
        try:
            async with self._send(request) as upstream:
                headers = {
                    name: value
                    for name, value in upstream.headers.items()
                    if name.lower() not in _NOT_PASSED_ON
                }
                response = web.StreamResponse(status=upstream.status, headers=headers)
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
        except (ClientConnectionError, ClientPayloadError, OSError, TimeoutError):
            # Like without a proxy: the connection breaks.
            if request.transport is not None:
                request.transport.abort()
            return response or web.Response(status=503)
        return response

    @asynccontextmanager
    async def _send(self, request: web.Request) -> AsyncGenerator[ClientResponse]:
        # It never changes, and providers read it often.
        server = self._server = self._server or Config.from_kubeconfig(self.kubeconfig).server
        if self._session is None:
            assert isinstance(server.ca, bytes)
            # No client certificate: each provider authenticates with its own token.
            context = tls_context(server.ca, None, None)
            self._session = ClientSession(
                connector=TCPConnector(ssl=context, limit=0),
                timeout=ClientTimeout(total=None, sock_connect=5),
            )
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _NOT_PASSED_ON
        }
        url = URL(f"{server.address}{request.raw_path}", encoded=True)
        body = await request.read() or None
        async with self._session.request(
            request.method, url, data=body, headers=headers
        ) as response:
            yield response


def _failure(code: int, reason: str) -> web.Response:
    status: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "injected by the campaign of faults",
        "reason": reason,
        "code": code,
    }
    headers = {"Retry-After": "1"} if code == 429 else None
    return web.json_response(status, status=code, headers=headers)


@dataclass(frozen=True)
class Clock:
    """The clock offset of the Python processes of the environment."""

    file: Path

    def set(self, offset: str) -> None:
        """Set the offset from the right time: `+0`, `+3h`, `-30d`."""
        # Atomic, since a reader must not find an empty file.
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.replace(self.file)


def faketime_library() -> Path | None:
    """libfaketime, if it is installed."""
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
    paths = (Path(folder, "faketime", "libfaketimeMT.so.1") for folder in folders)
    return next((path for path in paths if path.exists()), None)


def python_of_campaign(folder: Path, proxy_port: int, library: Path | None) -> Path:
    """A Python with the packages of this one, whose processes have the interposed clock and API."""
    virtual = Path(sys.prefix)
    binary = folder / "bin" / "python"
    binary.parent.mkdir(parents=True)
    (folder / "lib").symlink_to(virtual / "lib")
    (folder / "pyvenv.cfg").write_bytes((virtual / "pyvenv.cfg").read_bytes())
    Clock(folder / "clock").set("+0")
    clock = [
        f"export LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={folder / 'clock'}",
        "export FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1",
    ]
    lines = [
        "#!/bin/bash",
        f"root={folder}",
        *(clock if library is not None else []),
        _USE_PROXY.replace("PROXY", f"http://{_HOST}:{proxy_port}"),
        f'exec -a "$0" {Path(sys.executable).resolve()} "$@"',
    ]
    binary.write_text("\n".join(lines) + "\n")
    binary.chmod(0o700)
    return binary


_USE_PROXY = """\
if [[ "$*" == "-m capelin_control_plane "* || "$*" == "-m capelin_machine_pool "* ]]; then
  umask 077
  for argument; do
    shift
    if [[ $argument == --kubeconfig=* ]]; then
      copy=$root/$$.kubeconfig
      sed -E 's#https://[0-9.:]+#PROXY#; /certificate-authority-data/d' \
        "${argument#--kubeconfig=}" > "$copy"
      argument=--kubeconfig=$copy
    fi
    set -- "$@" "$argument"
  done
fi"""
