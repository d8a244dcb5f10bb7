"""Applies objects to a workload cluster, and checks now and then that they still exist."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from capelin.api import Unstructured, resource_of
from capelin.client import Client, Config, needs_apply
from capelin.controller import ObjectKey

RESYNC = timedelta(minutes=2)
"""How soon an object that was deleted from the workload cluster is created again."""


@dataclass(frozen=True, slots=True)
class _Applied:
    digest: str
    moment: datetime


class WorkloadSync:
    def __init__(self, manager: str) -> None:
        self._manager = manager
        self._applied: dict[ObjectKey, _Applied] = {}

    async def apply(
        self, key: ObjectKey, config: Config, objects: Sequence[Unstructured], now: datetime
    ) -> None:
        """Apply the objects, unless a recent check found the same ones.

        Raises:
            ClientError: the workload cluster does not answer, or refuses an object.
        """
        digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
        applied = self._applied.get(key)
        if applied and applied.digest == digest and now - applied.moment < RESYNC:
            return
        self.forget(key)
        async with Client(config, manager=self._manager) as workload:
            for manifest in objects:
                await self._ensure(workload, manifest)
        self._applied[key] = _Applied(digest, now)

    def forget(self, key: ObjectKey) -> None:
        """Check the workload cluster the next time."""
        self._applied.pop(key, None)

    async def _ensure(self, workload: Client, manifest: Unstructured) -> None:
        metadata = manifest["metadata"]
        resource = replace(resource_of(manifest), namespaced="namespace" in metadata)
        live = await workload.find(resource, metadata["name"], metadata.get("namespace"))
        if live is None or needs_apply(live, manifest, self._manager):
            await workload.apply(manifest, resource=resource)
