"""The lists and events of one kind, for the cache and for all reconcilers that watch it.

A source delivers them, for example `Watching` from kopf. An informer does not know which one. A
source may begin again with a list at any time: whatever happened before, nothing is missed.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from capelin.api import Resource
from capelin.backoff import exponential_delay
from capelin.client import Delivered, Feed
from capelin.controller.reconciler import Subscription, looks_inside, selector

_FIRST_PAUSE: Final = 0.8
_LONGEST_PAUSE: Final = 30.0


class Listed(NamedTuple):
    """An object of a list."""

    uid: str
    version: Delivered


@dataclass(slots=True)
class Informer:
    """Call its methods in the event loop of the manager, except for `listed`."""

    resource: Resource
    feed: Feed
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    _uids: set[str] = field(default_factory=set[str])

    @property
    def is_inside(self) -> bool:
        """Whether the source delivers whole objects. Otherwise it may deliver only metadata."""
        return any(looks_inside(subscription.watch) for subscription in self.subscriptions)

    @property
    def selector(self) -> str:
        """The label selector that all subscriptions have in common, or an empty one."""
        selectors = {selector(subscription.watch.labels) for subscription in self.subscriptions}
        return selectors.pop() if len(selectors) == 1 else ""

    def listed(self, items: Iterable[Mapping[str, Any]]) -> list[Listed]:
        """The objects of a page. Call this in any thread."""
        return [
            Listed(str(item["metadata"].get("uid")), self.feed.delivered(item)) for item in items
        ]

    def add_page(self, page: Iterable[Listed], *, is_first: bool, is_last: bool) -> None:
        """A page of a list. After the last one, objects that it does not contain are deleted."""
        if is_first:
            self._uids = set()
            self.feed.restart()
        for uid, version in page:
            self._uids.add(uid)
            self.feed.deliver([version])
        if is_last:
            uids, self._uids = self._uids, set()
            for subscription in self.subscriptions:
                subscription.queue.listed(subscription.watch, uids)

    def changed(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """An object was listed, created, changed or deleted."""
        for subscription in self.subscriptions:
            subscription.queue.changed(subscription.watch, body, deleted=deleted)


class Attempts:
    """The failures of a watch in a row, and the pauses between its attempts."""

    def __init__(self) -> None:
        self.failures = 0
        self.problem = ""

    def failed(self, problem: str) -> bool:
        """Whether this problem is new."""
        is_new = problem != self.problem
        self.failures += 1
        self.problem = problem
        return is_new

    def worked(self) -> None:
        self.failures, self.problem = 0, ""

    async def pause(self) -> None:
        delay = exponential_delay(self.failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - spreads load
