"""Writing: creating, applying, patching and deleting objects."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast, overload

from capelin.api import BaseObject, Resource, Unstructured
from capelin.client import applying
from capelin.client.connection import Connection, encode
from capelin.client.errors import Conflict, Invalid, NotFound
from capelin.client.paths import path_of
from capelin.client.shapes import Shape, shape_of
from capelin.client.transport import Call

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)

Propagation = Literal["Background", "Foreground", "Orphan"]

_PATCHES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}


class Writing(Connection):
    """What can be written, by objects of a class or by plain JSON; the same comes back."""

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
                path_of(shape.resource, _namespace(manifest)),
                _writing(self.manager, dry_run=dry_run),
                encode(manifest),
            )
        )
        return shape.one(reply.body)

    @overload
    async def apply(
        self,
        obj: ObjectT,
        *,
        live: ObjectT | None = ...,
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
        live: Unstructured | None = ...,
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
        live: BaseObject | Unstructured | None = None,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
        dry_run: bool = False,
        locked: bool = False,
    ) -> Any:
        """Make everything that `obj` says so, except for its status, by server-side apply.

        Args:
            obj: what to have; if it has a uid, only that very object is changed.
            live: what is there. It comes back, and nothing is sent, if nothing would change.
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
        owner = manager or self.manager
        if live is not None and not applying.needs_apply(_manifest(live), wanted, owner):
            return live
        parameters = _writing(owner, dry_run=dry_run, force=force)
        return await self._apply(shape, wanted, None, parameters, repeatable=not locked)

    @overload
    async def apply_status(
        self,
        obj: ObjectT,
        *,
        live: ObjectT | None = ...,
        manager: str | None = ...,
        force: bool = ...,
        locked: bool = ...,
    ) -> ObjectT: ...
    @overload
    async def apply_status(
        self,
        obj: Unstructured,
        *,
        live: Unstructured | None = ...,
        resource: Resource | None = ...,
        manager: str | None = ...,
        force: bool = ...,
        locked: bool = ...,
    ) -> Unstructured: ...
    async def apply_status(
        self,
        obj: BaseObject | Unstructured,
        *,
        live: BaseObject | Unstructured | None = None,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
        locked: bool = False,
    ) -> Any:
        """Make the status what it is in `obj`, and leave everything else alone. As `apply`."""
        shape, manifest = await self._taken(obj, resource)
        wanted = applying.status_configuration(manifest, locked=locked)
        owner = manager or self.manager
        if live is not None and not applying.needs_apply(
            _manifest(live), wanted, owner, subresource="status"
        ):
            return live
        parameters = _writing(owner, dry_run=False, force=force)
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
        path = path_of(shape.resource, _namespace(wanted), _name(wanted), subresource)
        call = Call(
            "PATCH",
            path,
            parameters,
            encode(wanted),
            "application/apply-patch+yaml",
            repeatable=repeatable,
        )
        try:
            reply = await self._transport.send(call)
        except Invalid as error:
            if not any(cause.get("field") == "metadata.uid" for cause in error.causes):
                raise
            # The same in the server's own words when there is no object of that name.
            raise Conflict(409, "Conflict", error.message, error.details) from None
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
                path_of(shape.resource, namespace, name, subresource),
                _writing(self.manager, dry_run=dry_run),
                encode(patch),
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
        path = path_of(shape_of(kind).resource, namespace, name)
        body = encode({key: value for key, value in asked.items() if value is not None})
        try:
            await self._transport.send(Call("DELETE", path, body=body, repeatable=True))
        except NotFound:
            return False
        return True

    async def _taken(
        self, obj: BaseObject | Unstructured, resource: Resource | None
    ) -> tuple[Shape[Any], Unstructured]:
        if isinstance(obj, BaseObject):
            return shape_of(type(obj)), obj.dump()
        return shape_of(resource or await self.resource_of(obj)), obj


def _writing(manager: str, *, dry_run: bool, force: bool = False) -> dict[str, str]:
    return {
        "fieldManager": manager,
        "fieldValidation": "Strict",
        **({"dryRun": "All"} if dry_run else {}),
        **({"force": "true"} if force else {}),
    }


def _manifest(obj: BaseObject | Unstructured) -> Unstructured:
    return obj.dump() if isinstance(obj, BaseObject) else obj


def _namespace(manifest: Mapping[str, Any]) -> str | None:
    return cast("dict[str, Any]", manifest.get("metadata") or {}).get("namespace")


def _name(manifest: Mapping[str, Any]) -> str:
    return cast("dict[str, Any]", manifest.get("metadata") or {}).get("name") or ""
