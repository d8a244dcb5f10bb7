"""Writes into policies that cannot be read why that is: no reconciler is called for them."""

import asyncio
from typing import Final

from capelin.api import Unstructured
from capelin.client import ClientError, UnreadableObject
from capelin.controller import Context, ObjectKey

from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.policies.clusters import PolicyKey
from capelin_lifecycle.policies.store import Store, Subject

_RETRY_SECONDS: Final = 30.0
_LONGEST: Final = 1024


class UnreadablePolicies:
    """Keeps the conditions of policies that cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = asyncio.Event()
        self._written: dict[str, str] = {}
        """Reasons by uid."""

    async def keep(self, ctx: Context) -> None:
        """Write conditions until cancelled."""
        self._store.subscribe(self._on_change)
        try:
            while True:
                self._changed.clear()
                seconds = None if await self._write_all(ctx) else _RETRY_SECONDS
                try:
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._store.unsubscribe(self._on_change)

    def _on_change(self, subject: Subject, key: ObjectKey, policy: PolicyKey | None) -> None:
        del key, policy
        if subject == "policy":
            self._changed.set()

    async def _write_all(self, ctx: Context) -> bool:
        """Whether all are written."""
        found = [
            entry for entry in self._store.unreadable.values() if entry.resource.group == GROUP
        ]
        policies = [entry for entry in found if entry.resource.kind.endswith("Policy")]
        self._written = {
            entry.uid: self._written[entry.uid] for entry in policies if entry.uid in self._written
        }
        is_complete = True
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
                is_complete = False
            else:
                self._written[entry.uid] = entry.reason
        return is_complete


def unreadable_status(entry: UnreadableObject, now: str) -> Unstructured:
    """The policy's status: it is not valid, and why."""
    message = f"the policy cannot be read: {entry.reason}"[:_LONGEST]
    metadata = {"name": entry.name, "uid": entry.uid}
    if entry.namespace:
        metadata["namespace"] = entry.namespace
    conditions = [
        {
            "type": type_,
            "status": "False",
            "reason": "Unreadable",
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
