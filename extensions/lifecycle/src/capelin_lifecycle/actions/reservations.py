"""A replica's copies of the lists of Clusters that quotas have admitted.

Each policy has an object with them. A replica writes it only if its copy is current, and reads it
again only when a write shows that the copy is old.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from capelin.api import ObjectMeta, OwnerReference
from capelin.client import AlreadyExists, Client, Conflict, NotFound, path_of

from capelin_lifecycle.api.names import GROUP, VERSION
from capelin_lifecycle.api.results import LifecycleReservation
from capelin_lifecycle.policies.selection import KnownPolicy

_RESOURCE: Final = LifecycleReservation.resource


@dataclass(frozen=True, slots=True)
class Reserved:
    """The Clusters that a policy has admitted, by their uids, and the version of the object."""

    clusters: frozenset[str]
    version: str | None
    """None if no object exists yet."""


class Reservations:
    """The reservations of all policies, as this replica read or wrote them last."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Those of cluster-wide policies are in the extension's own namespace."""
        self._client = client
        self._namespace = namespace
        self._known: dict[str, Reserved] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, policy: KnownPolicy) -> asyncio.Lock:
        """The lock of a policy in this replica. Hold it while reserving."""
        return self._turns.setdefault(policy.uid, asyncio.Lock())

    async def read(self, policy: KnownPolicy) -> Reserved:
        """The copy, or the stored object if no copy exists."""
        known = self._known.get(policy.uid)
        if known is None:
            found = await self._client.find(_RESOURCE, _name(policy), self._namespace_of(policy))
            known = self._remember(policy, found) if found else Reserved(frozenset(), None)
        return known

    async def write(self, policy: KnownPolicy, before: Reserved, clusters: Sequence[str]) -> bool:
        """Replace the object. Returns `False` if another replica has written meanwhile."""
        # Also after a cancellation: the write may have succeeded.
        self._known.pop(policy.uid, None)
        manifest = self._manifest(policy, before, clusters)
        try:
            if before.version is None:
                written = await self._client.create(manifest, resource=_RESOURCE)
            else:
                # A patch would cost the API server twice as much.
                path = path_of(_RESOURCE, self._namespace_of(policy), _name(policy))
                written = await self._client.request("PUT", path, body=manifest)
        except (AlreadyExists, Conflict, NotFound):
            return False
        self._remember(policy, written)
        return True

    def _remember(self, policy: KnownPolicy, found: dict[str, Any]) -> Reserved:
        clusters = frozenset[str](found.get("clusters") or ())
        known = Reserved(clusters, found["metadata"]["resourceVersion"])
        self._known[policy.uid] = known
        return known

    def _namespace_of(self, policy: KnownPolicy) -> str:
        return policy.namespace or self._namespace

    def _manifest(
        self, policy: KnownPolicy, before: Reserved, clusters: Sequence[str]
    ) -> dict[str, Any]:
        owner = OwnerReference(
            api_version=f"{GROUP}/{VERSION}", kind=policy.kind, name=policy.name, uid=policy.uid
        )
        metadata = ObjectMeta(
            name=_name(policy),
            namespace=self._namespace_of(policy),
            owner_references=[owner],
            resource_version=before.version or "",
        )
        return {
            "apiVersion": _RESOURCE.api_version,
            "kind": _RESOURCE.kind,
            "metadata": metadata.dump(),
            "clusters": [*clusters],
        }


def _name(policy: KnownPolicy) -> str:
    return f"quota-{policy.uid}"
