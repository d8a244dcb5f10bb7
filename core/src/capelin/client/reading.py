"""Reading: one object, all of them, and what happens to them."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar, overload

from capelin.api import BaseObject, Resource, Unstructured
from capelin.client.connection import Connection
from capelin.client.errors import Expired, NotFound
from capelin.client.paths import Selector, path_of, selection
from capelin.client.shapes import Listing, Page, Shape, shape_of
from capelin.client.transport import Call
from capelin.client.watch import Event, follow, mirror

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)

_PAGE = 500
_FEW = 100
"""How many objects there are at once while they are read one after the other."""


class Reading(Connection):
    """What can be read.

    Whatever takes a kind takes a class made with `@kind`, and objects of that class come back,
    or a `Resource`, and plain JSON comes back.
    """

    @overload
    async def get(self, kind: type[ObjectT], name: str, namespace: str | None = ...) -> ObjectT: ...
    @overload
    async def get(self, kind: Resource, name: str, namespace: str | None = ...) -> Unstructured: ...
    async def get(
        self, kind: type[BaseObject] | Resource, name: str, namespace: str | None = None
    ) -> Any:
        """Read one object.

        Raises:
            NotFound: there is none of that name.
        """
        shape = shape_of(kind)
        path = path_of(shape.resource, namespace, name)
        reply = await self._transport.send(Call("GET", path, repeatable=True))
        return shape.one(reply.body)

    @overload
    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = ...
    ) -> ObjectT | None: ...
    @overload
    async def find(
        self, kind: Resource, name: str, namespace: str | None = ...
    ) -> Unstructured | None: ...
    async def find(
        self, kind: type[BaseObject] | Resource, name: str, namespace: str | None = None
    ) -> Any:
        """Read one object, or nothing if there is none of that name."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    @overload
    async def list(
        self,
        kind: type[ObjectT],
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
    ) -> Listing[ObjectT]: ...
    @overload
    async def list(
        self,
        kind: Resource,
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
    ) -> Listing[Unstructured]: ...
    async def list(
        self,
        kind: type[BaseObject] | Resource,
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
    ) -> Listing[Any]:
        """Read all objects of a kind, of one namespace or of all, page by page."""
        shape = shape_of(kind)
        path = path_of(shape.resource, namespace)
        parameters = selection(labels, fields)
        try:
            return await self._all(shape, path, {**parameters, "limit": str(_PAGE)})
        except Expired:
            # Between two pages the server forgot the moment of the first: all at once, then.
            return await self._all(shape, path, parameters)

    @overload
    def each(
        self,
        kind: type[ObjectT],
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
    ) -> AsyncGenerator[ObjectT]: ...
    @overload
    def each(
        self,
        kind: Resource,
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
    ) -> AsyncGenerator[Unstructured]: ...
    async def each(
        self,
        kind: type[BaseObject] | Resource,
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
    ) -> AsyncGenerator[Any]:
        """Read all objects of a kind, one after the other: of many, keep only what you need.

        A Machine takes 44 KiB of memory, a thousand of them more than the rest of a provider.

        Raises:
            Expired: you took so long that the server forgot the moment of the first: begin again.
        """
        shape: Shape[Any] = shape_of(kind)
        path = path_of(shape.resource, namespace)
        parameters = {**selection(labels, fields), "limit": str(_FEW)}
        async for page in self._pages(shape, path, parameters):
            for one in page.items:
                yield one

    async def _all(self, shape: Shape[T], path: str, parameters: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        version = ""
        async for page in self._pages(shape, path, parameters):
            items.extend(page.items)
            version = page.resource_version
        return Listing(items, version)

    async def _pages(
        self, shape: Shape[T], path: str, parameters: Mapping[str, str]
    ) -> AsyncGenerator[Page[T]]:
        asked = dict(parameters)
        while True:
            reply = await self._transport.send(Call("GET", path, asked, repeatable=True))
            page = shape.page(reply.body)
            yield page
            if not page.next:
                return
            asked = {**parameters, "continue": page.next}

    @overload
    def watch(
        self,
        kind: type[ObjectT],
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
        since: str | None = ...,
    ) -> AsyncGenerator[Event[ObjectT]]: ...
    @overload
    def watch(
        self,
        kind: Resource,
        namespace: str | None = ...,
        *,
        labels: Selector | None = ...,
        fields: Selector | None = ...,
        since: str | None = ...,
    ) -> AsyncGenerator[Event[Unstructured]]: ...
    def watch(
        self,
        kind: type[BaseObject] | Resource,
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: Selector | None = None,
        since: str | None = None,
    ) -> AsyncGenerator[Event[Any]]:
        """Follow the objects of a kind until you stop, over every broken connection.

        Without `since`, what is there comes first, as `ADDED`; when the server forgets where we
        were, everything is read again and compared, so that no change and no deletion is missed.
        With `since`, only what happens after that version comes, and nothing is kept in memory.

        Leave it with `contextlib.aclosing` where the connection must be gone right away.

        Raises:
            Expired: what happened after `since` is forgotten: list again.
            Unreachable: the server does not answer, and never did.
        """
        shape = shape_of(kind)
        path, parameters = path_of(shape.resource, namespace), selection(labels, fields)

        def following(version: str) -> AsyncGenerator[Event[Any]]:
            return follow(self._transport, shape, path, parameters, version)

        async def relist() -> Listing[Any]:
            return await self.list(kind, namespace, labels=labels, fields=fields)

        return mirror(shape, relist, following) if since is None else following(since)
