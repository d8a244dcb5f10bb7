"""The results that hooks create: at once, or behind their answers.

An immediate action needs no result for its answer: another call or replica gives the same one. So
Cluster API does not wait for the result.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin.client import AlreadyExists, Client, ClientError, Unavailable, Unreachable
from capelin.controller import ObjectKey

from capelin_lifecycle.policies.clusters import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.reconcilers.records import new_result

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PendingResult:
    """The data of a result before its creation, kept small: thousands may wait."""

    policy: KnownPolicy
    name: str
    occurrence: Occurrence
    now: datetime
    done: str | None = None

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.occurrence.namespace, self.name)


class PendingResults:
    """Results that are about to be created, in the order in which they came."""

    def __init__(self) -> None:
        self._results: dict[ObjectKey, PendingResult] = {}
        self._added = asyncio.Event()
        self._created = asyncio.Event()
        self._created.set()

    def add(self, result: PendingResult) -> None:
        """Create a result soon, unless it exists by then."""
        self._results.setdefault(result.key, result)
        self._added.set()
        self._created.clear()

    @property
    def waiting(self) -> tuple[PendingResult, ...]:
        """The results that were not created yet."""
        return tuple(self._results.values())

    async def all_created(self) -> None:
        """Wait until there is none left."""
        await self._created.wait()

    async def create(self, client: Client) -> None:
        """Create results one after the other, until cancelled."""
        while True:
            await self._added.wait()
            while self._results:
                pending = next(iter(self._results.values()))
                result = new_result(
                    pending.policy, pending.name, pending.occurrence, pending.now, pending.done
                )
                try:
                    await client.create(result)
                except AlreadyExists:
                    pass
                except (Unreachable, Unavailable) as error:
                    log.info("Result %s is created later: %s", pending.key, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                except ClientError as error:
                    log.warning("Result %s cannot be created: %s", pending.key, error)
                del self._results[pending.key]
            self._added.clear()
            self._created.set()
