"""The client: everything that can be asked of an API server."""

from dataclasses import dataclass, field
from datetime import datetime

from capelin.api import BaseObject, Resource
from capelin.client.connection import encode
from capelin.client.errors import NotFound
from capelin.client.paths import path_of
from capelin.client.reading import Reading
from capelin.client.shapes import shape_of
from capelin.client.transport import Call
from capelin.client.writing import Writing

_PODS = Resource("", "v1", "Pod", "pods")
_SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")


@dataclass(frozen=True, slots=True)
class Token:
    """A service account's token and its end."""

    value: str = field(repr=False)
    expires: datetime


class Client(Reading, Writing):
    """Speaks with one API server as one user: reads, writes, and some verbs of their own.

    Whatever takes a kind takes a class made with `@kind`, and objects of that class come back,
    or a `Resource`, and plain JSON comes back.

    Args:
        config: which server, and as whom.
        manager: the name under which `apply` owns fields.
        options: how hard and how patiently to ask.
    """

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Ask for a pod to go as its disruption budget allows; `False` if there is none.

        Raises:
            TooManyRequests: not now, or the budget would be broken. It is not asked again here.
            Conflict: the pod is not the one with that uid.
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
            await self._transport.send(Call("POST", path, body=encode(eviction), patient=False))
        except NotFound:
            return False
        return True

    async def scale(
        self,
        kind: type[BaseObject] | Resource,
        name: str,
        namespace: str | None,
        replicas: int,
    ) -> None:
        """Set how many replicas there shall be, through the scale subresource."""
        path = path_of(shape_of(kind).resource, namespace, name, "scale")
        await self._transport.send(
            Call(
                "PATCH",
                path,
                {"fieldManager": self.manager},
                encode({"spec": {"replicas": replicas}}),
                "application/merge-patch+json",
                repeatable=True,
            )
        )

    async def token(
        self, name: str, namespace: str, *, seconds: int = 3600, audiences: tuple[str, ...] = ()
    ) -> Token:
        """A token of a service account, for these audiences or for the API server itself."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "audiences": list(audiences)},
        }
        path = path_of(_SERVICE_ACCOUNTS, namespace, name, "token")
        said = await self.request("POST", path, body=request)
        status = said["status"]
        return Token(status["token"], datetime.fromisoformat(status["expirationTimestamp"]))
