"""The process of a server: serves hooks and probes until SIGTERM."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from capelin.collection import keep_loaded_code
from capelin.runtime.extension import Extension
from capelin.runtime.server.app import App
from capelin.runtime.server.http import HookProtocol, Limits
from capelin.runtime.server.metrics import Probes
from capelin.tls import Certificates

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 120
"""The time after which the server closes an idle connection. Cluster API's client closes its own
after 90 seconds. A server that waits longer never closes one that is about to be used."""

_HANDSHAKE_SECONDS = 10.0
"""The time after which the server closes a connection without a complete TLS handshake."""

_LAST_CALLS_SECONDS = 30
"""The time for calls after the server has stopped listening: none may take longer."""

_LAST_THREADS_SECONDS = 3
"""The time for threads after the last response."""

_HANGING_TASK = "no thread hangs, but a task continues although it was cancelled"


class PortTakenError(Exception):
    """The address or port is not free."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Args:
        host: An address, or nothing for all.
        port: A port, or 0 for any that is free.

    Raises:
        PortTakenError: the address or port is not free.
    """
    everywhere = not host and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if everywhere or ":" in host else socket.AF_INET,
            dualstack_ipv6=everywhere,
            backlog=1024,
        )
    except OSError as error:
        where = f"{host or 'any address'} port {port}"
        reason = os.strerror(error.errno or 0)
        raise PortTakenError(
            f"cannot listen on {where} ({reason}). Use another --host or --port"
        ) from None


@dataclass(frozen=True, slots=True)
class Process:
    """Serves one extension."""

    extension: Extension
    hooks: socket.socket
    probes: socket.socket
    certificates: Certificates
    drain_seconds: float
    metrics_token_file: Path | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, and end then, even if threads of handlers hang."""
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._serve())
            # The runner waits for the threads of its executor, and Python for all others.
            end = threading.Timer(_LAST_THREADS_SECONDS, end_unfinished)
            end.daemon = True
            end.start()
        if not _threads_that_hang():
            end.cancel()

    async def _serve(self) -> None:
        app = App(self.extension)
        keep_loaded_code()
        hooks = _Server(_config(app, self.certificates))
        pages = Probes(
            app.metrics, lambda: hooks.started and not app.closing, self.metrics_token_file
        )
        probes = _Server(_config(pages))
        drains: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, drains.put_nowait, self.drain_seconds)
        loop.add_signal_handler(signal.SIGINT, drains.put_nowait, 0)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self.certificates.follow())
            tasks.create_task(hooks.serve(sockets=[self.hooks]))
            tasks.create_task(probes.serve(sockets=[self.probes]))
            seconds = await drains.get()
            app.closing = True
            # /readyz makes clients use another server, but some still come for a moment.
            with suppress(TimeoutError):
                await asyncio.wait_for(drains.get(), seconds)
            renewing.cancel()
            hooks.should_exit = probes.should_exit = True


def _threads_that_hang() -> list[str]:
    """Threads that keep Python from ending."""
    mine = threading.current_thread()
    return [t.name for t in threading.enumerate() if t is not mine and not t.daemon]


def end_unfinished() -> None:
    """End at once, and log the unfinished work."""
    threads = ", ".join(_threads_that_hang())
    hanging = f"threads that hang: {threads}" if threads else _HANGING_TASK
    _log.warning("ending with unfinished work: %s", hanging)
    os._exit(0)


class _Loop(uvloop.Loop):
    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        """Listen with a limit for TLS handshakes, for which uvicorn has no setting."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = _HANDSHAKE_SECONDS
        return await super().create_server(*arguments, **options)


def _config(app: App | Probes, certificates: Certificates | None = None) -> uvicorn.Config:
    protocol: Any = partial(HookProtocol, Limits())
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on" if isinstance(app, App) else "off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_LAST_CALLS_SECONDS,
        ssl_context_factory=certificates and (lambda _, __: certificates.context()),
    )


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process, which has to stop two servers."""
        yield
