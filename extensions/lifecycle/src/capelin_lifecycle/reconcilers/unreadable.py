"""Writes the reason into policies that cannot be read, for which no reconciler runs."""

from functools import partial
from typing import Final

from capelin.api import Unstructured
from capelin.client import ClientError, UnreadableObject
from capelin.controller import Context

from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reasons import Reason

_RETRY_SECONDS: Final = 30.0
_LONGEST: Final = 1024


class UnreadablePolicies:
    """Keeps the conditions of policies that cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: dict[str, str] = {}
        """Reasons by uid."""

    async def keep(self, ctx: Context) -> None:
        """Write conditions until cancelled."""
        await self._store.repeat(partial(self._write_all, ctx))

    async def _write_all(self, ctx: Context) -> float | None:
        """Write new conditions. Returns the seconds until the next attempt, if that failed."""
        found = [
            entry for entry in self._store.unreadable.values() if entry.resource.group == GROUP
        ]
        policies = [entry for entry in found if entry.resource.kind.endswith("Policy")]
        self._written = {
            entry.uid: self._written[entry.uid] for entry in policies if entry.uid in self._written
        }
        retry: float | None = None
        for entry in policies:
            if self._written.get(entry.uid) == entry.reason:
                continue
            try:
                await ctx.client.apply_status(
                    unreadable_status(entry, ctx.now().strftime("%Y-%m-%dT%H:%M:%SZ")),
                    resource=entry.resource,
                )
            except ClientError as error:
                ctx.log.info("The condition of %s cannot be written: %s", entry, error)
                retry = _RETRY_SECONDS
            else:
                self._written[entry.uid] = entry.reason
        return retry


def unreadable_status(entry: UnreadableObject, now: str) -> Unstructured:
    """The status of an invalid policy, with the reason."""
    message = f"the policy cannot be read: {entry.reason}"[:_LONGEST]
    metadata = {"name": entry.name, "uid": entry.uid}
    if entry.namespace:
        metadata["namespace"] = entry.namespace
    conditions = [
        {
            "type": type_,
            "status": "False",
            "reason": Reason.UNREADABLE,
            "message": message,
            "lastTransitionTime": now,
        }
        for type_ in ("Valid", "Ready")
    ]
    return {
        "apiVersion": entry.resource.api_version,
        "kind": entry.resource.kind,
        "metadata": metadata,
        "status": {"conditions": conditions},
    }
