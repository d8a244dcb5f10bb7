"""Which key is next, and when: every decision of the work queue, without a clock of its own.

A key is in one of three places: ready (something changed), running, or due later (it failed, it
asked for it, or its periodic resync comes). It leaves only when its object is gone.

Keys may belong to groups. Only so many keys of one group run at the same time.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from random import Random
from typing import NamedTuple

from capelin.backoff import exponential_delay


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
    """Look again after so many seconds, even if nothing changes."""

    seconds: float

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"After({self.seconds}) is not a time to wait; give seconds above 0")


Result = Done | After
"""How a reconcile ends that did not fail. A failure is an exception."""


def backoff_for(waited: timedelta, *, least: float = 1.0, most: float = 60.0) -> After:
    """When to look again at something that tells nobody when it is ready.

    A tenth of the time already waited: quick while the answer may come any moment, sparing when
    it clearly takes longer. Take `waited` from a condition's transition time, so that it outlives
    the process.
    """
    return After(min(max(waited.total_seconds() / 10, least), most))


@dataclass(frozen=True, slots=True)
class Failed:
    """The reconcile raised."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such object any more, so there is nothing to remember either."""


Outcome = Done | After | Failed | Gone


class Taken(NamedTuple):
    """A key that is now running, and how long it had been ready."""

    key: ObjectKey
    waited: float


@dataclass(frozen=True, slots=True)
class Timing:
    """The queue's delays, in seconds."""

    first_retry: float = 0.005
    longest_retry: float = 300.0
    resync: float = 36_000.0

    def retry(self, failures: int, random: Random) -> float:
        """The wait after so many failures in a row: doubling, with a fifth of jitter."""
        delay = exponential_delay(failures, first=self.first_retry, longest=self.longest_retry)
        return delay * random.uniform(0.8, 1.2)


class _Run(NamedTuple):
    """Since when a key runs, and the group that it counts for."""

    since: float
    group: Hashable


class Queue:
    """The keys of one reconciler. `now` is any clock that only goes forward.

    Args:
        timing: the delays.
        random: spreads delays.
        group_limit: how many keys of a group may run at the same time.
    """

    def __init__(self, timing: Timing, random: Random, *, group_limit: int | None = None) -> None:
        self.adds = 0
        self.retries = 0
        self._timing = timing
        self._random = random
        self._group_limit = group_limit
        self._groups: dict[ObjectKey, Hashable] = {}
        # By group, and in each in the order in which they became ready.
        self._ready: dict[Hashable, OrderedDict[ObjectKey, float]] = {}
        self._running: dict[ObjectKey, _Run] = {}
        self._running_of: Counter[Hashable] = Counter()
        self._changed_while_running: set[ObjectKey] = set()
        self._due: dict[ObjectKey, float] = {}
        # May hold entries that `_due` no longer agrees with: those are passed over.
        self._heap: list[tuple[float, ObjectKey]] = []
        self._failures: dict[ObjectKey, int] = {}

    def add(self, key: ObjectKey, now: float) -> None:
        """Something changed: reconcile this key as soon as its turn comes."""
        if key in self._running:
            if key not in self._changed_while_running:
                self._changed_while_running.add(key)
                self.adds += 1
        elif not self._is_ready(key):
            self._due.pop(key, None)
            self._set_ready(key, now)
            self.adds += 1

    def set_group(self, key: ObjectKey, group: Hashable) -> None:
        """Note the group of a key, such as its cluster; None if it has none."""
        if self._groups.get(key) == group:
            return
        since = self._remove_ready(key)
        if group is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = group
        if since is not None:
            self._set_ready(key, since)

    def add_all(self, now: float) -> None:
        """Anything may have changed: reconcile every key that is known."""
        for key in [*self._due, *self._running]:
            self.add(key, now)

    def retry_soon(self, now: float, within: float) -> None:
        """What made keys fail is over: try them again now, spread over a few seconds."""
        for key in self._failures.keys() & self._due.keys():
            self._schedule(key, min(self._due[key], now + self._random.uniform(0, within)))

    def take(self, now: float) -> Taken | None:
        """The next key to run: first come first served, but for groups that are at their limit."""
        while (due := self.next_due()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._set_ready(key, due)
        groups = [group for group in self._ready if self._has_room(group)]
        if not groups:
            return None
        first = min(groups, key=lambda group: next(iter(self._ready[group].values())))
        key, since = next(iter(self._ready[first].items()))
        self._remove_ready(key)
        self._running[key] = _Run(now, first)
        self._running_of[first] += 1
        return Taken(key, now - since)

    def finish(self, key: ObjectKey, outcome: Outcome, now: float) -> None:
        """Note how a running key ended, and with that when its next turn is."""
        group = self._running.pop(key).group
        self._running_of[group] -= 1
        if not self._running_of[group]:
            del self._running_of[group]
        if isinstance(outcome, Failed):
            self._failures[key] = self._failures.get(key, 0) + 1
            self.retries += 1
        else:
            self._failures.pop(key, None)
        if key in self._changed_while_running:
            self._changed_while_running.remove(key)
            self._set_ready(key, now)
        elif (delay := self._delay(key, outcome)) is not None:
            self._schedule(key, now + delay)
        else:
            self._groups.pop(key, None)

    def next_due(self) -> float | None:
        """When `take` will next have something that it does not have now."""
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    @property
    def depth(self) -> int:
        """How many keys are ready and wait for a worker."""
        return sum(map(len, self._ready.values()))

    @property
    def keys(self) -> set[ObjectKey]:
        """Every key that the queue knows."""
        ready = (key for keys in self._ready.values() for key in keys)
        return {*ready, *self._running, *self._due}

    def running_for(self, now: float) -> list[float]:
        """How long each running key has been running."""
        return [now - run.since for run in self._running.values()]

    def _has_room(self, group: Hashable) -> bool:
        limit = self._group_limit
        return group is None or limit is None or self._running_of[group] < limit

    def _is_ready(self, key: ObjectKey) -> bool:
        keys = self._ready.get(self._groups.get(key))
        return keys is not None and key in keys

    def _set_ready(self, key: ObjectKey, since: float) -> None:
        self._ready.setdefault(self._groups.get(key), OrderedDict())[key] = since

    def _remove_ready(self, key: ObjectKey) -> float | None:
        """Take a key out and return since when it was ready, or None if it was not."""
        group = self._groups.get(key)
        keys = self._ready.get(group)
        since = None if keys is None else keys.pop(key, None)
        if keys is not None and not keys:
            del self._ready[group]
        return since

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
