"""What many machines ask for at the same time, such as their Cluster."""

import time
from collections.abc import Callable
from typing import TypeVar

from capelin.api import BaseObject
from capelin.client import Client

ObjectT = TypeVar("ObjectT", bound=BaseObject)

_FRESH_SECONDS = 1.0


class Recent:
    """Reads an object once a second at most, however many ask for it."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[tuple[type[BaseObject], str | None, str], tuple[float, object]] = {}

    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = None
    ) -> ObjectT | None:
        """The object as it was within the last second, or nothing if there was none."""
        key = (kind, namespace, name)
        began = self._clock()
        self._found = {
            key: found for key, found in self._found.items() if began - found[0] < _FRESH_SECONDS
        }
        if key in self._found:
            _, found = self._found[key]
            return found if isinstance(found, kind) else None
        found = await self._client.find(kind, name, namespace)
        self._found[key] = began, found
        return found
