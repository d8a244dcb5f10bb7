"""Reads the body of a request, up to the size that Cluster API sends.

The large bodies of all calls together have a limit too. For a new body, it drops the oldest
incomplete one, so that slow clients cost the others nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from capelin.body_budget import BodyBudget, Reader

MAX_BODY_BYTES = 20 * 1024 * 1024
"""The largest request that Cluster API's own server accepts."""

MAX_TOTAL_BYTES = 10 * MAX_BODY_BYTES
"""The limit for all large bodies in memory."""

Receive = Callable[[], Awaitable[Any]]


class BodyTooLargeError(Exception):
    """A body above the limit."""


class ClientGoneError(Exception):
    """The client disconnected before the body was complete."""


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


def replayed(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body was read."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return pending.pop() if pending else await receive()

    return again
