"""Kubernetes events: written once, counted when they repeat, and never in the way of the work."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from capelin.api import BaseObject, ObjectMeta
from capelin.api.core import Event, EventSeries, ObjectReference
from capelin.client import AlreadyExists, Client, ClientError, NotFound, UnreadableObject
from capelin.controller.logs import redact

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

_REMEMBERED = 4096
_WAITING = 1000
_NOTE = 1024


@dataclass(frozen=True, slots=True)
class EventRecord:
    """The content of an event. Two equal records are one event that happened twice."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    type: EventType
    reason: str
    note: str

    @property
    def event_name(self) -> str:
        """The event's name. It stays the same after a restart, so the count continues."""
        text = f"{self.uid}\0{self.kind}\0{self.type}\0{self.reason}\0{self.note}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.name[:200].rstrip('.-')}.{digest}"

    @property
    def event_namespace(self) -> str:
        """The namespace of the object, or `default` for cluster-scoped ones, like in Kubernetes."""
        return self.namespace or "default"


def event_record(obj: BaseObject, type_: EventType, reason: str, message: str) -> EventRecord:
    """An event about an object, without secrets, and short enough for Kubernetes."""
    note = redact(message).encode()[:_NOTE].decode("utf-8", "ignore")
    return EventRecord(
        obj.resource.api_version,
        obj.resource.kind,
        obj.namespace or "",
        obj.name,
        obj.uid,
        type_,
        reason,
        note,
    )


def unreadable_record(unreadable: UnreadableObject) -> EventRecord:
    """An event about an object of which only the metadata is readable."""
    return EventRecord(
        unreadable.resource.api_version,
        unreadable.resource.kind,
        unreadable.namespace,
        unreadable.name,
        unreadable.uid,
        "Warning",
        "Unreadable",
        f"It is unreadable, and is not reconciled until it changes: {unreadable.reason}",
    )


@dataclass(slots=True)
class _Series:
    count: int = 0
    written_count: int = 0
    written_at: float = 0.0


@dataclass(slots=True)
class _Budget:
    left: float
    since: float


class EventAggregator:
    """Decides which events to write. Pure, with any clock that only moves forward.

    It writes the first event of a kind at once, and the number of repetitions at most once a
    minute. Like in client-go, an object may have a burst of 25 writes, and then one every five
    minutes.
    """

    def __init__(self, pause: float = 60.0, burst: int = 25, refill: float = 300.0) -> None:
        self._pause = pause
        self._burst = burst
        self._refill = refill
        self._series: OrderedDict[EventRecord, _Series] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def count(self, record: EventRecord, now: float) -> int | None:
        """The number of occurrences, if it is time to write it."""
        series = self._series.setdefault(record, _Series())
        self._series.move_to_end(record)
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)
        series.count += 1
        if series.written_count and now - series.written_at < self._pause:
            return None
        if not self._afford(record.uid, now):
            return None
        series.written_at = now
        series.written_count = series.count
        return series.count

    def resume(self, record: EventRecord, count: int) -> None:
        """Add the count of an earlier process."""
        if series := self._series.get(record):
            series.count += count - series.written_count
            series.written_count = count

    def unwritten(self) -> list[tuple[EventRecord, int]]:
        """Series that have repeated since they were written."""
        return [
            (record, series.count)
            for record, series in self._series.items()
            if series.count > series.written_count > 0
        ]

    def _afford(self, uid: str, now: float) -> bool:
        budget = self._budgets.setdefault(uid, _Budget(self._burst, now))
        self._budgets.move_to_end(uid)
        if len(self._budgets) > _REMEMBERED:
            self._budgets.popitem(last=False)
        budget.left = min(self._burst, budget.left + (now - budget.since) / self._refill)
        budget.since = now
        if budget.left < 1:
            return False
        budget.left -= 1
        return True


class Recorder:
    """Writes events in the background. Logs and drops an event that it cannot write."""

    def __init__(
        self,
        client: Client,
        controller: str,
        instance: str,
        now: Callable[[], datetime],
        aggregator: EventAggregator | None = None,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance[:128]
        self._now = now
        self._aggregator = aggregator or EventAggregator()
        self._waiting: asyncio.Queue[tuple[EventRecord, int]] = asyncio.Queue(_WAITING)
        self._writing: asyncio.Task[None] | None = None

    def record(self, record: EventRecord) -> None:
        count = self._aggregator.count(record, asyncio.get_running_loop().time())
        if count is None:
            return
        try:
            self._waiting.put_nowait((record, count))
        except asyncio.QueueFull:
            log.warning("Too many events are waiting, dropping one: %s", record.reason)

    async def run(self) -> None:
        while True:
            self._writing = asyncio.create_task(self._write(*await self._waiting.get()))
            # A cancelled request could still reach the server, after the ones that rely on it.
            await asyncio.shield(self._writing)

    async def flush(self) -> None:
        """Write the remaining events, after `run` was cancelled."""
        if self._writing is not None:
            await self._writing
        while not self._waiting.empty():
            await self._write(*self._waiting.get_nowait())
        for record, count in self._aggregator.unwritten():
            await self._write(record, count)

    async def _write(self, record: EventRecord, count: int) -> None:
        try:
            if count == 1 or not await self._again(record, count):
                await self._first(record)
        except ClientError as error:
            log.debug("The event %s cannot be written: %s", record.reason, error)

    async def _first(self, record: EventRecord) -> None:
        try:
            await self._client.create(self._event(record))
        except AlreadyExists:
            # An earlier process recorded it. A patch that changes nothing returns the event without
            # the permission to read events.
            found = await self._patch(record, {})
            count = (found.series.count if found.series else 1) + 1
            self._aggregator.resume(record, count)
            await self._again(record, count)

    async def _again(self, record: EventRecord, count: int) -> bool:
        series = EventSeries(count=count, last_observed_time=self._now())
        try:
            await self._patch(record, {"series": series.dump()})
        except NotFound:
            # Kubernetes deletes events after an hour.
            return False
        return True

    async def _patch(self, record: EventRecord, patch: dict[str, Any]) -> Event:
        return await self._client.patch(Event, record.event_name, record.event_namespace, patch)

    def _event(self, record: EventRecord) -> Event:
        return Event(
            metadata=ObjectMeta(name=record.event_name, namespace=record.event_namespace),
            event_time=self._now(),
            type=record.type,
            reason=record.reason,
            note=record.note,
            action="Reconcile",
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            regarding=ObjectReference(
                api_version=record.api_version,
                kind=record.kind,
                namespace=record.namespace or None,
                name=record.name,
                uid=record.uid,
            ),
        )
