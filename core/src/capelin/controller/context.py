"""The context of a reconcile: the client, the clock, and ways to write about its object."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry

from capelin.api import BaseObject, Model, Object, ObjectMeta, OwnerReference, Unstructured
from capelin.client import Client, Conflict, Invalid, NotFound, UnreadableObject
from capelin.controller.background import Background
from capelin.controller.events import EventType, Recorder, event_record, unreadable_record
from capelin.controller.threads import Threads

StatusT = TypeVar("StatusT")

_TRIES = 5


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one object's reconcile."""

    client: Client
    log: logging.Logger
    recorder: Recorder
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry, repr=False)
    """The manager's metrics. Register a reconciler's own metrics in its `lifespan`."""
    background: Background = field(default_factory=Background, repr=False)
    """Runs a reconciler's own tasks during its `lifespan`. /healthz reports their failures."""
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    _read: "_Read | None" = field(default=None, repr=False)
    _threads: Threads = field(default_factory=partial(Threads, "reconcile"), repr=False)

    @property
    def cached(self) -> Client:
        """The client, with reads of single objects from the manager's cache where possible.

        Such a read of a watched kind costs no request while the object is unchanged. See
        `Client.cached` for when not to use it.
        """
        return self.client.cached

    def about(self, obj: BaseObject) -> Self:
        """The context for one reconcile of an object that was just read. The runner calls this."""
        read = _Read(obj, _status_of(obj))
        return replace(self, _loop=asyncio.get_running_loop(), _read=read)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """For a plain `reconcile`: run a coroutine in the manager's event loop, and wait for it."""
        if self._loop is None:
            return asyncio.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a plain function in a thread of the reconciler. If cancelled, wait for its end."""
        return await self._threads.call(function, *arguments)

    def event(self, obj: BaseObject, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's name
        """Record an event about an object. Repetitions increase the count of the first event."""
        record = event_record(obj, type, reason, message)
        if self._loop is None:
            self.recorder.record(record)
        else:
            # A plain reconcile runs in a thread.
            self._loop.call_soon_threadsafe(self.recorder.record, record)

    def unreadable_event(self, unreadable: UnreadableObject) -> None:
        """Record why the manager does not reconcile an unreadable object."""
        self.recorder.record(unreadable_record(unreadable))

    async def patch_status(self, obj: Object[Any, StatusT], status: StatusT | None = None) -> bool:
        """Patch the object's status. Returns whether it changed.

        The default is `obj.status`, which you may have changed in place: this sends the difference
        to the status that the API server had. It sends nothing without a difference, so that an
        idle system writes nothing.
        """
        wanted = obj if status is None else obj.model_copy(update={"status": status})
        live = self._live(obj, in_place=wanted.status is obj.status)
        applied = await self.client.apply_status(wanted.dump(), live=live, resource=obj.resource)
        if applied is live:
            return False
        fresh = type(obj).read(applied)
        obj.status = fresh.status
        obj.metadata = fresh.metadata
        if self._read is not None and self._read.obj is obj:
            self._read.status = _status_of(obj)
        return True

    def _live(self, obj: Object[Any, Any], *, in_place: bool) -> Unstructured | None:
        """The object as the API server has it, or `None` if that is unknown."""
        if self._read is not None and self._read.obj is obj:
            live = obj.model_copy(update={"status": None}).dump()
            return live if self._read.status is None else {**live, "status": self._read.status}
        return None if in_place else obj.dump()

    async def apply_metadata(
        self,
        obj: BaseObject,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        owner_references: Sequence[OwnerReference] = (),
    ) -> bool:
        """Enforce this metadata, whatever others change. Returns whether anything changed.

        We own no other metadata of the object: this removes metadata of an earlier call that is
        not in this one. It has its own field manager, so applying the object does not affect it.
        """
        fields = {
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "ownerReferences": [owner.dump() for owner in owner_references],
        }
        given = {key: value for key, value in fields.items() if value}
        return await self._apply_metadata(obj, "metadata", given)

    async def add_finalizer(self, obj: BaseObject, finalizer: str) -> bool:
        """Make the deletion of the object wait for us. Call it before you create anything for it.

        Returns whether this added it. An object under deletion accepts no new finalizer.
        """
        if finalizer in obj.metadata.finalizers or obj.metadata.deletion_timestamp is not None:
            return False
        # One field manager per finalizer, so another reconciler's apply does not remove it.
        return await self._apply_metadata(
            obj, f"finalizer-{finalizer}", {"finalizers": [finalizer]}
        )

    async def remove_finalizer(self, obj: BaseObject, finalizer: str) -> bool:
        """Release the object for deletion, after you have deleted everything that belongs to it.

        Returns whether this removed it, whoever added it: after a move to another management
        cluster, server-side apply attributes it to another field manager.
        """
        for _ in range(_TRIES):
            if finalizer not in obj.metadata.finalizers:
                return False
            path = f"/metadata/finalizers/{obj.metadata.finalizers.index(finalizer)}"
            patch = [
                # Only of this object, and only if the list has not changed.
                {"op": "test", "path": "/metadata/uid", "value": obj.uid},
                {"op": "test", "path": path, "value": finalizer},
                {"op": "remove", "path": path},
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


@dataclass(slots=True)
class _Read:
    """The object under reconciliation, and its status when it was read."""

    obj: BaseObject
    status: Unstructured | None


def _status_of(obj: BaseObject) -> Unstructured | None:
    status: Any = getattr(obj, "status", None)
    return status.dump() if isinstance(status, Model) else deepcopy(status)
