"""The client: what can be asked of an API server, as typed verbs."""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload
from urllib.parse import quote

from capelin.api import BaseObject, Resource, Unstructured
from capelin.client import applying
from capelin.client.config import Config
from capelin.client.errors import Expired, NotFound
from capelin.client.shapes import Listing, Shape, shape_of
from capelin.client.transport import Call, Options, Transport
from capelin.client.watch import Event, follow, mirror

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)

Selector = str | Mapping[str, str]
"""Labels or fields to choose by: `{"app": "web"}`, or an expression as kubectl takes it."""

Propagation = Literal["Background", "Foreground", "Orphan"]

_PAGE = 500
_PATCHES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}


@dataclass(frozen=True, slots=True)
class Token:
    """A service account's token and its end."""

    value: str = field(repr=False)
    expires: datetime


class Client:
    """Speaks with one API server as one user.

    Whatever takes a kind takes a class made with `@kind`, and objects of that class come back,
    or a `Resource`, and plain JSON comes back.

    Args:
        config: which server, and as whom.
        manager: the name under which `apply` owns fields.
        options: how hard and how patiently to ask.
    """

    def __init__(
        self, config: Config, *, manager: str = "capelin", options: Options | None = None
    ) -> None:
        self.config = config
        self.manager = manager
        self._transport = Transport(config, options or Options())
        self._discovered: dict[str, tuple[Resource, ...]] = {}

    @classmethod
    async def connect(
        cls, config: Config, *, manager: str = "capelin", options: Options | None = None
    ) -> Self:
        """A client of a server that answers and knows us; the caller closes it.

        Raises:
            Unreachable: the server does not answer.
            Unauthorized: it does not know who we are.
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Watches that still run end."""
        await self._transport.close()

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
        path = _path(shape.resource, namespace, name)
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
        path = _path(shape.resource, namespace)
        parameters = selection(labels, fields)
        try:
            return await self._pages(shape, path, {**parameters, "limit": str(_PAGE)})
        except Expired:
            # Between two pages the server forgot the moment of the first: all at once, then.
            return await self._pages(shape, path, parameters)

    async def _pages(self, shape: Shape[T], path: str, parameters: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        asked = dict(parameters)
        while True:
            reply = await self._transport.send(Call("GET", path, asked, repeatable=True))
            page = shape.page(reply.body)
            items.extend(page.items)
            if not page.next:
                return Listing(items, page.resource_version)
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
        path, parameters = _path(shape.resource, namespace), selection(labels, fields)

        def following(version: str) -> AsyncGenerator[Event[Any]]:
            return follow(self._transport, shape, path, parameters, version)

        async def relist() -> Listing[Any]:
            return await self.list(kind, namespace, labels=labels, fields=fields)

        return mirror(shape, relist, following) if since is None else following(since)

    @overload
    async def create(self, obj: ObjectT, *, dry_run: bool = ...) -> ObjectT: ...
    @overload
    async def create(
        self, obj: Unstructured, *, resource: Resource | None = ..., dry_run: bool = ...
    ) -> Unstructured: ...
    async def create(
        self,
        obj: BaseObject | Unstructured,
        *,
        resource: Resource | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Create an object.

        Raises:
            AlreadyExists: there is one of that name.
            Invalid: the API server does not take it.
        """
        shape, manifest = await self._taken(obj, resource)
        reply = await self._transport.send(
            Call(
                "POST",
                _path(shape.resource, _namespace(manifest)),
                _writing(self.manager, dry_run=dry_run),
                _json(manifest),
            )
        )
        return shape.one(reply.body)

    @overload
    async def apply(
        self,
        obj: ObjectT,
        *,
        manager: str | None = ...,
        force: bool = ...,
        dry_run: bool = ...,
        locked: bool = ...,
    ) -> ObjectT: ...
    @overload
    async def apply(
        self,
        obj: Unstructured,
        *,
        resource: Resource | None = ...,
        manager: str | None = ...,
        force: bool = ...,
        dry_run: bool = ...,
        locked: bool = ...,
    ) -> Unstructured: ...
    async def apply(
        self,
        obj: BaseObject | Unstructured,
        *,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
        dry_run: bool = False,
        locked: bool = False,
    ) -> Any:
        """Make everything that `obj` says so, except for its status, by server-side apply.

        Args:
            obj: what to have; if it has a uid, only that very object is changed.
            resource: where an unstructured object's kind lives; found by asking if not given.
            manager: who owns the fields from now on, if not the client's own manager.
            force: take fields that others own.
            dry_run: only ask whether it would be taken.
            locked: refuse if somebody wrote since `obj` was read.

        Raises:
            Conflict: others own a field and `force` is off, or uid or version do not match.
            Invalid: the API server does not take it.
        """
        shape, manifest = await self._taken(obj, resource)
        wanted = applying.configuration(manifest, locked=locked)
        parameters = _writing(manager or self.manager, dry_run=dry_run, force=force)
        return await self._apply(shape, wanted, None, parameters, repeatable=not locked)

    @overload
    async def apply_status(
        self,
        obj: ObjectT,
        *,
        manager: str | None = ...,
        force: bool = ...,
        locked: bool = ...,
    ) -> ObjectT: ...
    @overload
    async def apply_status(
        self,
        obj: Unstructured,
        *,
        resource: Resource | None = ...,
        manager: str | None = ...,
        force: bool = ...,
        locked: bool = ...,
    ) -> Unstructured: ...
    async def apply_status(
        self,
        obj: BaseObject | Unstructured,
        *,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
        locked: bool = False,
    ) -> Any:
        """Make the status what it is in `obj`, and leave everything else alone. As `apply`."""
        shape, manifest = await self._taken(obj, resource)
        wanted = applying.status_configuration(manifest, locked=locked)
        parameters = _writing(manager or self.manager, dry_run=False, force=force)
        return await self._apply(shape, wanted, "status", parameters, repeatable=not locked)

    async def _apply(
        self,
        shape: Shape[T],
        wanted: Unstructured,
        subresource: str | None,
        parameters: Mapping[str, str],
        *,
        repeatable: bool,
    ) -> T:
        path = _path(shape.resource, _namespace(wanted), _name(wanted), subresource)
        reply = await self._transport.send(
            Call(
                "PATCH",
                path,
                parameters,
                _json(wanted),
                "application/apply-patch+yaml",
                repeatable=repeatable,
            )
        )
        return shape.one(reply.body)

    @overload
    async def patch(
        self,
        kind: type[ObjectT],
        name: str,
        namespace: str | None,
        patch: Any,
        *,
        type: Literal["merge", "json"] = ...,
        subresource: str | None = ...,
        dry_run: bool = ...,
    ) -> ObjectT: ...
    @overload
    async def patch(
        self,
        kind: Resource,
        name: str,
        namespace: str | None,
        patch: Any,
        *,
        type: Literal["merge", "json"] = ...,
        subresource: str | None = ...,
        dry_run: bool = ...,
    ) -> Unstructured: ...
    async def patch(
        self,
        kind: type[BaseObject] | Resource,
        name: str,
        namespace: str | None,
        patch: Any,
        *,
        type: Literal["merge", "json"] = "merge",  # noqa: A002 - as kubectl patch --type
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Change an object by a merge patch (a mapping) or a JSON patch (a list of operations)."""
        shape = shape_of(kind)
        reply = await self._transport.send(
            Call(
                "PATCH",
                _path(shape.resource, namespace, name, subresource),
                _writing(self.manager, dry_run=dry_run),
                _json(patch),
                _PATCHES[type],
            )
        )
        return shape.one(reply.body)

    async def delete(
        self,
        kind: type[BaseObject] | Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Ask for an object to be deleted; `False` if there is none (any more).

        Args:
            kind: what to delete.
            name: which one.
            namespace: where.
            uid: delete only that very object.
            resource_version: delete only if nobody wrote since.
            propagation: what becomes of the objects that it owns.
            grace_seconds: how long it may take to stop.

        Raises:
            Conflict: uid or resource_version do not match.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        asked = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value} or None,
            "propagationPolicy": propagation,
            "gracePeriodSeconds": grace_seconds,
        }
        path = _path(shape_of(kind).resource, namespace, name)
        body = _json({key: value for key, value in asked.items() if value is not None})
        try:
            await self._transport.send(Call("DELETE", path, body=body, repeatable=True))
        except NotFound:
            return False
        return True

    async def resources(self, group_version: str) -> tuple[Resource, ...]:
        """The kinds of `v1` or of `group/version` that the API server has now.

        Raises:
            NotFound: it has none of that group and version.
        """
        group, _, version = group_version.rpartition("/")
        path = f"/apis/{quote(group)}/{quote(version)}" if group else f"/api/{quote(version)}"
        said = await self.request("GET", path)
        return tuple(
            Resource(group, version, one["kind"], one["name"], one["namespaced"])
            for one in cast("dict[str, Any]", said).get("resources") or ()
            if "/" not in one["name"]
        )

    async def resource_of(self, manifest: Mapping[str, Any]) -> Resource:
        """Where the kind of an unstructured object lives.

        Raises:
            NotFound: the API server has no such kind.
        """
        group_version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        # A kind that is not among those known may have come since.
        for again in (False, True):
            if again or group_version not in self._discovered:
                self._discovered[group_version] = await self.resources(group_version)
            for resource in self._discovered[group_version]:
                if resource.kind == kind:
                    return resource
        raise NotFound(404, "NotFound", f"the API server has no kind {kind} in {group_version}")

    async def request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,  # noqa: ASYNC109 - the transport's, retries included
    ) -> Any:
        """Ask anything: the answer's JSON, or its text where it is not JSON."""
        reply = await self._transport.send(
            Call(
                method,
                path,
                parameters or {},
                None if body is None else _json(body),
                content_type,
                accept="application/json, */*",
                repeatable=method in {"GET", "HEAD", "PUT"},
                timeout=timeout,
            )
        )
        if reply.content_type == "application/json":
            return json.loads(reply.body)
        return reply.body.decode()

    async def _taken(
        self, obj: BaseObject | Unstructured, resource: Resource | None
    ) -> tuple[Shape[Any], Unstructured]:
        if isinstance(obj, BaseObject):
            return shape_of(type(obj)), obj.dump()
        return shape_of(resource or await self.resource_of(obj)), obj


def selection(labels: Selector | None, fields: Selector | None) -> dict[str, str]:
    """The query parameters that choose objects."""
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {
        key: value
        if isinstance(value, str)
        else ",".join(f"{name}={wanted}" for name, wanted in value.items())
        for key, value in chosen.items()
        if value
    }


def _writing(manager: str, *, dry_run: bool, force: bool = False) -> dict[str, str]:
    return {
        "fieldManager": manager,
        "fieldValidation": "Strict",
        **({"dryRun": "All"} if dry_run else {}),
        **({"force": "true"} if force else {}),
    }


def _path(
    resource: Resource,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    # An empty name would make a request for one object one for all of them.
    if name == "" or namespace == "":
        raise ValueError(f"a {resource.kind} needs a name and a namespace that are not empty")
    if resource.namespaced and name is not None and namespace is None:
        raise ValueError(f'{resource.kind} "{name}" needs a namespace')
    if name in {".", ".."} or namespace in {".", ".."}:
        raise ValueError(f'"{name}" in "{namespace}" cannot be the name of a {resource.kind}')
    return resource.path(
        quote(namespace, safe=":") if namespace is not None else None,
        quote(name, safe=":") if name is not None else None,
        subresource,
    )


def _namespace(manifest: Mapping[str, Any]) -> str | None:
    return cast("dict[str, Any]", manifest.get("metadata") or {}).get("namespace")


def _name(manifest: Mapping[str, Any]) -> str:
    return cast("dict[str, Any]", manifest.get("metadata") or {}).get("name") or ""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
