"""The memory for the bodies of all requests to a server.

For a new body, it drops the oldest incomplete one, so that slow clients cost the others nothing.
"""

from typing import Protocol


class OverloadedError(Exception):
    """The bodies of all calls together are above the limit."""


class Reader(Protocol):
    """A call that reads its body."""

    def abort(self, error: type[Exception]) -> None: ...


class BodyBudget:
    """The memory for the large bodies of all calls."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._held: dict[Reader, int] = {}
        self._incomplete: dict[Reader, None] = {}

    def take(self, reader: Reader, size: int) -> None:
        """Take memory for a piece of an incomplete body.

        Raises:
            OverloadedError: Complete bodies use all of it.
        """
        while self._used + size > self._limit:
            oldest = next((other for other in self._incomplete if other is not reader), None)
            if oldest is None:
                raise OverloadedError
            self.release(oldest)
            oldest.abort(OverloadedError)
        self._used += size
        self._held[reader] = self._held.get(reader, 0) + size
        self._incomplete[reader] = None

    def complete(self, reader: Reader) -> None:
        self._incomplete.pop(reader, None)

    def release(self, reader: Reader) -> None:
        self._used -= self._held.pop(reader, 0)
        self._incomplete.pop(reader, None)
