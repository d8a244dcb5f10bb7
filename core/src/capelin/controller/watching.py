"""Uses kopf as a watcher: it reports changed objects, and does nothing else.

kopf lists, watches, resumes and relists as an operator in a thread with its own event loop. Its
events go to informers in the manager's loop. Decision 0035 explains how and why we use kopf.

kopf ends a watch for ever after most errors. So it does not receive them: each failed request is a
lost connection for kopf, which tries again, and each unusable response is an expired version, after
which kopf lists again.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import kopf
from yarl import URL

from capelin.api import Resource
from capelin.client import (
    Config,
    ObjectCache,
    describe_connection_error,
    version_of,
)
from capelin.controller.diagnostics import Metrics
from capelin.controller.informer import Attempts, Informer
from capelin.controller.kopf_thread import KopfThread, quiet_settings
from capelin.controller.reconciler import UNREADABLE, Subscription
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

# Of a page of a list, with the longest pause before it.
_PAGE_SECONDS = 90.0
# A shorter watch without an event counts as a failure.
_SHORT_SECONDS = 1.0
_PROBE_SECONDS = 10.0
# kopf has begun all lists in a second or two.
_START_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class _Source:
    """One stream of events, for all subscriptions to its resource."""

    informer: Informer
    call: Callable[..., None]
    """Calls a function in the manager's event loop."""
    attempts: Attempts = field(default_factory=Attempts)
    is_watched: bool = False
    """Whether a watch has followed a complete list."""

    def accept(self, *, watch: bool) -> str:
        """The content type to request: only metadata, unless a mapper needs whole objects."""
        if self.informer.is_inside:
            return "application/json"
        kind = "PartialObjectMetadata" if watch else "PartialObjectMetadataList"
        return f"application/json;as={kind};g=meta.k8s.io;v=v1"

    async def pause(self, session: aiohttp.ClientSession) -> None:
        await self.attempts.pause()
        if session.closed:  # Another watch has logged in again during the pause.
            raise aiohttp.ClientPayloadError("the session is closed")

    def failed(self, problem: str | Exception) -> aiohttp.ClientPayloadError:
        """Note a failure. Returns the error after which kopf tries again."""
        text = problem if isinstance(problem, str) else _described(problem)
        if self.attempts.failed(text):
            log.warning("The watch of %s starts again: %s", self.informer.resource.plural, text)
        return aiohttp.ClientPayloadError(text)


class _Response(aiohttp.ClientResponse):
    """Passes readable objects to kopf, and only the metadata of the others."""

    source: _Source | None = None
    is_first = True

    async def json(self, **keywords: Any) -> Any:
        if self.source is None:
            return await super().json(**keywords)
        try:
            listed = readable_list(await self.read())
            # API servers send an empty list of metadata as null, on which kopf fails.
            value: dict[str, Any] = {**listed, "items": listed.get("items") or []}
            page = self.source.informer.listed(value["items"])
            is_last = not value["metadata"].get("continue")
        except _UNUSABLE as error:
            raise self.source.failed(error) from None
        add = partial(self.source.informer.add_page, is_first=self.is_first, is_last=is_last)
        self.source.call(add, page)
        return value


_UNUSABLE = (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""The errors of reading a response that broke off, or that Kubernetes would not send."""
_LIST_AGAIN = b'{"type":"ERROR","object":{"code":410}}\n'


def _described(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientError):
        return describe_connection_error(error)
    if isinstance(error, OSError):
        return f"the API server does not answer ({error or type(error).__name__})"
    return f"the API server sent an unusable response ({type(error).__name__}: {error})"


class _Lines:
    """The stream of a watch, with lines that kopf can read."""

    def __init__(self, stream: aiohttp.StreamReader, source: _Source) -> None:
        self._stream, self._source = stream, source

    async def iter_chunked(self, size: int) -> AsyncGenerator[bytes]:
        source, clock = self._source, asyncio.get_running_loop().time
        feed = source.informer.feed
        began, received = clock(), False
        source.call(feed.open, self)
        try:
            async for line in _complete(self._stream.iter_chunked(size)):
                bounded = bounded_line(line)
                self._deliver(read_json(bounded))
                received = True
                source.attempts.worked()
                yield bounded + b"\n"
            if not received and clock() - began < _SHORT_SECONDS:
                source.failed("the API server ends the watch at once")
        except aiohttp.ClientError as error:
            raise source.failed(error) from None
        except _UNUSABLE as error:
            source.failed(error)
            yield _LIST_AGAIN
        finally:
            source.call(feed.close, self)

    def _deliver(self, event: dict[str, Any]) -> None:
        """Pass on the version of an object before kopf reads the event.

        kopf has a task for each object, so its events of objects with the same name are not in
        order.
        """
        feed = self._source.informer.feed
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._source.call(feed.deliver, [feed.delivered(event["object"])])
            case "DELETED":
                self._source.call(feed.remove, feed.delivered(event["object"]))
            case "BOOKMARK":
                pass
            case _:
                raise ValueError(f"{event['type']} {event['object'].get('code')}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ListAgain:
    """The stream of a watch that cannot continue."""

    async def iter_chunked(self, _: int) -> AsyncGenerator[bytes]:
        yield _LIST_AGAIN


def _list_again(response: _Response) -> _Response:
    """A watch after which kopf lists again."""
    response.close()
    response.status = 200
    response.content = cast("aiohttp.StreamReader", _ListAgain())
    return response


async def _complete(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Complete lines. Drops the incomplete last line of a broken connection."""
    pending: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        for part in rest:
            if line := b"".join(pending):
                yield line
            pending = [part]


def bounded_line(line: bytes) -> bytes:
    """A line of a watch. An object with too many nested levels has only its metadata."""
    if line.count(b"{") + line.count(b"[") <= MAX_LEVELS or levels(line) <= MAX_LEVELS:
        return line
    parts = dict(members(line))
    event = {"type": read_json(parts["type"]), "object": _metadata_only(parts["object"])}
    return json.dumps(event).encode()


def readable_list(data: bytes) -> dict[str, Any]:
    """A list. Objects with too many nested levels have only their metadata."""
    with suppress(TooDeepError):
        return read_json(data)
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
        self.missing = ""
        """Why kinds cannot be watched yet."""
        self._config = config
        self._queues = {
            id(subscription.queue): subscription.queue for subscription in subscriptions
        }.values()
        self._answering = True
        cache = ObjectCache() if cache is None else cache
        informers: dict[Resource, Informer] = {}
        for subscription in subscriptions:
            resource = subscription.watch.kind.resource
            if resource not in informers:
                informers[resource] = Informer(resource, cache.follow(resource))
            informers[resource].subscriptions.append(subscription)
        self.resources = list(informers)
        self.kopf = KopfThread(
            config, metrics, informers, namespace=namespace, send=self._send, response=_Response
        )
        prefix = urlsplit(config.server.address).path.rstrip("/")
        self._sources = {
            prefix + resource.path(namespace): _Source(informer, self._tell)
            for resource, informer in informers.items()
        }

    @property
    def waiting_for(self) -> list[str]:
        """The kinds without a complete list, and why. Until this is empty, keys may be missing."""
        return [
            source.informer.resource.plural + (problem and f" ({problem})")
            for source in self._sources.values()
            if not source.is_watched
            for problem in [source.attempts.problem]
        ]

    async def run(self) -> None:
        """Watch until cancelled. After a WatchLostError, run it again: nothing will be missed."""
        self._loop = asyncio.get_running_loop()
        settings = quiet_settings()
        await self.kopf.run(self._declare(settings), settings, setup=self._begin)

    def _declare(self, settings: kopf.OperatorSettings) -> kopf.OperatorRegistry:
        settings.posting.enabled = False
        settings.queueing.idle_timeout = 0.5  # of the task that each object has after an event
        settings.networking.request_timeout = _PAGE_SECONDS
        settings.networking.error_backoffs = ()
        settings.watching.chunk_size = 250
        registry = kopf.OperatorRegistry()
        for source in self._sources.values():
            group, version, plural = names = _names(source.informer.resource)
            add = kopf.on.event(group, version, plural, id=".".join(names), registry=registry)
            add(partial(self._changed, source.informer))
            if labels := source.informer.selector:
                settings.watching.label_selectors[partial(_is, names)] = labels
        return registry

    def _begin(self) -> None:
        asyncio.get_running_loop().call_later(_START_SECONDS, self._check_start)

    async def _changed(self, informer: Informer, *, event: kopf.RawEvent, **_: Any) -> None:
        changed = partial(informer.changed, deleted=event["type"] == "DELETED")
        self._tell(changed, event["object"])

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Request metadata only, pause after failures, and keep failures of a watch from kopf."""
        source, query = self._sources.get(request.url.path), request.url.query
        if source is None:
            return await handler(request)
        is_watch = "watch" in query
        request.headers["Accept"] = source.accept(watch=is_watch)
        await source.pause(request.session)
        try:
            response = cast("_Response", await handler(request))
        except (aiohttp.ClientError, OSError) as error:
            self._answering = False
            raise source.failed(error) from None
        if response.status >= 300:
            self._answering &= response.status < 500
            return self._rejected(source, response, is_watch=is_watch)
        if not self._answering:
            self._answering = True
            for queue in self._queues:
                self._tell(queue.retry_soon)
        if not is_watch:
            response.source, response.is_first = source, "continue" not in query
            return response
        try:
            # Also after a list: etcd may have been restored in between.
            is_older = await self._is_older(request.url, source)
        except BaseException:
            response.close()
            raise
        if is_older:
            return _list_again(response)
        source.is_watched = True
        if not self.waiting_for:
            self._tell(self.listed.set)
        response.content = cast("aiohttp.StreamReader", _Lines(response.content, source))
        return response

    def _rejected(self, source: _Source, response: _Response, *, is_watch: bool) -> _Response:
        """The response that kopf gets instead of an error, if any: it tries or lists again."""
        status = response.status
        failure = source.failed(f"the API server answers {status} {response.reason}")
        if status == 401:
            return response  # kopf logs in again
        if is_watch and status < 500 and status != 429:
            return _list_again(response)
        response.close()
        raise failure

    async def _is_older(self, url: URL, source: _Source) -> bool:
        """Whether the API server's state is older than that of the watch, after a restore of etcd.

        It sends no event then until its versions reach that one.
        """
        session = cast("aiohttp.ClientSession", self.kopf.session)
        accept = {"Accept": source.accept(watch=False)}
        name = self._config.server.tls_server_name
        try:
            async with session.get(
                url.with_query(limit="1"),
                headers=accept,
                middlewares=(),
                server_hostname=name,
                timeout=aiohttp.ClientTimeout(_PROBE_SECONDS),
            ) as response:
                version = version_of(readable_list(await response.read())["metadata"])
        except _UNUSABLE as error:
            raise source.failed(error) from None
        return 0 < version < int(url.query.get("resourceVersion", "0"))

    def _check_start(self) -> None:
        """Detect a kind that kopf does not watch, because it was removed when kopf started."""
        for resource in self.resources:
            if resource not in self.kopf.watchers:
                self.kopf.end(f"the watch of {resource.plural} has not started")

    def _tell(self, call: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)


def _names(resource: Resource | kopf.Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _is(names: tuple[str, str, str], resource: kopf.Resource) -> bool:
    return _names(resource) == names
