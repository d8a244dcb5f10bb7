"""kopf as a watcher: tells which keys an event concerns, and nothing else.

kopf lists, watches, resumes and relists. Its handlers' state, finalizers, annotations, peering,
event posting and signal handling are off, and of the objects that it reads nothing is kept.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import aiohttp
import kopf

from capelin.api import Resource
from capelin.client import Config, Credentials, proxy_for
from capelin.controller.logs import explained
from capelin.controller.metrics import Metrics
from capelin.controller.results import ObjectKey
from capelin.controller.watches import For, Watch, concerned, looks_inside, selector

log = logging.getLogger(__name__)

# A page of a list is held in memory while it is read.
_PAGE = 250
# A whole minute, as the API server's rights and its webhooks may take a while to be there. From
# then on, lost connections are tried again for ever, and refusals end the manager.
_RETRIES = (0.1, 0.2, 0.5, 1, 2, 5, 5, 5, 10, 10, 10, 10)


class WatchLostError(Exception):
    """A watch has ended that should go on for ever."""


class Interested(Protocol):
    """Whoever has a queue of keys."""

    def add(self, key: ObjectKey) -> None:
        """Something changed about this key."""

    def add_all(self) -> None:
        """Anything may have changed."""

    def retry_soon(self) -> None:
        """What made reconciles fail is over."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One declared watch of a reconciler for objects of `kind`."""

    watch: Watch
    kind: Resource
    queue: Interested


@dataclass(slots=True)
class _Source:
    """One stream of events, for everybody who wants to know about its resource."""

    resource: Resource
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    lists: int = 0
    listed: bool = False
    watcher: asyncio.Task[Any] | None = None

    @property
    def selector(self) -> str:
        """What all of the subscriptions agree on; they choose for themselves beyond that."""
        wanted = {selector(subscription.watch.labels) for subscription in self.subscriptions}
        return wanted.pop() if len(wanted) == 1 else ""

    def accept(self, *, watch: bool) -> str:
        """The content type to ask for: metadata alone, unless somebody has to look inside."""
        if any(looks_inside(subscription.watch) for subscription in self.subscriptions):
            return "application/json"
        kind = "PartialObjectMetadata" if watch else "PartialObjectMetadataList"
        return f"application/json;as={kind};g=meta.k8s.io;v=v1"


class _NothingStored(kopf.DiffBaseStorage):
    """kopf compares each object with its last state for handlers that are not used here."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        return


class _Response(aiohttp.ClientResponse):
    """An answer in which an empty list is one: of metadata alone, API servers send null."""

    async def json(self, **keywords: Any) -> Any:
        data = await super().json(**keywords)
        if isinstance(data, dict) and "items" in data:
            listing = cast("dict[str, Any]", data)
            listing["items"] = listing["items"] or []
            return listing
        return cast("Any", data)


class Watching:
    """Every watch of a manager."""

    def __init__(
        self,
        config: Config,
        subscriptions: Sequence[Subscription],
        metrics: Metrics,
        *,
        namespace: str | None = None,
    ) -> None:
        self._server = config.server
        self._proxy = config.server.proxy or proxy_for(config.server.address, os.environ)
        self._credentials = Credentials(config)
        self._trace = metrics.trace()
        self._namespace = namespace
        self._queues = {
            id(subscription.queue): subscription.queue for subscription in subscriptions
        }
        self._answering = True
        self.listed = asyncio.Event()
        """Set when everything that is there has been heard of once."""
        self._lost: asyncio.Future[str] | None = None
        sources: dict[Resource, _Source] = {}
        for subscription in subscriptions:
            resource = subscription.watch.kind.resource
            sources.setdefault(resource, _Source(resource)).subscriptions.append(subscription)
        prefix = urlsplit(config.server.address).path.rstrip("/")
        self._sources = {
            prefix + resource.path(namespace): source for resource, source in sources.items()
        }

    @property
    def resources(self) -> list[Resource]:
        """Everything that is watched."""
        return [source.resource for source in self._sources.values()]

    @property
    def waiting_for(self) -> list[str]:
        """What has not been listed yet: keys may be missing until there is nothing left here."""
        return [source.resource.plural for source in self._sources.values() if not source.listed]

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            WatchLostError: a watch has ended by itself, and with it all of them.
        """
        self._lost = asyncio.get_running_loop().create_future()
        # Who is cancelled while they begin has to end them, too.
        told = self._settings()
        spawning = asyncio.create_task(self._spawn(told))
        try:
            await asyncio.wait([spawning])
            tasks = spawning.result()
            await asyncio.wait([*tasks, self._lost], return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise WatchLostError(self._lost.result())
            for task in tasks:
                if task.done() and not task.cancelled():
                    raise WatchLostError("kopf has stopped watching") from task.exception()
        finally:
            self._lost.cancel()
            await _end(await spawning)
            await _end(_questions(told))

    async def _spawn(self, settings: kopf.OperatorSettings) -> Sequence[asyncio.Task[Any]]:
        # Calls by which kopf would take the process's signals from whoever started us.
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=settings,
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=[] if self._namespace is None else [self._namespace],
        )
        if main:
            for number, handler in before.items():
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, handler)
        return list(tasks)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login")(self._login)
        for source in self._sources.values():
            resource = source.resource
            kopf.on.event(
                group=resource.group,
                version=resource.version,
                plural=resource.plural,
                id=f"{resource.plural}.{resource.version}.{resource.group}",
                registry=registry,
            )(self._handler(source))
        return registry

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.process.ultimate_exiting_timeout = None
        settings.persistence.diffbase_storage = _NothingStored()
        # How long an object's own task outlives its last event.
        settings.queueing.idle_timeout = 0.5
        settings.networking.request_timeout = 60
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = _RETRIES
        settings.watching.chunk_size = _PAGE
        for source in self._sources.values():
            if source.selector:
                settings.watching.label_selectors[_is(source.resource)] = source.selector
        return settings

    def _handler(self, source: _Source) -> Callable[..., Any]:
        # Not a plain function: kopf would run it in a thread.
        async def handle(event: kopf.RawEvent, **_: Any) -> None:
            self._heard(source, cast("Mapping[str, Any]", event["object"]))

        return handle

    def _heard(self, source: _Source, body: Mapping[str, Any]) -> None:
        for subscription in source.subscriptions:
            try:
                keys = concerned(subscription.watch, subscription.kind, body)
            except Exception:
                # An event that nobody understands may concern anybody.
                log.exception("An event of %s cannot be mapped", source.resource.plural)
                subscription.queue.add_all()
            else:
                for key in keys:
                    subscription.queue.add(key)

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        tls = (await self._credentials.proof()).tls
        session: aiohttp.ClientSession

        async def send(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            proof = await self._credentials.proof()
            if proof.tls is not tls:
                # Certificates were replaced: kopf logs in anew when it finds its session closed.
                await session.close()
                raise RuntimeError("Session is closed")
            request.headers.update(proof.headers)
            request.server_hostname = self._server.tls_server_name
            response = await self._send(request, handler)
            if response.status == 401:
                await self._credentials.after_refusal(proof)
            return response

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls if tls is not None else True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "capelin"},
            middlewares=[send],
            proxy=self._proxy,
            response_class=_Response,
            trace_configs=[self._trace],
        )
        return kopf.AiohttpSession(aiohttp_session=session, server=self._server.address)

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        source = self._sources.get(request.url.path)
        watch = "watch" in request.url.query
        if source is not None:
            request.headers["Accept"] = source.accept(watch=watch)
            self._guard(source)
        try:
            response = await handler(request)
        except (aiohttp.ClientError, TimeoutError):
            self._answering = False
            raise
        if response.status >= 500:
            self._answering = False
        elif response.status < 300:
            self._answered(source, watch=watch, first_page="continue" not in request.url.query)
        return response

    def _answered(self, source: _Source | None, *, watch: bool, first_page: bool) -> None:
        if not self._answering:
            self._answering = True
            for queue in self._queues.values():
                queue.retry_soon()
        if source is None:
            return
        if watch:
            source.listed = True
            if not self.waiting_for:
                self.listed.set()
        elif first_page:
            source.lists += 1
            if source.lists > 1:
                self._relisted(source)

    def _relisted(self, source: _Source) -> None:
        """Something may have been deleted while nobody watched, and no event says so any more."""
        for subscription in source.subscriptions:
            if not isinstance(subscription.watch, For):
                subscription.queue.add_all()

    def _guard(self, source: _Source) -> None:
        """Make sure that the end of the task that watches is noticed: kopf may go on without it."""
        task = asyncio.current_task()
        if task is not None and task is not source.watcher:
            source.watcher = task
            task.add_done_callback(lambda task: self._ended(source, task))

    def _ended(self, source: _Source, task: asyncio.Task[Any]) -> None:
        if self._lost is not None and not self._lost.done():
            error = None if task.cancelled() else task.exception()
            why = f": {explained(error)}" if error is not None else ""
            self._lost.set_result(f"the watch of {source.resource.plural} has ended{why}")


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _questions(settings: kopf.OperatorSettings) -> list[asyncio.Task[Any]]:
    """What kopf still asks of what is served: it leaves that to itself when it is cancelled."""
    # Only the settings that they were given tell whose they are.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    frames = {task: getattr(task.get_coro(), "cr_frame", None) for task in others}
    return [
        task
        for task, frame in frames.items()
        if frame is not None and frame.f_locals.get("settings") is settings
    ]


def _is(resource: Resource) -> Callable[[kopf.Resource], bool]:
    wanted = (resource.group, resource.version, resource.plural)
    return lambda found: (found.group, found.version, found.plural) == wanted
