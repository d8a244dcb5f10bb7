"""Kubernetes events: told once, counted when they come again, and never in the way of the work."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from capelin.api import BaseObject, ObjectMeta
from capelin.api.views.core import Event, EventSeries, ObjectReference
from capelin.client import AlreadyExists, Client, ClientError, NotFound
from capelin.controller.logs import hide

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

_REMEMBERED = 4096
_WAITING = 1000
_NOTE = 1024


@dataclass(frozen=True, slots=True)
class Happening:
    """What an event says. The same happening again is the same event again."""

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
        """The event's name, which is the same after a restart: it goes on counting."""
        said = f"{self.uid}\0{self.kind}\0{self.type}\0{self.reason}\0{self.note}"
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{self.name[:200].rstrip('.-')}.{digest}"

    @property
    def event_namespace(self) -> str:
        """Where the event is kept: beside its object, or in `default` as Kubernetes has it."""
        return self.namespace or "default"


def happening(obj: BaseObject, type_: EventType, reason: str, message: str) -> Happening:
    """An event about an object, without anything secret and short enough for Kubernetes."""
    note = hide(message).encode()[:_NOTE].decode("utf-8", "ignore")
    return Happening(
        obj.resource.api_version,
        obj.resource.kind,
        obj.namespace or "",
        obj.name,
        obj.uid,
        type_,
        reason,
        note,
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


class Folding:
    """Decides what of all that happens is written: pure, with any clock that goes forward.

    The first of a kind is written at once, and how often it came again once a minute at most. An
    object may have 25 writes in a burst and one every five minutes from then on, as in client-go.
    """

    def __init__(self, pause: float = 60.0, burst: int = 25, refill: float = 300.0) -> None:
        self._pause = pause
        self._burst = burst
        self._refill = refill
        self._series: OrderedDict[Happening, _Series] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def heard(self, what: Happening, now: float) -> int | None:
        """How often it has happened, if that is to be written now."""
        series = self._series.setdefault(what, _Series())
        self._series.move_to_end(what)
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)
        series.count += 1
        if series.written_count and now - series.written_at < self._pause:
            return None
        if not self._afford(what.uid, now):
            return None
        series.written_at = now
        series.written_count = series.count
        return series.count

    def resume(self, what: Happening, count: int) -> None:
        """An earlier process has counted so many already."""
        if series := self._series.get(what):
            series.count += count - series.written_count
            series.written_count = count

    def unwritten(self) -> list[tuple[Happening, int]]:
        """Series that have come again since they were written."""
        return [
            (what, series.count)
            for what, series in self._series.items()
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
    """Writes events in the background. One that cannot be written is logged and let go."""

    def __init__(
        self,
        client: Client,
        controller: str,
        instance: str,
        now: Callable[[], datetime],
        folding: Folding | None = None,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance[:128]
        self._now = now
        self._folding = folding or Folding()
        self._waiting: asyncio.Queue[tuple[Happening, int]] = asyncio.Queue(_WAITING)
        self._writing: asyncio.Task[None] | None = None

    def record(self, what: Happening) -> None:
        """Tell of something, soon."""
        count = self._folding.heard(what, asyncio.get_running_loop().time())
        if count is None:
            return
        try:
            self._waiting.put_nowait((what, count))
        except asyncio.QueueFull:
            log.warning("Too many events wait to be written; one is lost: %s", what.reason)

    async def run(self) -> None:
        """Write what is recorded, for ever."""
        while True:
            self._writing = asyncio.create_task(self._write(*await self._waiting.get()))
            # Given up on while it is on its way, it could arrive after what counts on it.
            await asyncio.shield(self._writing)

    async def flush(self) -> None:
        """Write what is left: for the end, after `run` was cancelled."""
        if self._writing is not None:
            await self._writing
        while not self._waiting.empty():
            await self._write(*self._waiting.get_nowait())
        for what, count in self._folding.unwritten():
            await self._write(what, count)

    async def _write(self, what: Happening, count: int) -> None:
        try:
            if count == 1 or not await self._again(what, count):
                await self._first(what)
        except ClientError as error:
            log.debug("The event %s cannot be written: %s", what.reason, error)

    async def _first(self, what: Happening) -> None:
        try:
            await self._client.create(self._event(what))
        except AlreadyExists:
            # Told by an earlier process. A patch that changes nothing gives the event without
            # the permission to read events.
            found = await self._patch(what, {})
            count = (found.series.count if found.series else 1) + 1
            self._folding.resume(what, count)
            await self._again(what, count)

    async def _again(self, what: Happening, count: int) -> bool:
        series = EventSeries(count=count, last_observed_time=self._now())
        try:
            await self._patch(what, {"series": series.dump()})
        except NotFound:
            # Kubernetes keeps events for an hour only.
            return False
        return True

    async def _patch(self, what: Happening, patch: dict[str, Any]) -> Event:
        return await self._client.patch(Event, what.event_name, what.event_namespace, patch)

    def _event(self, what: Happening) -> Event:
        return Event(
            metadata=ObjectMeta(name=what.event_name, namespace=what.event_namespace),
            event_time=self._now(),
            type=what.type,
            reason=what.reason,
            note=what.note,
            action="Reconcile",
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            regarding=ObjectReference(
                api_version=what.api_version,
                kind=what.kind,
                namespace=what.namespace or None,
                name=what.name,
                uid=what.uid,
            ),
        )
