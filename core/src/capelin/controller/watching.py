"""Uses kopf as a watcher: it reports changed objects, and does nothing else.

kopf lists, watches, resumes and relists as an operator in a thread with its own event loop. Its
events go to the manager's loop. Decision 0035 explains how and why we use kopf.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import kopf

from capelin.api import Resource
from capelin.client import Config, Credentials, Feed, ObjectCache, proxy_for
from capelin.controller.diagnostics import Metrics
from capelin.controller.logs import explained
from capelin.controller.own_loop import in_own_loop
from capelin.controller.reconciler import UNREADABLE, For, Subscription, looks_inside, selector
from capelin.json_text import (
    MAX_LEVELS,
    TOO_DEEP,
    TooDeepError,
    items,
    levels,
    members,
    metadata_of,
    read_json,
)

log = logging.getLogger(__name__)

# A whole minute, because the API server's roles and webhooks may take a while to work. After that,
# lost connections are retried for ever, and rejections end the manager.
_RETRIES = (0.1, 0.2, 0.5, 1, 2, 5, 5, 5, 10, 10, 10, 10)
# The interval for reading certificate files again. A replaced token is read after the first 401.
_LOGIN = timedelta(minutes=10)


class WatchLostError(Exception):
    """A watch that should continue for ever has ended."""


class _Response(aiohttp.ClientResponse):
    """Passes readable objects to kopf, and only the metadata of the others."""

    feeding: "_Feeding | None" = None

    async def json(self, **keywords: Any) -> Any:
        data = await self.read()
        try:
            value: dict[str, Any] = read_json(data)
        except TooDeepError:
            value = bounded_list(data)
        except ValueError:
            return await super().json(**keywords)
        if value.get("items", ()) is None:
            # API servers send an empty list of metadata as null, on which kopf fails.
            value = {**value, "items": []}
        if self.feeding is not None:
            self.feeding.list(value.get("items", ()))
        return value


@dataclass(frozen=True, slots=True)
class _Feeding:
    """Passes the versions in a response to the feed of its kind, before kopf reads the response.

    kopf has a task for each object, so its events of objects with the same name are not in order.
    """

    feed: Feed
    call: Callable[..., None]
    """Calls a function in the manager's event loop."""

    def list(self, items: Iterable[Mapping[str, Any]]) -> None:
        self.call(self.feed.deliver, [self.feed.delivered(item) for item in items])

    def watch(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = read_json(line)
        except ValueError:
            return  # an empty line, or one about which kopf complains
        if event.get("type") in {"ADDED", "MODIFIED"}:
            self.list([event["object"]])
        elif event.get("type") == "DELETED":
            self.call(self.feed.remove, self.feed.delivered(event["object"]))


class _Lines:
    """The stream of a watch, with lines that kopf can read."""

    def __init__(self, stream: aiohttp.StreamReader, feeding: _Feeding) -> None:
        self._stream, self._feeding = stream, feeding

    async def iter_chunked(self, size: int) -> AsyncGenerator[bytes]:
        pending: list[bytes] = []
        feed, call = self._feeding.feed, self._feeding.call
        call(feed.open, self)
        try:
            async for chunk in self._stream.iter_chunked(size):
                first, *rest = chunk.split(b"\n")
                pending.append(first)
                for part in rest:
                    line = bounded_line(b"".join(pending))
                    self._feeding.watch(line)
                    yield line + b"\n"
                    pending = [part]
        finally:
            call(feed.close, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def bounded_line(line: bytes) -> bytes:
    """A line of a watch. An object with too many nested levels has only its metadata."""
    if line.count(b"{") + line.count(b"[") <= MAX_LEVELS or levels(line) <= MAX_LEVELS:
        return line
    parts = dict(members(line))
    event = {"type": read_json(parts["type"]), "object": _metadata_only(parts["object"])}
    return json.dumps(event).encode()


def bounded_list(data: bytes) -> dict[str, Any]:
    """A list. Objects with too many nested levels have only their metadata."""
    parts = dict(members(data))
    listed: list[Any] = []
    for item in items(parts.pop("items", b"null")):
        try:
            listed.append(read_json(item))
        except TooDeepError:
            listed.append(_metadata_only(item))
    return {**{key: read_json(value) for key, value in parts.items()}, "items": listed}


def _metadata_only(data: bytes) -> dict[str, Any]:
    names = {part.key: part.value for part in members(data) if part.key in {"apiVersion", "kind"}}
    return {
        **{key: read_json(value) for key, value in names.items()},
        "metadata": metadata_of(data),
        UNREADABLE: TOO_DEEP,
    }


@dataclass(slots=True)
class _Source:
    """One stream of events, for all subscriptions to its resource."""

    resource: Resource
    feed: Feed
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    lists: int = 0
    listed: bool = False
    watcher: asyncio.Task[Any] | None = None

    def accept(self, *, watch: bool) -> str:
        """The content type to request: only metadata, unless a mapper needs whole objects."""
        if any(looks_inside(subscription.watch) for subscription in self.subscriptions):
            return "application/json"
        kind = "PartialObjectMetadata" if watch else "PartialObjectMetadataList"
        return f"application/json;as={kind};g=meta.k8s.io;v=v1"


class Watching:
    """The watches of a manager. `listed` is set after the first list of every kind."""

    def __init__(
        self,
        config: Config,
        subscriptions: Sequence[Subscription],
        metrics: Metrics,
        *,
        namespace: str | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        self.listed = asyncio.Event()
        self._config, self._metrics, self._namespace = config, metrics, namespace
        self._queues = {
            id(subscription.queue): subscription.queue for subscription in subscriptions
        }.values()
        self._lost = "kopf has stopped watching"
        self._answering, self._login_at = True, 0.0
        self._operator: asyncio.Task[Any] | None = None
        self._session: aiohttp.ClientSession | None = None
        cache = ObjectCache() if cache is None else cache
        sources: dict[Resource, _Source] = {}
        for subscription in subscriptions:
            resource = subscription.watch.kind.resource
            if resource not in sources:
                sources[resource] = _Source(resource, cache.follow(resource))
            sources[resource].subscriptions.append(subscription)
        self.resources = list(sources)
        prefix = urlsplit(config.server.address).path.rstrip("/")
        self._sources = {
            prefix + resource.path(namespace): source for resource, source in sources.items()
        }

    @property
    def waiting_for(self) -> list[str]:
        """The kinds without a complete list. Until this is empty, keys may be missing."""
        return [source.resource.plural for source in self._sources.values() if not source.listed]

    @property
    def watchers(self) -> dict[Resource, asyncio.Task[Any]]:
        """The kopf task for each resource that is watched now, in kopf's own loop."""
        sources = self._sources.values()
        return {source.resource: source.watcher for source in sources if source.watcher}

    async def run(self) -> None:
        """Watch until cancelled. Raises WatchLostError when a watch ends by itself."""
        self._loop = asyncio.get_running_loop()
        try:
            await in_own_loop("kopf", self._operate, self._log_out)
        except Exception as error:
            raise WatchLostError(self._lost) from error
        raise WatchLostError(self._lost)

    async def _operate(self) -> None:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.process.ultimate_exiting_timeout = None
        settings.queueing.idle_timeout = 0.5  # of the task that each object has after an event
        settings.networking.request_timeout = 60
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = _RETRIES
        settings.watching.chunk_size = 250
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, backoff=1)(self._login)
        for source in self._sources.values():
            group, version, plural = names = _names(source.resource)
            add = kopf.on.event(group, version, plural, id=".".join(names), registry=registry)
            add(partial(self._changed, source))
            wanted = {selector(subscription.watch.labels) for subscription in source.subscriptions}
            if len(wanted) == 1 and (labels := wanted.pop()):
                settings.watching.label_selectors[partial(_is, names)] = labels
        where: dict[str, Any] = {"clusterwide": True}
        if self._namespace is not None:
            where = {"namespaces": [self._namespace]}
        self._operator = asyncio.current_task()
        await kopf.operator(registry=registry, settings=settings, standalone=True, **where)

    async def _log_out(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _changed(self, source: _Source, *, event: kopf.RawEvent, **_: Any) -> None:
        deleted = event["type"] == "DELETED"
        for subscription in source.subscriptions:
            changed = partial(subscription.queue.changed, deleted=deleted)
            self._tell(changed, subscription.watch, event["object"])

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        clock, server = asyncio.get_running_loop().time, self._config.server
        await asyncio.sleep(self._login_at + 1 - clock() if self._login_at else 0)
        self._login_at = clock()
        proof = await Credentials(self._config).proof()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=proof.tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=[("User-Agent", "capelin"), *proof.headers],
            middlewares=[self._send],
            proxy=server.proxy or proxy_for(server.address, os.environ),
            response_class=_Response,
            trace_configs=[self._metrics.trace()],
        )
        expiration = datetime.now(UTC) + _LOGIN
        return kopf.AiohttpSession(
            aiohttp_session=self._session, server=server.address, expiration=expiration
        )

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Request metadata only, and record events that kopf does not pass to its handlers."""
        request.server_hostname = self._config.server.tls_server_name
        source, query = self._sources.get(request.url.path), request.url.query
        if source is not None:
            request.headers["Accept"] = source.accept(watch="watch" in query)
            self._guard(source)
        try:
            response = await handler(request)
        except (aiohttp.ClientError, TimeoutError):
            self._answering = False
            raise
        if response.status >= 500:
            self._answering = False
        elif response.status < 300:
            if not self._answering:
                self._answering = True
                for queue in self._queues:
                    self._tell(queue.retry_soon)
            if source is not None:
                self._answered(source, watch="watch" in query, first="continue" not in query)
                feeding = _Feeding(source.feed, self._tell)
                if "watch" in query:
                    lines = _Lines(response.content, feeding)
                    response.content = cast("aiohttp.StreamReader", lines)
                else:
                    cast("_Response", response).feeding = feeding
        return response

    def _answered(self, source: _Source, *, watch: bool, first: bool) -> None:
        if watch:
            source.listed = True
            if not self.waiting_for:
                self._tell(self.listed.set)
            return
        source.lists += first
        if first:
            self._tell(source.feed.restart)
        if first and source.lists > 1:
            # Something may have been deleted in the gap, without an event.
            for subscription in source.subscriptions:
                if not isinstance(subscription.watch, For):
                    self._tell(subscription.queue.add_all)

    def _guard(self, source: _Source) -> None:
        """Detect the end of the task that watches: kopf may continue without it."""
        task = asyncio.current_task()
        if task is not None and task is not source.watcher:
            source.watcher = task
            task.add_done_callback(partial(self._ended, source))

    def _ended(self, source: _Source, task: asyncio.Task[Any]) -> None:
        if self._operator is None:
            return
        error = None if task.cancelled() else task.exception()
        why = "" if error is None else f": {explained(error)}"
        self._lost = f"the watch of {source.resource.plural} has ended{why}"
        self._operator.cancel()
        self._operator = None

    def _tell(self, call: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)


def _names(resource: Resource | kopf.Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _is(names: tuple[str, str, str], resource: kopf.Resource) -> bool:
    return _names(resource) == names
