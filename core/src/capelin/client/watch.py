"""Follows what happens to objects, over broken connections and forgotten versions."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import aiohttp

from capelin.client.errors import ApiError, ClientError, Expired, Unreachable, error_of
from capelin.client.shapes import Listing, Shape
from capelin.client.transport import Call, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHORT = 1.0
"""Seconds that a watch has to last, or bring something, to count as one that works."""


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """Something happened to an object. Of one that is gone, `object` is what it was last."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T


async def mirror(
    shape: Shape[T],
    relist: Callable[[], Awaitable[Listing[T]]],
    follow_from: Callable[[str], AsyncGenerator[Event[T]]],
) -> AsyncGenerator[Event[T]]:
    """What is there, as if it were new, and then everything that happens, each once.

    When the server has forgotten where we were, everything is read again, and only what differs
    from what was known becomes an event: nothing is lost, deletions neither.
    """
    known: dict[tuple[str, str], T] = {}
    listing = await relist()
    while True:
        for event in differences(shape, known, listing.items):
            _remember(shape, known, event)
            yield event
        try:
            async with aclosing(follow_from(listing.resource_version)) as events:
                async for event in events:
                    _remember(shape, known, event)
                    yield event
        except Expired:
            listing = await _patiently(relist)


def differences(
    shape: Shape[T], known: Mapping[tuple[str, str], T], items: Iterable[T]
) -> Iterator[Event[T]]:
    """The events that lead from the objects known to the objects that are there now."""
    now = {shape.identity(item).key: item for item in items}
    before = dict(known)
    for key, item in before.items():
        if key not in now or shape.identity(now[key]).uid != shape.identity(item).uid:
            yield Event("DELETED", item)
    for key, item in now.items():
        was = shape.identity(before[key]) if key in before else None
        seen = shape.identity(item)
        if was is None or was.uid != seen.uid:
            yield Event("ADDED", item)
        elif was.version != seen.version:
            yield Event("MODIFIED", item)


def _remember(shape: Shape[T], known: dict[tuple[str, str], T], event: Event[T]) -> None:
    key = shape.identity(event.object).key
    if event.type == "DELETED":
        known.pop(key, None)
    else:
        known[key] = event.object


async def follow(
    transport: Transport, shape: Shape[T], path: str, parameters: Mapping[str, str], since: str
) -> AsyncGenerator[Event[T]]:
    """Everything that happens from version `since` on, each once, for as long as it takes.

    Raises:
        Expired: the server no longer knows what happened since then.
        ApiError: it does not let us watch.
    """
    clock = asyncio.get_running_loop().time
    version, failures = since, 0
    while True:
        began, heard = clock(), False
        try:
            async with transport.stream(_call(path, parameters, version)) as stream:
                async for line in _lines(stream):
                    kind, data = _event(line)
                    version, heard = data["metadata"]["resourceVersion"], True
                    if kind != "BOOKMARK":
                        yield Event(kind, shape.value(data))
        except ClientError as error:
            if not _passes(error):
                raise
            if transport.closed:
                return
            failures = 1 if heard else failures + 1
            log.debug("The watch of %s broke off and goes on: %s", path, error)
        else:
            failures = 0 if heard or clock() - began >= _SHORT else failures + 1
        await asyncio.sleep(pause(failures, random.random()))  # noqa: S311 - spreads load


def pause(failures: int, jitter: float) -> float:
    """Seconds before the next try, after so many in a row that came to nothing."""
    return min(30.0, 0.8 * 2.0 ** (failures - 1)) * (0.5 + jitter / 2) if failures else 0.0


async def _patiently(relist: Callable[[], Awaitable[Listing[T]]]) -> Listing[T]:
    failures = 0
    while True:
        try:
            return await relist()
        except ClientError as error:
            if not _passes(error):
                raise
            failures += 1
        await asyncio.sleep(pause(failures, random.random()))  # noqa: S311 - spreads load


def _passes(error: ClientError) -> bool:
    """Whether waiting may help."""
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status >= 500 or error.status == 429)
    )


def _call(path: str, parameters: Mapping[str, str], version: str) -> Call:
    # The server ends it after a while of its choice within these, so that load can move.
    seconds = random.randint(300, 600)  # noqa: S311 - spreads load
    return Call(
        "GET",
        path,
        {
            **parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        },
    )


async def _lines(stream: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Whole lines of any length. What a broken connection leaves behind is no line."""
    started: list[bytes] = []
    while chunk := await stream.readany():
        first, *rest = chunk.split(b"\n")
        started.append(first)
        for part in rest:
            if line := b"".join(started):
                yield line
            started = [part]


def _event(line: bytes) -> tuple[Any, dict[str, Any]]:
    said: dict[str, Any] = json.loads(line)
    data = cast("dict[str, Any]", said["object"])
    if said["type"] == "ERROR":
        raise error_of(int(data.get("code") or 500), data)
    return said["type"], data
