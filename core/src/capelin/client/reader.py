"""The reading half of a client: requests, discovery, objects, lists and watches."""

from collections.abc import AsyncGenerator, Mapping
from copy import copy
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

from capelin.api import Resource
from capelin.client.cache import ObjectCache
from capelin.client.codecs import (
    Codec,
    Kind,
    Listing,
    Page,
    Selector,
    codec_of,
    encode,
    path_of,
    selection,
)
from capelin.client.config import Config
from capelin.client.errors import Expired, NotFound, NotServed, ResponseTooLarge, Unreadable
from capelin.client.transport import ClientOptions, Request, Response, Transport
from capelin.client.unreadable import UnreadableLog, UnreadableObject
from capelin.client.watch import Event, OnUnreadable, follow, mirror, only_readable
from capelin.json_text import read_json

T = TypeVar("T")

_PAGE = 500
_SMALL_PAGE = 100
"""The number of objects that `iterate` keeps in memory."""
_MAX_PAGES = 10_000
_LIST_RESPONSES = 4
"""The size limit of a list in memory, in multiples of the largest response."""


class Reader:
    """Reads from one API server, as one user."""

    def __init__(
        self, config: Config, *, manager: str = "capelin", options: ClientOptions | None = None
    ) -> None:
        self.config = config
        self.manager = manager
        self._transport = Transport(config, options or ClientOptions())
        self._resources: dict[str, tuple[Resource, ...]] = {}
        self.unreadable = UnreadableLog()
        """Logs each unreadable object once."""
        self._cache: ObjectCache | None = None
        self._reads_cache = False

    @classmethod
    async def connect(
        cls, config: Config, *, manager: str = "capelin", options: ClientOptions | None = None
    ) -> Self:
        """A client of a server that answers and accepts our credentials. The caller closes it.

        Raises:
            Unreachable: The server does not answer.
            Unauthorized: The server does not accept the credentials.
        """
        client = cls(config, manager=manager, options=options)
        try:
            await client.request("GET", "/api")
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def use_cache(self, cache: ObjectCache) -> None:
        """Record reads and writes of this client in a cache, from which `cached` reads."""
        self._cache = cache

    @property
    def cached(self) -> Self:
        """This client, with reads of single objects from the cache where possible.

        Such a read is never older than an earlier write of this client, or an earlier read of the
        single object. It may be older than a change by another client that the watch has not
        delivered yet. Use it for decisions that can be corrected, and this client for others.
        """
        if self._cache is None or self._reads_cache:
            return self
        cached = copy(self)
        cached._reads_cache = True  # noqa: SLF001 - of the same class
        return cached

    async def _send(self, request: Request) -> Response:
        cache = self._cache
        if cache is None:
            return await self._transport.send(request)
        if self._reads_cache and (found := cache.read(request)) is not None:
            return Response(200, "application/json", found)
        before, body = cache.known(request), None
        try:
            response = await self._transport.send(request)
            body = response.body
            return response
        finally:
            cache.learn(request, body, before, keep=self._reads_cache)

    # Discovery and raw requests

    async def resources(self, group_version: str) -> tuple[Resource, ...]:
        """The kinds of `v1` or of `group/version` that the API server serves now.

        Raises:
            NotServed: The server does not serve that group and version.
        """
        group, _, version = group_version.rpartition("/")
        path = f"/apis/{quote(group)}/{quote(version)}" if group else f"/api/{quote(version)}"
        response = await self.request("GET", path)
        return tuple(
            Resource(group, version, entry["kind"], entry["name"], entry["namespaced"])
            for entry in cast("dict[str, Any]", response).get("resources") or ()
            if "/" not in entry["name"]
        )

    async def resource_of(self, manifest: Mapping[str, Any]) -> Resource:
        """The resource of an unstructured object's kind.

        Raises:
            NotServed: The API server does not serve the kind.
        """
        group_version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        # The kind may have been installed after we filled the cache.
        for refresh in (False, True):
            if refresh or group_version not in self._resources:
                self._resources[group_version] = await self.resources(group_version)
            for resource in self._resources[group_version]:
                if resource.kind == kind:
                    return resource
        raise NotServed(404, "NotFound", f"the API server has no kind {kind} in {group_version}")

    async def request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json, */*",
        timeout: float | None = None,  # noqa: ASYNC109 - the transport's, retries included
        max_bytes: int | None = None,
    ) -> Any:
        """Send any request. Returns the JSON of the response, or its text if it is not JSON."""
        response = await self._send(
            Request(
                method,
                path,
                parameters or {},
                None if body is None else encode(body),
                content_type,
                accept=accept,
                repeatable=method in {"GET", "HEAD", "PUT"},
                timeout=timeout,
                max_bytes=max_bytes,
            )
        )
        if response.content_type == "application/json":
            try:
                return read_json(response.body)
            except ValueError as error:
                raise Unreadable(
                    f"the response to {method} {path} cannot be read: {error}"
                ) from None
        return response.body.decode()

    # Reading

    async def get(self, kind: Kind[T], name: str, namespace: str | None = None) -> T:
        """Read an object.

        Raises:
            NotFound: The object does not exist.
        """
        codec = codec_of(kind)
        path = path_of(codec.resource, namespace, name)
        response = await self._send(Request("GET", path, repeatable=True))
        return codec.decode(response.body)

    async def find(self, kind: Kind[T], name: str, namespace: str | None = None) -> T | None:
        """Read an object, or return `None` if it does not exist."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def list(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
    ) -> Listing[T]:
        """Read all objects of a kind, in one namespace or in all, page by page.

        It logs an unreadable object once, and adds it to the list's `unreadable`.
        """
        codec = codec_of(kind)
        path = path_of(codec.resource, namespace)
        parameters = selection(labels, fields)
        try:
            return await self._list(codec, path, {**parameters, "limit": str(_PAGE)})
        except Expired:
            # The continue token expired between two pages: read all objects in one request.
            return await self._list(codec, path, parameters)

    async def iterate(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
    ) -> AsyncGenerator[T]:
        """Read all objects of a kind, a few at a time, if a list would need much memory.

        A Machine takes 44 KiB, so a thousand of them take more than the rest of a provider.
        This logs an unreadable object once, and skips it.

        Raises:
            Expired: The continue token expired during the loop. Start again.
        """
        codec = codec_of(kind)
        path = path_of(codec.resource, namespace)
        parameters = {**selection(labels, fields), "limit": str(_SMALL_PAGE)}
        async for page in self._pages(codec, path, parameters):
            for item in page.items:
                yield item

    async def _list(self, codec: Codec[T], path: str, parameters: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        unreadable: list[UnreadableObject] = []
        version = ""
        total = _LIST_RESPONSES * self._transport.max_bytes
        async for page in self._pages(codec, path, parameters, total=total):
            items.extend(page.items)
            unreadable.extend(page.unreadable)
            version = page.resource_version
        return Listing(items, version, tuple(unreadable))

    async def _pages(
        self,
        codec: Codec[T],
        path: str,
        parameters: Mapping[str, str],
        *,
        total: int | None = None,
    ) -> AsyncGenerator[Page[T]]:
        """The pages of a list. If objects are so large that a page is too large, smaller pages."""
        query, size = dict(parameters), 0
        for _ in range(_MAX_PAGES):
            try:
                response = await self._send(Request("GET", path, query, repeatable=True))
            except ResponseTooLarge:
                limit = int(query.get("limit", "1")) // 8
                if not limit:
                    raise
                parameters = {**parameters, "limit": str(limit)}
                query = {**query, "limit": str(limit)}
                continue
            size += len(response.body)
            if total is not None and size > total:
                raise self._transport.too_large("a list", total)
            page = codec.decode_page(response.body)
            for unreadable in page.unreadable:
                self.unreadable.report(unreadable)
            yield page
            if not page.next:
                return
            query = {**parameters, "continue": page.next}
        raise ResponseTooLarge(f"a list of {codec.resource.plural} has no end")

    def watch(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
        since: str | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> AsyncGenerator[Event[T]]:
        """Follow the objects of a kind across broken connections, until the caller stops.

        Without `since`, existing objects come first, as `ADDED`. If the server no longer has our
        version, the watch lists everything again and compares, so it skips no change and no
        deletion. With `since`, only later events come, and it keeps nothing in memory.

        An unreadable object does not end the watch: it is logged once, its events go to
        `on_unreadable`, and the other objects' events continue. If it was readable before, its
        last readable state remains the known one until it is deleted.

        Use `contextlib.aclosing` to close the connection at once.

        Raises:
            Expired: The events after `since` are no longer available: list again.
            Unreachable: The server does not answer, and never did.
        """
        codec = codec_of(kind)
        path, parameters = path_of(codec.resource, namespace), selection(labels, fields)

        def follow_from(version: str) -> AsyncGenerator[Event[T | UnreadableObject]]:
            return follow(self._transport, codec, path, parameters, version)

        async def relist() -> Listing[T]:
            return await self.list(kind, namespace, labels=labels, fields=fields)

        def report(event: Event[UnreadableObject]) -> None:
            self.unreadable.report(event.object)
            if on_unreadable is not None:
                on_unreadable(event)

        events = mirror(codec, relist, follow_from) if since is None else follow_from(since)
        return only_readable(events, report)
