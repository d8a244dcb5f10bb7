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
"""An object of a class, or plain JSON. Methods return the same form that they take."""

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

    A kind is a class made with `@kind`, for which the client returns objects of that class, or a
    `Resource`, for which it returns plain JSON. `docs/writing.md` compares the ways to write.

    Args:
        config: The server and the user.
        manager: The field manager of `apply`.
        options: Rate limits and timeouts.
    """

    # Writing

    async def create(
        self, obj: ManifestT, *, resource: Resource | None = None, dry_run: bool = False
    ) -> ManifestT:
        """Create an object.

        Args:
            obj: The object.
            resource: The resource of an unstructured object. Default: look it up.
            dry_run: Only validate.

        Raises:
            AlreadyExists: An object of that name exists.
            Invalid: The API server rejects it.
        """
        codec, manifest = await self._encode(obj, resource)
        response = await self._send(
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
        version: str | None = None,
        force: bool = True,
        dry_run: bool = False,
    ) -> ManifestT:
        """Create an object, or update it to match `obj`, except for its status.

        This is server-side apply: we own the fields in `obj`, other owners' fields stay as they
        are, and fields that we applied before and no longer apply are removed. So build `obj` from
        scratch, with only your fields. This rejects an object that was read from the API server,
        because it has the fields of all owners.

        Args:
            obj: The fields to own. If it has a uid, change only the object with that uid.
            live: The current object. It is returned without a request if nothing would change.
            resource: The resource of an unstructured object. Default: look it up.
            manager: The field manager, if not the client's own.
            version: The resourceVersion of the object, if it must not have changed since.
            force: Take fields that others own.
            dry_run: Only validate.

        Raises:
            ValueError: `obj` was read from an API server.
            Conflict: Others own a field and `force` is off, or the uid or version does not match.
            Invalid: The API server rejects it.
        """
        codec, manifest = await self._encode(obj, resource)
        apply.check_not_read(manifest)
        desired = apply.configuration(manifest)
        owner = manager or self.manager
        if live is not None and not apply.needs_apply(_manifest(live), desired, owner):
            return live
        if version is not None:
            desired = {**desired, "metadata": {**desired["metadata"], "resourceVersion": version}}
        parameters = _write_parameters(owner, dry_run=dry_run, force=force)
        return await self._apply(codec, desired, None, parameters)

    async def apply_fields(
        self, obj: ObjectT, fields: Mapping[str, Any], *, manager: str | None = None
    ) -> ObjectT:
        """Set single fields of an existing object, and leave all other fields to their owners.

        Use it for the fields of a user's object that a contract requires us to write:

            machine = await client.apply_fields(machine, {"spec.providerID": provider_id})

        Each set of fields has its own field manager, so calls for other fields and `apply` do
        not remove them. It sends nothing if we already own these fields with these values.

        Args:
            obj: The existing object, as read.
            fields: A value for each path, with the names of fields as in YAML.
            manager: The field manager. Default: the client's own plus the paths.

        Raises:
            ValueError: The kind has no such field, or the value does not fit it.
            Conflict: The object no longer exists, or another one has its name.
            Invalid: The API server rejects it.
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
        """Update the status to match `obj`, and change nothing else. See `apply`."""
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
            response = await self._send(request)
        except Invalid as error:
            if not any(cause.get("field") == "metadata.uid" for cause in error.causes):
                raise
            # The server answers this instead of Conflict if no object of that name exists.
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

        With `metadata.resourceVersion` in a merge patch, the server rejects it (`Conflict`) if
        another client has changed the object since.
        """
        codec = codec_of(kind)
        response = await self._send(
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
        """Request the deletion of an object. Returns `False` if it does not exist.

        Args:
            kind: The kind of the object.
            name: Its name.
            namespace: Its namespace.
            uid: Delete only the object with this uid.
            resource_version: Delete the object only if it has not changed since.
            propagation: How to treat the objects that it owns.
            grace_seconds: The time that it may take to stop.

        Raises:
            Conflict: The uid or resource_version does not match.
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
            # Without the uid, a second request could delete a new object of that name.
            await self._send(Request("DELETE", path, body=body, repeatable=uid is not None))
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
        """Evict a pod if its disruption budget allows it. Returns `False` if it does not exist.

        Raises:
            TooManyRequests: The budget does not allow it now. This does not retry.
            Conflict: The pod has another uid.
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
            await self._send(Request("POST", path, body=encode(eviction), patient=False))
        except NotFound:
            return False
        return True

    async def scale(self, kind: Kind[Any], name: str, namespace: str | None, replicas: int) -> None:
        """Set the number of replicas through the scale subresource."""
        await self._send(
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
        """Create a token of a service account, by default for the API server itself."""
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
