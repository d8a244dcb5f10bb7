"""What a reconcile has at hand: the client, the clock, and ways to write about its object."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from capelin.api import BaseObject, Object, ObjectMeta, OwnerReference, Unstructured
from capelin.client import Client, Conflict, Invalid, NotFound
from capelin.controller.events import EventType, Recorder, happening

StatusT = TypeVar("StatusT")

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Context:
    """What the reconcile of one object has at hand."""

    client: Client
    log: logging.Logger
    recorder: Recorder

    def now(self) -> datetime:
        """The time."""
        return datetime.now(UTC)

    def event(self, obj: BaseObject, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's name
        """Tell people what happened to an object; the same again is counted, not repeated."""
        self.recorder.record(happening(obj, type, reason, message))

    async def patch_status(self, obj: Object[Any, StatusT], status: StatusT) -> bool:
        """Make this the object's status, and say whether it was another one before.

        What is as it should be is not sent, so that a system at rest writes nothing.
        """
        wanted = obj.model_copy(update={"status": status})
        applied = await self.client.apply_status(wanted, live=obj)
        if applied is obj:
            return False
        obj.status = applied.status
        obj.metadata = applied.metadata
        return True

    async def apply_metadata(
        self,
        obj: BaseObject,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        owner_references: Sequence[OwnerReference] = (),
    ) -> bool:
        """Keep these on the object whatever others do, and say whether something was not so.

        They are all that we own of its metadata: what an earlier call had and this one has not
        goes. They have a field manager of their own, so applying the object does not touch them.
        """
        wanted = {
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "ownerReferences": [owner.dump() for owner in owner_references],
        }
        said = {key: value for key, value in wanted.items() if value}
        return await self._apply_metadata(obj, "metadata", said)

    async def add_finalizer(self, obj: BaseObject, finalizer: str) -> bool:
        """Have the object wait for us when it is deleted; call it before anything is made for it.

        Returns whether it was not there. An object that is being deleted takes none any more.
        """
        if finalizer in obj.metadata.finalizers or obj.metadata.deletion_timestamp is not None:
            return False
        # One field manager a finalizer: applied again by another reconciler, it stays.
        return await self._apply_metadata(
            obj, f"finalizer-{finalizer}", {"finalizers": [finalizer]}
        )

    async def remove_finalizer(self, obj: BaseObject, finalizer: str) -> bool:
        """Let the object go; call it when nothing that was made for it is left.

        Returns whether it was there. It does not matter who put it there: after a move to another
        management cluster it is somebody else's by server-side apply.
        """
        for _ in range(_TRIES):
            if finalizer not in obj.metadata.finalizers:
                return False
            place = f"/metadata/finalizers/{obj.metadata.finalizers.index(finalizer)}"
            patch = [
                # Of this very object, and only if the list is still as it was read.
                {"op": "test", "path": "/metadata/uid", "value": obj.uid},
                {"op": "test", "path": place, "value": finalizer},
                {"op": "remove", "path": place},
            ]
            try:
                left = await self.client.patch(
                    obj.resource, obj.name, obj.namespace, patch, type="json"
                )
            except NotFound:
                return False
            except (Conflict, Invalid):
                again = await self.client.find(obj.resource, obj.name, obj.namespace)
                if again is None or again["metadata"]["uid"] != obj.uid:
                    return False
                obj.metadata = ObjectMeta.read(again["metadata"])
            else:
                obj.metadata = ObjectMeta.read(left["metadata"])
                return True
        raise RuntimeError(f"the finalizers of {obj.name} change faster than one can be removed")

    async def _apply_metadata(
        self, obj: BaseObject, purpose: str, metadata: Mapping[str, Any]
    ) -> bool:
        manager = f"{self.client.manager}-{purpose}"[:128]
        named = ObjectMeta(name=obj.name, namespace=obj.namespace, uid=obj.uid).dump()
        resource, live = obj.resource, obj.dump()
        wanted: Unstructured = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {**named, **metadata},
        }
        applied = await self.client.apply(wanted, live=live, resource=resource, manager=manager)
        if applied is live:
            return False
        obj.metadata = ObjectMeta.read(applied["metadata"])
        return True
