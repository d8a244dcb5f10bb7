"""A kopf operator in a thread with its own event loop, following kopf's documentation.

kopf does not wait for reconciles, and the manager does not wait for kopf. An operator logs in with
the credentials of the manager, and reads replaced ones again.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import kopf

from capelin.api import Resource
from capelin.client import Config, Credentials, proxy_for
from capelin.controller.diagnostics import Metrics
from capelin.controller.logs import explained
from capelin.controller.threads import until_done

_CLOSING = 0.25
_AGAIN = 0.5
# Bookmarks come every minute.
_SILENT_SECONDS = 70.0
# The interval for reading certificate files again. A replaced token is read after the first 401.
_LOGIN = timedelta(minutes=10)
_LOGIN_SECONDS = 1.0

Step = Callable[[], Coroutine[Any, Any, None]]
Main = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Ends soon after the event is set, or is cancelled."""


def quiet_settings() -> kopf.OperatorSettings:
    """Settings of an operator that may run in a thread, and whose kinds are installed."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.connect_timeout = 10
    settings.watching.inactivity_timeout = _SILENT_SECONDS
    return settings


class WatchLostError(Exception):
    """kopf has ended, which must not happen."""


class KopfThread:
    """Runs one operator at a time against an API server.

    A failed watch does not always end kopf, which may wait for its other watches. So this ends it.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        watched: Iterable[Resource],
        *,
        namespace: str | None,
        send: aiohttp.ClientMiddlewareType | None = None,
        response: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
    ) -> None:
        """Start without an operator.

        Args:
            config: The API server, and the credentials.
            metrics: Count the requests.
            watched: The kinds that the operator watches.
            namespace: The only namespace to watch. Default: all.
            send: A middleware for the requests.
            response: The class of the responses.
        """
        self.session: aiohttp.ClientSession | None = None
        prefix = urlsplit(config.server.address).path.rstrip("/")
        self._watched = {
            prefix + resource.path(where): resource
            for resource in watched
            for where in (None, namespace)
        }
        self.watchers: dict[Resource, asyncio.Task[Any]] = {}
        """The task of kopf for each kind that it watches now, in kopf's event loop."""
        self._stop = asyncio.Event()
        self._config, self._metrics = config, metrics
        self._middlewares = (self._name, send) if send else (self._name,)
        self._response = response
        self._where: dict[str, Any] = {"clusterwide": True}
        if namespace is not None:
            self._where = {"namespaces": [namespace]}
        self._login_at = 0.0

    async def run(
        self,
        registry: kopf.OperatorRegistry,
        settings: kopf.OperatorSettings,
        *,
        memo: kopf.Memo | None = None,
        setup: Callable[[], object] = lambda: None,
        grace: float = 0.0,
    ) -> None:
        """Run until cancelled, or until kopf ends. `setup` runs in its event loop before.

        `grace` is the time for daemons and cleanup handlers.

        Raises:
            WatchLostError: kopf has ended.
        """
        self._lost = ""
        self.watchers.clear()
        kopf.on.login(registry=registry, id="capelin", backoff=1)(self._login)

        async def operate(stop: asyncio.Event) -> None:
            self._stop = stop
            setup()
            await kopf.operator(
                registry=registry,
                settings=settings,
                memo=memo,
                stop_flag=stop if grace else None,
                standalone=True,
                **self._where,
            )

        try:
            await in_own_loop("kopf", operate, self._log_out, grace)
        except Exception as error:
            raise WatchLostError(self._lost or f"kopf has ended: {explained(error)}") from error
        raise WatchLostError(self._lost or "kopf has ended")

    def end(self, lost: str) -> None:
        """End kopf, in its event loop."""
        self._lost = self._lost or lost
        self._stop.set()

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        clock, server = asyncio.get_running_loop().time, self._config.server
        await asyncio.sleep(self._login_at + _LOGIN_SECONDS - clock() if self._login_at else 0)
        self._login_at = clock()
        proof = await Credentials(self._config).proof()
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=proof.tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=[("User-Agent", "capelin"), *proof.headers],
            middlewares=self._middlewares,
            proxy=server.proxy or proxy_for(server.address, os.environ),
            response_class=self._response,
            trace_configs=[self._metrics.trace()],
        )
        expiration = datetime.now(UTC) + _LOGIN
        return kopf.AiohttpSession(
            aiohttp_session=self.session, server=server.address, expiration=expiration
        )

    async def _name(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.server_hostname = self._config.server.tls_server_name
        resource, task = self._watched.get(request.url.path), asyncio.current_task()
        if resource and task and request.method == "GET" and self.watchers.get(resource) != task:
            self.watchers[resource] = task
            task.add_done_callback(partial(self._ended, resource))
        return await handler(request)

    def _ended(self, resource: Resource, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        why = "" if error is None else f": {explained(error)}"
        self.end(f"the watch of {resource.plural} has ended{why}")

    async def _log_out(self) -> None:
        if self.session is not None:
            await self.session.close()


async def in_own_loop(name: str, main: Main, cleanup: Step, grace: float = 0.0) -> None:
    """Run `main` until it ends or is cancelled, then `cleanup` after all other tasks have ended."""
    here, there = asyncio.get_running_loop(), asyncio.new_event_loop()
    # kopf logs each failed task, but when it ends early, it does not read the results of all.
    there.set_exception_handler(_ignore_unread_results)
    ended: asyncio.Future[BaseException | None] = here.create_future()
    stop = asyncio.Event()

    async def contained() -> None:
        tasks = asyncio.create_task(main(stop)), asyncio.create_task(stop.wait())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if grace:
            await asyncio.wait(tasks[:1], timeout=grace)
        await _end_all_others()
        await cleanup()
        # aiohttp closes TLS connections in the background. Its documentation recommends this pause.
        await asyncio.sleep(_CLOSING)
        if not tasks[0].cancelled():
            tasks[0].result()

    def run() -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: there) as runner:
                runner.run(contained())
        except BaseException as raised:  # noqa: BLE001 - raised in the other loop
            error = raised
        here.call_soon_threadsafe(ended.set_result, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        await asyncio.shield(ended)
    finally:
        with suppress(RuntimeError):  # its loop is closed: it has ended
            there.call_soon_threadsafe(stop.set)
        await until_done(ended)
        thread.join()
    if (error := ended.result()) is not None:
        raise error


def _ignore_unread_results(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if "future" not in context:
        loop.default_exception_handler(context)


async def _end_all_others() -> None:
    """Cancel the tasks of this loop until all have ended: a task can lose a cancellation."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=_AGAIN)
