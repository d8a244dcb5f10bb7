"""Explains the clusters that need attention, a few at a time, while a page is open."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from capelin.client import Client, ClientError
from capelin_embedded.management import Environment

from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_cli.ui.observed import Key
from capelin_cli.ui.store import Entry, Store
from capelin_cli.ui.views import summary

log = logging.getLogger(__name__)

_AT_ONCE: Final = 1
_LOOK_SECONDS: Final = 0.5
_AFTER_CHANGE: Final = 2.0
"""Seconds between two explanations of a cluster that changes."""
_AGAIN: Final = 15.0
"""Seconds after which an explanation is old, although the cluster did not change."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The last explanation of a cluster."""

    number: int
    """The cluster's number in the store at that time."""
    at: float
    """Seconds of a monotonic clock."""


def due(entries: Iterable[Entry], last: Mapping[Key, Explained], now: float) -> list[Key]:
    """The clusters to explain now, those that waited longest first."""
    found: list[tuple[float, Key]] = []
    for entry in entries:
        before = last.get(entry.key)
        if before is None:
            found.append((0.0, entry.key))
            continue
        least = _AFTER_CHANGE if entry.changed > before.number else _AGAIN
        if now - before.at >= least:
            found.append((before.at, entry.key))
    return [key for _, key in sorted(found)]


class Explainer:
    """Keeps the explanations in a store current."""

    def __init__(self, client: Client, store: Store, environment: Environment | None) -> None:
        self._client = client
        self._store = store
        self._environment = environment
        self._last: dict[Key, Explained] = {}
        self.viewers = 0
        """The number of open pages."""

    async def run(self) -> None:
        """Explain until the caller cancels."""
        while True:
            if self.viewers:
                await self._explain_due()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _explain_due(self) -> None:
        waiting: list[Entry] = []
        for entry in self._store.shown():
            shown = summary(self._store, entry)
            if shown.paused or shown.state not in {"good", "asleep"}:
                waiting.append(entry)
            else:
                self._last.pop(entry.key, None)
                self._store.explain(entry.key, None)
        self._last = {key: self._last[key] for key in self._last if key in self._store.entries}
        now = asyncio.get_running_loop().time()
        for start in range(0, len(keys := due(waiting, self._last, now)), _AT_ONCE):
            await asyncio.gather(*map(self._explain, keys[start : start + _AT_ONCE]))

    async def _explain(self, key: Key) -> None:
        namespace, name = key
        explanation = None
        try:
            facts = await read_facts(self._client, name, namespace, self._environment)
            explanation = explain(facts) if facts else None
        except (ClientError, TimeoutError) as error:
            log.debug("%s/%s cannot be explained now: %s", namespace, name, error)
        if explanation is not None:
            self._store.explain(key, explanation)
            await self._store.announce()
        entry = self._store.entries.get(key)
        now = asyncio.get_running_loop().time()
        self._last[key] = Explained(entry.changed if entry else 0, now)
