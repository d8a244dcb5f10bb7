"""Runs a reconciler over its queue: the tasks, the clock and the outcome of each run."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Generic, Literal, TypeVar

from capelin import tracing
from capelin.api import BaseObject
from capelin.client import ClientError, Conflict, Unreadable
from capelin.controller.changes import Changes, Seen
from capelin.controller.context import Context
from capelin.controller.diagnostics import Metrics
from capelin.controller.guard import PAYERS
from capelin.controller.logs import LogContext, explained, log_context
from capelin.controller.queue import After, Done, Failed, Gone, ObjectKey, Outcome, Queue
from capelin.controller.reconciler import (
    For,
    Labels,
    Owns,
    Reconciler,
    Watch,
    concerned,
    group_of,
    selects,
)
from capelin.controller.threads import Threads

log = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT", bound=BaseObject)

# The part of the lease's validity that remains for cancelling after a lost lease.
_CANCELLING = 3.0
# An object whose reconcile held the event loop for a second is not reconciled for so many seconds.
_PAUSE = 60.0
_PAUSED = (
    "its last reconcile held up those of all other objects, so this one began later: is a field of"
    " the object, or an object that it names, very large?"
)
# Such an event may concern any key.
_NOT_MAPPED = "An event of %s cannot be mapped: reconciling every known key"
_SLOWED = (
    "%s %s changed too often and is reconciled less often: does its reconcile change what wakes it?"
)


class Runner(Generic[ObjectT]):
    """Runs one reconciler on at most `concurrency` objects at a time."""

    def __init__(
        self,
        reconciler: Reconciler[ObjectT],
        queue: Queue,
        context: Context,
        metrics: Metrics,
        *,
        concurrency: int,
        labels: Labels,
        clock: Callable[[], float],
    ) -> None:
        self.reconciler = reconciler
        self.queue = queue
        self._threads = Threads(reconciler.name, concurrency)
        self._context = replace(context, _threads=self._threads)
        self._metrics = metrics
        self._concurrency = concurrency
        self._labels = labels
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: set[ObjectKey] = set()
        self._mapping: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._open = False
        self.changes = Changes()
        # A start has an event for each object: do not send a request for each at once.
        self._mappers = asyncio.Semaphore(concurrency)
        metrics.watch_queue(reconciler.name, queue, concurrency, clock)

    def start(self) -> None:
        self._open = True
        self._pump()

    def add(self, key: ObjectKey) -> None:
        self._add((key,))

    def changed(self, watch: Watch, body: Mapping[str, Any], *, deleted: bool = False) -> None:
        uid = str(body["metadata"].get("uid"))
        seen = self.changes.of(watch, uid)
        if seen.is_unmapped:
            seen.is_unmapped = False
            self.add_all()
        try:
            keys = self._keys_of(watch, body, seen, deleted=deleted)
        except Unreadable as error:
            keys = seen.keys
            if error.object is not None:
                self._context.client.unreadable.report(error.object)
        except Exception:
            log.exception(_NOT_MAPPED, watch.kind.resource.plural)
            keys, seen.is_unmapped = seen.keys, True
            self.add_all()
        if isinstance(keys, Awaitable):
            mapping = asyncio.create_task(self._map(watch, uid, seen, keys, seen.events))
            self._mapping.add(mapping)
            mapping.add_done_callback(self._mapping.discard)
            # The task may be cancelled before it awaits the mapper.
            mapping.add_done_callback(partial(_close, keys))
        elif keys is not None:
            self._add(seen.move(keys, seen.events))
        if deleted or not isinstance(keys, Awaitable):
            self.changes.settle(watch, uid, seen, deleted=deleted)

    def _keys_of(
        self, watch: Watch, body: Mapping[str, Any], seen: Seen, *, deleted: bool
    ) -> Iterable[ObjectKey] | Awaitable[Iterable[ObjectKey]] | None:
        """The keys that an event concerns, or None if it does not matter."""
        matters = seen.matters(watch, body, deleted=deleted)
        # The owners of an object are in its metadata, whatever `when_changed` looks at.
        if not matters and not isinstance(watch, Owns):
            return None
        keys = concerned(watch, self.reconciler.main_watch.kind.resource, body, self._context)
        if isinstance(keys, Awaitable):
            return keys
        if isinstance(watch, For):
            for key in keys:
                self.queue.set_group(key, group_of(self.reconciler, body))
        return keys if matters or tuple(keys) != seen.keys else None

    async def _map(
        self,
        watch: Watch,
        uid: str,
        seen: Seen,
        keys: Awaitable[Iterable[ObjectKey]],
        event: int,
    ) -> None:
        try:
            async with self._mappers:
                self._add(seen.move(await keys, event))
        except Exception:
            log.exception(_NOT_MAPPED, watch.kind.resource.plural)
            seen.is_unmapped = True
            self.add_all()
        if event == seen.events:
            self.changes.settle(watch, uid, seen)

    def listed(self, watch: Watch, uids: AbstractSet[str]) -> None:
        """A list is complete: other objects do not exist. Anything may have changed before."""
        self._add(self.changes.retain(watch, uids))
        self.add_all()

    def _add(self, keys: Iterable[ObjectKey]) -> None:
        now = self._clock()
        for key in keys:
            self.queue.add(key, now)
        self._pump()

    def add_all(self) -> None:
        self.queue.add_all(self._clock())
        self._pump()

    def retry_soon(self) -> None:
        self.queue.retry_soon(self._clock(), within=2.0)
        self._pump()

    def _held(self, key: ObjectKey, seconds: float) -> None:
        """Pause an object whose reconcile held the event loop, which all others need."""
        self._paused.add(key)
        self.queue.pause(key, _PAUSE * seconds, self._clock())

    async def stop(self, grace: float) -> list[str]:
        """Take no new work, wait for running work, and then cancel it.

        Returns the work that continues in spite of being cancelled.
        """
        self._open = False
        name = self.reconciler.name
        for mapping in self._mapping:
            mapping.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                log.warning("%s: %s did not end within %g s", name, task.get_name(), grace)
                task.cancel()
            if late:
                _, stubborn = await asyncio.wait(late, timeout=_CANCELLING)
                for task in stubborn:
                    log.error("%s: %s continues although it was cancelled", name, task.get_name())
                return [task.get_name() for task in stubborn]
        self._threads.close()
        return []

    def _pump(self) -> None:
        """Start as much as possible, and come back when more is due."""
        if not self._open:
            return
        while len(self._tasks) < self._concurrency:
            taken = self.queue.take(self._clock())
            if taken is None:
                break
            self._metrics.taken(self.reconciler.name, taken.waited)
            if taken.is_slowed:
                log.warning(_SLOWED, self.reconciler.name, taken.key)
            task = asyncio.create_task(self._run(taken.key), name=f"reconcile of {taken.key}")
            self._tasks.add(task)
            PAYERS[task] = partial(self._held, taken.key)
            task.add_done_callback(self._ended)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self.queue.next_due()
        if due is not None and len(self._tasks) < self._concurrency:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, due - self._clock()), self._pump)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # After due timers: if the task held the loop, the guard pauses its object.
        asyncio.get_running_loop().call_soon(self._pump)

    async def _run(self, key: ObjectKey) -> None:
        name = self.reconciler.name
        started = self._clock()
        outcome: Outcome = Failed()
        id_ = uuid.uuid4().hex[:8]
        with (
            log_context(LogContext(name, key.namespace, key.name, id_)),
            tracing.span(
                "reconcile", name, namespace=key.namespace, name=key.name, reconcile_id=id_
            ) as span,
        ):
            try:
                outcome = await self._step(key)
                log.debug("%s", outcome)
            except Conflict as error:
                log.info("%s. Trying again", explained(error))
            except Unreadable as error:
                self._report_unreadable(key, error)
            except ClientError as error:
                log.error("%s", explained(error))  # noqa: TRY400 - the message has all the details
            except Exception as error:
                why = f"{type(error).__name__}: {explained(error)}"
                log.exception("The reconcile failed: %s", why)
            finally:
                now = self._clock()
                self.queue.finish(key, outcome, now)
                result = _result(outcome)
                self._metrics.reconciled(name, result, now - started)
                span.end(result, failed=result == "error")

    def _report_unreadable(self, key: ObjectKey, error: Unreadable) -> None:
        unreadable = error.object
        if unreadable is None:
            log.error("%s", explained(error))
            return
        self._context.client.unreadable.report(unreadable)
        kind = self.reconciler.main_watch.kind.resource
        if unreadable.resource == kind and unreadable.key == (key.namespace, key.name):
            self._context.unreadable_event(unreadable)

    async def _step(self, key: ObjectKey) -> Outcome:
        kind = self.reconciler.main_watch.kind
        client = self._context.client
        reader = client.cached if self.reconciler.cached_reads else client
        obj: Any = await reader.find(kind, key.name, key.namespace or None)
        if obj is not None and obj.metadata.deletion_timestamp is not None and reader is not client:
            # A deletion cannot be undone: do not miss a pause that was not delivered yet.
            obj = await client.find(kind, key.name, key.namespace or None)
        if obj is None or not selects(self._labels, obj.metadata.labels):
            await self.reconciler.on_missing(self._context, key)
            self._paused.discard(key)
            return Gone()
        if key in self._paused:
            self._paused.remove(key)
            self._context.event(obj, "Warning", "ReconcilePaused", _PAUSED)
        result = await self._reconcile(self._context.about(obj), obj)
        if not isinstance(result, Done | After):
            raise TypeError(
                f"{type(self.reconciler).__name__}.reconcile returned {result} "
                f"instead of Done() or After(seconds)"
            )
        return result

    async def _reconcile(self, ctx: Context, obj: Any) -> object:
        reconcile: Callable[..., Any] = self.reconciler.reconcile
        if iscoroutinefunction(reconcile):
            return await reconcile(ctx, obj)
        result = await self._threads.call(reconcile, ctx, obj)
        return await result if isawaitable(result) else result


def _close(coroutine: object, _: asyncio.Task[None]) -> None:
    if isinstance(coroutine, Coroutine):
        coroutine.close()


def _result(outcome: Outcome) -> Literal["success", "requeue_after", "error"]:
    match outcome:
        case Failed():
            return "error"
        case After():
            return "requeue_after"
        case _:
            return "success"
