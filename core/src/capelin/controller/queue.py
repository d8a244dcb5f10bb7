"""Which key is next, and when: all decisions of the work queue, without its own clock.

A key is in one of three places: ready (something changed), running, or due later (a retry, a
requested delay or the periodic resync). It leaves the queue only when its object is gone.

Keys may belong to groups. A limit applies to the running keys of one group. Groups whose runs
take long share a part of the workers, so that the others always have some.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from math import inf, isfinite
from random import Random
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from capelin.backoff import exponential_delay

SLOW_SECONDS: Final = 1.0
"""A run that takes longer makes its group slow."""
SLOW_MEMORY: Final = 60.0
"""How long a group stays slow: requests to a silent server pause up to 30 s, and runs are quick in
this time."""


class ObjectKey(NamedTuple):
    """An object by name. A cluster-scoped one has an empty namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do until something changes, or the next periodic resync."""


@dataclass(frozen=True, slots=True)
class After:
    """Reconcile again after this many seconds, even if nothing changes."""

    seconds: float

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"After({self.seconds}) is not a delay: use more than 0 seconds")


Result = Done | After
"""The result of a reconcile that did not fail. A failure is an exception."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The reconcile raised."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The object no longer exists, so the queue forgets its key."""


Outcome = Done | After | Failed | Gone


class Taken(NamedTuple):
    """A key that is now running, and how long it had been ready."""

    key: ObjectKey
    waited: float
    is_slowed: bool = False
    """Whether the queue has just begun to slow this key down."""


@dataclass(frozen=True, slots=True)
class Timing:
    first_retry: float = 0.005
    longest_retry: float = 300.0
    resync: float = 36_000.0
    burst: int = 50
    """The number of runs of a key that may follow each other without a pause."""
    pace: float = 0.2
    """The time between later runs of a key: it may change the object that triggers it."""

    def retry(self, failures: int, random: Random) -> float:
        """The delay after this many failures in a row: doubling, with a fifth of jitter."""
        delay = exponential_delay(failures, first=self.first_retry, longest=self.longest_retry)
        return delay * random.uniform(0.8, 1.2)


class _Turn(NamedTuple):
    """The place of a ready key: first come, first served."""

    since: float
    number: int


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Group:
    """Keys that share a limit. A key without a group is its own group."""

    name: Hashable
    ready: OrderedDict[ObjectKey, _Turn] = field(default_factory=OrderedDict[ObjectKey, _Turn])
    running: int = 0
    is_slow: bool = False
    slow_until: float = -inf

    @property
    def first(self) -> _Turn | None:
        """The turn of the key that is next."""
        return next(iter(self.ready.values()), None)


class _Run(NamedTuple):
    """The start of a key's run, and the group that it counts for."""

    since: float
    group: _Group


class Queue:
    """The keys of one reconciler. `now` is any clock that only moves forward.

    Args:
        timing: The delays.
        random: Spreads delays.
        group_limit: The number of keys of one group that may run at the same time.
        slow_limit: The number of keys of all slow groups together that may run at the same time.
    """

    def __init__(
        self,
        timing: Timing,
        random: Random,
        *,
        group_limit: int | None = None,
        slow_limit: int | None = None,
    ) -> None:
        self.adds = 0
        self.retries = 0
        self._timing = timing
        self._random = random
        self._group_limit = inf if group_limit is None else group_limit
        self._slow_limit = inf if slow_limit is None else slow_limit
        self._turns = count()
        # The group of each known key. A group disappears with its last key.
        self._groups: dict[ObjectKey, _Group] = {}
        self._named: WeakValueDictionary[Hashable, _Group] = WeakValueDictionary()
        # The groups that have ready keys, by the turn of their first one.
        self._ready: dict[_Turn, _Group] = {}
        # Turns of groups below their limit, quick and slow ones. May contain outdated turns.
        self._quick: list[_Turn] = []
        self._slow: list[_Turn] = []
        self._running: dict[ObjectKey, _Run] = {}
        self._changed_while_running: set[ObjectKey] = set()
        self._due: dict[ObjectKey, float] = {}
        # May contain entries that differ from `_due`, which are ignored.
        self._heap: list[tuple[float, ObjectKey]] = []
        self._failures: dict[ObjectKey, int] = {}
        # The time at which a key's runs would end at the slow pace.
        self._paced_until: dict[ObjectKey, float] = {}
        # Keys that are slowed down, and whether `take` has reported it.
        self._slowed: dict[ObjectKey, bool] = {}

    def add(self, key: ObjectKey, now: float) -> None:
        """Reconcile this key, which changed, as soon as its turn comes."""
        if key in self._running:
            if key not in self._changed_while_running:
                self._changed_while_running.add(key)
                self.adds += 1
        elif not self._is_ready(key) and self._due.get(key) != self._earliest(key):
            self._wake(key, now)
            self.adds += 1

    def set_group(self, key: ObjectKey, name: Hashable) -> None:
        """Set the group of a key, such as its cluster, or None."""
        before = self._groups.get(key)
        if before is not None and before.name == name:
            return
        after = _Group(name) if name is None else self._named.setdefault(name, _Group(name))
        self._groups[key] = after
        if before is not None and key in before.ready:
            self._insert_ready(after, key, self._remove_ready(before, key))
            self._offer(before)

    def add_all(self, now: float) -> None:
        """Reconcile every known key: anything may have changed."""
        for key in [*self._due, *self._running]:
            self.add(key, now)

    def retry_soon(self, now: float, within: float) -> None:
        """Retry all failed keys within a few seconds: the cause of their failures is gone."""
        for key in self._failures.keys() & self._due.keys():
            self._schedule(key, min(self._due[key], now + self._random.uniform(0, within)))

    def take(self, now: float) -> Taken | None:
        """The next key to run, first come, first served, without groups that are at their limit."""
        while (due := self.next_due()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._set_ready(key, due)
        heaps = [self._quick] if self._is_full_of_slow(now) else [self._quick, self._slow]
        turns = [turn for heap in heaps if (turn := self._next_turn(heap)) is not None]
        if not turns:
            return None
        group = self._ready[min(turns)]
        key = next(iter(group.ready))
        turn = self._remove_ready(group, key)
        group.running += 1
        self._offer(group)
        self._running[key] = _Run(now, group)
        return Taken(key, now - turn.since, self._note_run(key, now))

    def finish(self, key: ObjectKey, outcome: Outcome, now: float) -> None:
        """Record the result of a running key, and with it the time of its next turn."""
        since, group = self._running.pop(key)
        was_slow, was_full = group.is_slow, group.running >= self._group_limit
        if now - since > SLOW_SECONDS:
            group.slow_until = now + SLOW_MEMORY
        group.is_slow = now < group.slow_until
        group.running -= 1
        if was_full or was_slow != group.is_slow:
            self._offer(group)
        if isinstance(outcome, Failed):
            self._failures[key] = self._failures.get(key, 0) + 1
            self.retries += 1
        else:
            self._failures.pop(key, None)
        if key in self._changed_while_running:
            self._changed_while_running.remove(key)
            self._wake(key, now)
        elif (delay := self._delay(key, outcome)) is not None:
            self._schedule(key, max(now + delay, self._earliest(key)))
        else:
            for known in (self._groups, self._paced_until, self._slowed):
                known.pop(key, None)

    def pause(self, key: ObjectKey, seconds: float, now: float) -> None:
        """Let a known key run again only after some seconds, even if it changes."""
        if (group := self._groups.get(key)) is not None:
            ahead = (self._timing.burst - 1) * self._timing.pace
            self._paced_until[key] = now + seconds + ahead
            if key in group.ready:
                self._due[key] = self._remove_ready(group, key).since
                self._offer(group)
            if key in self._due:
                self._schedule(key, max(self._due[key], self._earliest(key)))

    def next_due(self) -> float | None:
        """The time at which `take` may next return a key that it does not return now."""
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    @property
    def depth(self) -> int:
        return sum(len(group.ready) for group in self._ready.values())

    @property
    def keys(self) -> set[ObjectKey]:
        ready = (key for group in self._ready.values() for key in group.ready)
        return {*ready, *self._running, *self._due}

    def running_for(self, now: float) -> list[float]:
        return [now - run.since for run in self._running.values()]

    def _earliest(self, key: ObjectKey) -> float:
        """When a key may run again: at once, unless it has run too often."""
        ahead = (self._timing.burst - 1) * self._timing.pace
        return self._paced_until.get(key, -inf) - ahead

    def _note_run(self, key: ObjectKey, now: float) -> bool:
        """Count a run. Returns whether it is the first run of a key that is slowed down."""
        until = self._paced_until.get(key, -inf)
        if until <= now:
            self._slowed.pop(key, None)
        self._paced_until[key] = max(until, now) + self._timing.pace
        is_first = self._slowed.get(key) is False
        if is_first:
            self._slowed[key] = True
        return is_first

    def _wake(self, key: ObjectKey, now: float) -> None:
        """Let a changed key run now, or at the slow pace if it has run too often."""
        earliest = self._earliest(key)
        if earliest <= now:
            self._due.pop(key, None)
            self._set_ready(key, now)
        else:
            self._slowed.setdefault(key, False)
            self._schedule(key, earliest)

    def _is_full_of_slow(self, now: float) -> bool:
        """Whether slow groups use all the workers that they may use."""
        if not self._slow:
            return False
        slow = sum(
            run.group.is_slow or now - run.since > SLOW_SECONDS for run in self._running.values()
        )
        return slow >= self._slow_limit

    def _next_turn(self, heap: list[_Turn]) -> _Turn | None:
        """The first valid turn of a heap. Drops outdated ones."""
        while heap:
            group = self._ready.get(heap[0])
            if group is not None and self._heap_of(group) is heap:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _heap_of(self, group: _Group) -> list[_Turn] | None:
        if group.running >= self._group_limit:
            return None
        return self._slow if group.is_slow else self._quick

    def _offer(self, group: _Group) -> None:
        """Let `take` find the first turn of a group that is below its limit."""
        heap, first = self._heap_of(group), group.first
        if heap is not None and first is not None:
            heapq.heappush(heap, first)

    def _is_ready(self, key: ObjectKey) -> bool:
        group = self._groups.get(key)
        return group is not None and key in group.ready

    def _set_ready(self, key: ObjectKey, since: float) -> None:
        group = self._groups.setdefault(key, _Group(None))
        self._insert_ready(group, key, _Turn(since, next(self._turns)))

    def _insert_ready(self, group: _Group, key: ObjectKey, turn: _Turn) -> None:
        group.ready[key] = turn
        if len(group.ready) == 1:
            self._ready[turn] = group
            self._offer(group)

    def _remove_ready(self, group: _Group, key: ObjectKey) -> _Turn:
        turn = group.ready.pop(key)
        if self._ready.pop(turn, None) is not None and group.first is not None:
            self._ready[group.first] = group
        return turn

    def _delay(self, key: ObjectKey, outcome: Outcome) -> float | None:
        match outcome:
            case Gone():
                return None
            case Failed():
                return self._timing.retry(self._failures[key], self._random)
            case After(seconds):
                return min(seconds, self._timing.resync)
            case Done():
                # With jitter, so that a thousand objects created together do not stay together.
                return self._timing.resync * self._random.uniform(0.9, 1.1)

    def _schedule(self, key: ObjectKey, due: float) -> None:
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + 64:
            # Most resyncs are overtaken by a change hours before they are due.
            self._heap = [(due, key) for key, due in self._due.items()]
            heapq.heapify(self._heap)
