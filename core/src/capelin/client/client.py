"""A client of one API server: read, watch, apply, patch and delete objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeVar, cast

from capelin.api import BaseObject, Resource, Unstructured
from capelin.client import apply
from capelin.client.codecs import Codec, Kind, codec_of, encode, path_of
from capelin.client.errors import Conflict, Invalid, NotFound
from capelin.client.reader import Reader
from capelin.client.transport import Request

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=BaseObject)
ManifestT = TypeVar("ManifestT", bound=BaseObject | Unstructured)
"""An object of a class, or plain JSON; what is written comes back as the same."""

Propagation = Literal["Background", "Foreground", "Orphan"]

_PATCH_TYPES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}
_PODS = Resource("", "v1", "Pod", "pods")
_SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")


@dataclass(frozen=True, slots=True)
class Token:
    """A service account token and when it expires."""

    value: str = field(repr=False)
    expires: datetime


class Client(Reader):
    """A client of one API server, as one user.

    A kind is a class made with `@kind`, for which objects of that class are returned, or a
    `Resource`, for which plain JSON is returned. `docs/writing.md` says which of the ways to
    write to use when.

    Args:
        config: which server, and as whom.
        manager: the field manager of `apply`.
        options: rate limits and timeouts.
    """

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
