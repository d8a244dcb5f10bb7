"""A client of one API server: read, watch, apply, patch and delete objects."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast
from urllib.parse import quote

from capelin.api import BaseObject, Resource, Unstructured
from capelin.client import apply
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
from capelin.client.errors import (
    Conflict,
    Expired,
    Invalid,
    NotFound,
    NotServed,
    ResponseTooLarge,
    Unreadable,
)
from capelin.client.transport import ClientOptions, Request, Transport
from capelin.client.unreadable import UnreadableLog, UnreadableObject
from capelin.client.watch import Event, OnUnreadable, follow, mirror, only_readable
from capelin.json_text import read_json

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)
ManifestT = TypeVar("ManifestT", bound=BaseObject | Unstructured)
"""An object of a class, or plain JSON; what is written comes back as the same."""

Propagation = Literal["Background", "Foreground", "Orphan"]

_PAGE = 500
_SMALL_PAGE = 100
"""How many objects `iterate` keeps in memory."""
_MAX_PAGES = 10_000
_LIST_RESPONSES = 4
"""A list in memory may have as much as so many of the largest responses."""
_PATCH_TYPES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}
_PODS = Resource("", "v1", "Pod", "pods")
_SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")


@dataclass(frozen=True, slots=True)
class Token:
    """A service account token and when it expires."""

    value: str = field(repr=False)
    expires: datetime


class Client:
    """A client of one API server, as one user.

    A kind is a class made with `@kind`, for which objects of that class are returned, or a
    `Resource`, for which plain JSON is returned. `docs/writing.md` says which of the ways to
    write to use when.

    Args:
        config: which server, and as whom.
        manager: the field manager of `apply`.
        options: rate limits and timeouts.
    """

    def __init__(
        self, config: Config, *, manager: str = "capelin", options: ClientOptions | None = None
    ) -> None:
        self.config = config
        self.manager = manager
        self._transport = Transport(config, options or ClientOptions())
        self._resources: dict[str, tuple[Resource, ...]] = {}
        self.unreadable = UnreadableLog()
        """Logs each object that cannot be read once."""

    @classmethod
    async def connect(
        cls, config: Config, *, manager: str = "capelin", options: ClientOptions | None = None
    ) -> Self:
        """A client of a server that answers and accepts our credentials; the caller closes it.

        Raises:
            Unreachable: the server does not answer.
            Unauthorized: it does not accept the credentials.
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
        """Close all connections. Running watches end."""
        await self._transport.close()

    # Discovery and raw requests

    async def resources(self, group_version: str) -> tuple[Resource, ...]:
        """The kinds of `v1` or of `group/version` that the API server serves now.

        Raises:
            NotServed: it does not serve that group and version.
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
            NotServed: the API server does not serve the kind.
        """
        group_version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        # A kind that is not in the cache may have been installed since.
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
        timeout: float | None = None,  # noqa: ASYNC109 - the transport's, retries included
        max_bytes: int | None = None,
    ) -> Any:
        """Send any request; return the JSON of the response, or its text if it is not JSON."""
        response = await self._transport.send(
            Request(
                method,
                path,
                parameters or {},
                None if body is None else encode(body),
                content_type,
                accept="application/json, */*",
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
            NotFound: there is no object of that name.
        """
        codec = codec_of(kind)
        path = path_of(codec.resource, namespace, name)
        response = await self._transport.send(Request("GET", path, repeatable=True))
        return codec.decode(response.body)

    async def find(self, kind: Kind[T], name: str, namespace: str | None = None) -> T | None:
        """Read an object; `None` if there is none of that name."""
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

        An object that cannot be read is logged once, and is among the list's `unreadable`.
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
        """Read all objects of a kind, a few at a time, where a list would need much memory.

        A Machine takes 44 KiB, so a thousand of them take more than the rest of a provider.
        An object that cannot be read is logged once and skipped.

        Raises:
            Expired: the loop took so long that the continue token expired; start again.
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
        """The pages of a list: smaller ones where objects are so large that a page is too large."""
        query, size = dict(parameters), 0
        for _ in range(_MAX_PAGES):
            try:
                response = await self._transport.send(Request("GET", path, query, repeatable=True))
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

        Without `since`, existing objects come first, as `ADDED`. If the server has forgotten the
        version where we were, everything is listed again and compared, so that no change and no
        deletion is missed. With `since`, only later events come, and nothing is kept in memory.

        An object that cannot be read does not end the watch: it is logged once, its events go to
        `on_unreadable`, and the other objects' events continue. After it was read once, its last
        readable state remains the known one until it is deleted.

        Use `contextlib.aclosing` where the connection must be closed at once.

        Raises:
            Expired: the events after `since` are no longer available: list again.
            Unreachable: the server does not answer, and never did.
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

    # Writing

    async def create(
        self, obj: ManifestT, *, resource: Resource | None = None, dry_run: bool = False
    ) -> ManifestT:
        """Create an object.

        Args:
            obj: the object.
            resource: the resource of an unstructured object; looked up if not given.
            dry_run: only validate.

        Raises:
            AlreadyExists: an object of that name exists.
            Invalid: the API server rejects it.
        """
        codec, manifest = await self._encode(obj, resource)
        response = await self._transport.send(
            Request(
                "POST",
                path_of(codec.resource, _namespace(manifest)),
                _write_parameters(self.manager, dry_run=dry_run),
                encode(manifest),
            )
        )
        return codec.decode(response.body)

    async def apply(
        self,
        obj: ManifestT,
        *,
        live: ManifestT | None = None,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
        dry_run: bool = False,
    ) -> ManifestT:
        """Create an object or make it what `obj` says, except for its status.

        This is server-side apply: we own the fields in `obj`, others' fields stay as they are,
        and fields that we applied before and no longer apply are removed. So `obj` is built from
        nothing and has our fields only. An object that was read has everybody's fields, and is
        refused.

        Args:
            obj: the fields to own; with a uid, only that very object is changed.
            live: the object as it is; returned without a request if nothing would change.
            resource: the resource of an unstructured object; looked up if not given.
            manager: the field manager, if not the client's own.
            force: take fields that others own.
            dry_run: only validate.

        Raises:
            ValueError: `obj` was read from an API server.
            Conflict: others own a field and `force` is off, or the uid does not match.
            Invalid: the API server rejects it.
        """
        codec, manifest = await self._encode(obj, resource)
        apply.check_not_read(manifest)
        desired = apply.configuration(manifest)
        owner = manager or self.manager
        if live is not None and not apply.needs_apply(_manifest(live), desired, owner):
            return live
        parameters = _write_parameters(owner, dry_run=dry_run, force=force)
        return await self._apply(codec, desired, None, parameters)

    async def apply_fields(
        self, obj: ObjectT, fields: Mapping[str, Any], *, manager: str | None = None
    ) -> ObjectT:
        """Set single fields of an object that was read, and leave everything else to others.

        This is for the fields of a user's object that a contract has us write:

            machine = await client.apply_fields(machine, {"spec.providerID": provider_id})

        Each set of fields has its own field manager, so calls for other fields and `apply` do
        not take them away. Nothing is sent if the object already has these values from us.

        Args:
            obj: the object as it was read; it must exist.
            fields: a value for each path, with the names of fields as in YAML.
            manager: the field manager, if not the client's own and the paths.

        Raises:
            ValueError: the kind has no such field, or the value does not fit it.
            Conflict: the object is gone, or another one has its name.
            Invalid: the API server rejects it.
        """
        desired = apply.field_configuration(obj, fields)
        owner = manager or apply.field_manager(self.manager, fields)
        if not apply.needs_apply(obj.dump(), desired, owner):
            return obj
        parameters = _write_parameters(owner, dry_run=False, force=True)
        return await self._apply(codec_of(type(obj)), desired, None, parameters)

    async def apply_status(
        self,
        obj: ManifestT,
        *,
        live: ManifestT | None = None,
        resource: Resource | None = None,
        manager: str | None = None,
        force: bool = True,
    ) -> ManifestT:
        """Make the status what `obj` says, and leave everything else alone. See `apply`."""
        codec, manifest = await self._encode(obj, resource)
        desired = apply.status_configuration(manifest)
        owner = manager or self.manager
        if live is not None and not apply.needs_apply(
            _manifest(live), desired, owner, subresource="status"
        ):
            return live
        parameters = _write_parameters(owner, dry_run=False, force=force)
        return await self._apply(codec, desired, "status", parameters)

    async def _apply(
        self,
        codec: Codec[T],
        desired: Unstructured,
        subresource: str | None,
        parameters: Mapping[str, str],
    ) -> T:
        metadata = desired["metadata"]
        namespace, name = metadata.get("namespace"), metadata.get("name") or ""
        request = Request(
            "PATCH",
            path_of(codec.resource, namespace, name, subresource),
            parameters,
            encode(desired),
            "application/apply-patch+yaml",
            repeatable=True,
        )
        try:
            response = await self._transport.send(request)
        except Invalid as error:
            if not any(cause.get("field") == "metadata.uid" for cause in error.causes):
                raise
            # This is how the server says Conflict when there is no object of that name.
            raise Conflict(409, "Conflict", error.message, error.details) from None
        return codec.decode(response.body)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str | None,
        patch: Any,
        *,
        type: Literal["merge", "json"] = "merge",  # noqa: A002 - as kubectl patch --type
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Change an object by a merge patch (a mapping) or a JSON patch (a list of operations).

        With `metadata.resourceVersion` in a merge patch, the server refuses it (`Conflict`) if
        somebody else changed the object meanwhile.
        """
        codec = codec_of(kind)
        response = await self._transport.send(
            Request(
                "PATCH",
                path_of(codec.resource, namespace, name, subresource),
                _write_parameters(self.manager, dry_run=dry_run),
                encode(patch),
                _PATCH_TYPES[type],
            )
        )
        return codec.decode(response.body)

    async def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Request the deletion of an object; `False` if it does not exist.

        Args:
            kind: the kind of the object.
            name: its name.
            namespace: its namespace.
            uid: delete only this very object.
            resource_version: delete only if nobody changed it since.
            propagation: what happens to the objects that it owns.
            grace_seconds: how long it may take to stop.

        Raises:
            Conflict: uid or resource_version do not match.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value} or None,
            "propagationPolicy": propagation,
            "gracePeriodSeconds": grace_seconds,
        }
        path = path_of(codec_of(kind).resource, namespace, name)
        body = encode({key: value for key, value in options.items() if value is not None})
        try:
            await self._transport.send(Request("DELETE", path, body=body, repeatable=True))
        except NotFound:
            return False
        return True

    # Subresources

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Evict a pod if its disruption budget allows it; `False` if it does not exist.

        Raises:
            TooManyRequests: the budget does not allow it now. There is no retry here.
            Conflict: the pod has another uid.
        """
        options = {
            **({"preconditions": {"uid": uid}} if uid else {}),
            **({"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else {}),
        }
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = path_of(_PODS, namespace, name, "eviction")
        try:
            await self._transport.send(Request("POST", path, body=encode(eviction), patient=False))
        except NotFound:
            return False
        return True

    async def scale(self, kind: Kind[Any], name: str, namespace: str | None, replicas: int) -> None:
        """Set the number of replicas through the scale subresource."""
        await self._transport.send(
            Request(
                "PATCH",
                path_of(codec_of(kind).resource, namespace, name, "scale"),
                {"fieldManager": self.manager},
                encode({"spec": {"replicas": replicas}}),
                "application/merge-patch+json",
                repeatable=True,
            )
        )

    async def create_token(
        self, name: str, namespace: str, *, seconds: int = 3600, audiences: tuple[str, ...] = ()
    ) -> Token:
        """Create a token of a service account; for the API server if no audiences are given."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "audiences": list(audiences)},
        }
        path = path_of(_SERVICE_ACCOUNTS, namespace, name, "token")
        status = (await self.request("POST", path, body=request))["status"]
        return Token(status["token"], datetime.fromisoformat(status["expirationTimestamp"]))

    async def _encode(
        self, obj: ManifestT, resource: Resource | None
    ) -> tuple[Codec[ManifestT], Unstructured]:
        if isinstance(obj, BaseObject):
            return codec_of(type(obj)), obj.dump()
        manifest = cast("Unstructured", obj)
        codec = codec_of(resource or await self.resource_of(manifest))
        return cast("Codec[ManifestT]", codec), manifest


def _write_parameters(manager: str, *, dry_run: bool, force: bool = False) -> dict[str, str]:
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
