"""How often to look at what takes long to look at, such as a pool of a thousand machines."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from capelin.controller import ObjectKey

_REST = 4.0
"""How much longer than a look the rest after it is."""
_LONGEST_REST = 10.0


class Pace:
    """Has a rest follow each look at a key, longer the longer the look took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[ObjectKey, float] = {}

    def rest(self, key: ObjectKey) -> float:
        """How many seconds not to look at a key yet."""
        return max(0.0, self._until.get(key, 0.0) - self._clock())

    @contextmanager
    def look(self, key: ObjectKey) -> Generator[None]:
        """A look. One that fails is tried again when the queue says so, and has no rest."""
        began = self._clock()
        yield
        now = self._clock()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[key] = now + min(_REST * (now - began), _LONGEST_REST)
