"""Reads the body of a request, up to the size that Cluster API sends.

The large bodies of all calls together have a limit too. For a new body, it drops the oldest
incomplete one, so that slow clients cost the others nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

MAX_BODY_BYTES = 20 * 1024 * 1024
"""The largest request that Cluster API's own server accepts."""

MAX_TOTAL_BYTES = 10 * MAX_BODY_BYTES
"""The limit for all large bodies in memory."""

Receive = Callable[[], Awaitable[Any]]


class BodyTooLargeError(Exception):
    """A body above the limit."""


class OverloadedError(Exception):
    """The bodies of all calls together are above the limit."""


class ClientGoneError(Exception):
    """The client disconnected before the body was complete."""


class Reader(Protocol):
    """A call that reads its body."""

    def abort(self, error: type[Exception]) -> None: ...


class BodyBudget:
    """The memory for the large bodies of all calls."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
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


async def read_body(
    receive: Receive, reader: Reader, budget: BodyBudget, limit: int = MAX_BODY_BYTES
) -> bytes:
    """Read the whole body.

    Raises:
        BodyTooLargeError: It is above the limit. This received and dropped it, because a client
            that still sends does not read.
        OverloadedError: All calls together are above their limit.
        ClientGoneError: The client disconnected.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        # Nearly all bodies come in one piece, which the connection bounds.
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLargeError
        return body
    pieces: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size <= limit:
            budget.take(reader, len(piece))
            pieces.append(piece)
        else:
            pieces.clear()
            budget.release(reader)
        if not message.get("more_body", False):
            if size > limit:
                raise BodyTooLargeError
            budget.complete(reader)
            return b"".join(pieces)
        message = await receive()
    raise ClientGoneError
