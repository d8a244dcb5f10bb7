"""One process of a server: it answers until it is told to stop."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn
import uvloop

from capelin.runtime.extension import Extension
from capelin.runtime.server.app import App
from capelin.runtime.server.http import HookProtocol
from capelin.runtime.server.metrics import Metrics
from capelin.runtime.server.probes import Probes
from capelin.runtime.server.processes import until_orphaned
from capelin.runtime.server.tls import Certificates

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 120
"""For how long a connection may rest. Cluster API's client gives its own up after 90 seconds, and
a server that is slower than that never closes one that is about to be used."""

_LAST_CALLS_SECONDS = 30
"""For how long calls may go on after the server has stopped listening: none may last longer."""

_LAST_THREADS_SECONDS = 3
"""For how long threads may go on after everything is answered and closed."""

_HANGING_TASK = "no thread hangs, but a task goes on although it was cancelled"


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process needs to answer."""

    extension: Extension
    metrics: Metrics
    number: int
    hooks: socket.socket
    probes: socket.socket
    certificates: Certificates
    drain_seconds: float
    supervised: bool
    """Whether it belongs to a process that looks after it, and ends with that."""

    def run(self) -> None:
        """Answer until SIGTERM or SIGINT; and end then, whatever threads of handlers hang."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())
            # The runner waits for the threads of its executor, and Python for all other ones.
            end = threading.Timer(_LAST_THREADS_SECONDS, end_unfinished)
            end.daemon = True
            end.start()
        if not _hold_up_the_end():
            end.cancel()

    async def _serve(self) -> None:
        app = App(self.extension, self.metrics.process(self.number))
        hooks = _Server(_config(app, self.certificates))
        probes = _Server(_config(Probes(self.metrics, lambda: hooks.started and not app.closing)))
        told: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.put_nowait, self.drain_seconds)
        loop.add_signal_handler(signal.SIGINT, told.put_nowait, 0)
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self.certificates.follow())]
            if self.supervised:
                helpers.append(tasks.create_task(_stop_when_orphaned(told)))
            tasks.create_task(hooks.serve(sockets=[self.hooks]))
            tasks.create_task(probes.serve(sockets=[self.probes]))
            seconds = await told.get()
            app.closing = True
            # Others learn from /readyz that nothing new should come; it still does for a moment.
            with suppress(TimeoutError):
                await asyncio.wait_for(told.get(), seconds)
            for helper in helpers:
                helper.cancel()
            hooks.should_exit = probes.should_exit = True


def _hold_up_the_end() -> list[str]:
    """Threads without whose end Python does not end."""
    mine = threading.current_thread()
    return [each.name for each in threading.enumerate() if each is not mine and not each.daemon]


def end_unfinished() -> None:
    """End at once, and say what would not come to its end."""
    threads = ", ".join(_hold_up_the_end())
    hanging = f"threads that hang: {threads}" if threads else _HANGING_TASK
    _log.warning("ending although not all has come to its end; %s", hanging)
    os._exit(0)


async def _stop_when_orphaned(told: "asyncio.Queue[float]") -> None:
    await until_orphaned()
    told.put_nowait(0)


def _config(app: App | Probes, certificates: Certificates | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HookProtocol,
        ws="none",
        lifespan="on" if isinstance(app, App) else "off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_LAST_CALLS_SECONDS,
        ssl_context_factory=None if certificates is None else _serving(certificates),
    )


def _serving(certificates: Certificates) -> Callable[..., ssl.SSLContext]:
    return lambda *_: certificates.context()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process, which has two servers to stop."""
        yield
