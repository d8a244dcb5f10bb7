"""Reads the body of a request, up to the size that Cluster API sends."""

from collections.abc import Awaitable, Callable
from typing import Any

MAX_BODY_BYTES = 20 * 1024 * 1024
"""What Cluster API's own server takes."""

Receive = Callable[[], Awaitable[Any]]


class BodyTooLargeError(Exception):
    """A body above the limit."""


class ClientGoneError(Exception):
    """The client has left before it said all."""


async def read_body(receive: Receive, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body.

    Raises:
        BodyTooLargeError: it is above the limit. It was received nevertheless, and thrown away:
            a client that is still sending does not listen.
        ClientGoneError: the client hung up.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        # Nearly all bodies come in one piece.
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
            pieces.append(piece)
        else:
            pieces.clear()
        if not message.get("more_body", False):
            if size > limit:
                raise BodyTooLargeError
            return b"".join(pieces)
        message = await receive()
    raise ClientGoneError
