"""Watches objects, across broken connections and expired versions."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import aiohttp

from capelin.backoff import exponential_delay
from capelin.client.codecs import Codec, Listing
from capelin.client.errors import ApiError, ClientError, Expired, Unreachable, Unreadable, error_of
from capelin.client.transport import Request, Transport
from capelin.client.unreadable import UnreadableObject
from capelin.json_text import TooDeepError, members, metadata_of, read_json

log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MIN_SECONDS = 1.0
"""A shorter watch without an event counts as a failure."""


@dataclass(frozen=True, slots=True)
class Event(Generic[T_co]):
    """An event of a watch. `object` of `DELETED` is its last known state."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T_co


OnUnreadable = Callable[[Event[UnreadableObject]], None]
"""Called for each event of an unreadable object, in order with the other events."""


async def mirror(
    codec: Codec[T],
    relist: Callable[[], Awaitable[Listing[T]]],
    follow_from: Callable[[str], AsyncGenerator[Event[T | UnreadableObject]]],
) -> AsyncGenerator[Event[T | UnreadableObject]]:
    """Existing objects as `ADDED`, and then each event once.

    After `Expired`, list again. The differences from the known objects become events, deletions
    included. An object that is no longer readable keeps its last readable state until it is
    deleted.
    """
    known: dict[tuple[str, str], T] = {}
    listing = await relist()
    while True:
        for unreadable in listing.unreadable:
            yield Event("MODIFIED", unreadable)
        for event in differences(codec, known, listing.items, listing.unreadable):
            _remember(codec, known, event)
            yield event
        try:
            async with aclosing(follow_from(listing.resource_version)) as events:
                async for event in events:
                    yield event
                    if not isinstance(event.object, UnreadableObject):
                        _remember(codec, known, cast("Event[T]", event))
                    elif event.type == "DELETED" and event.object.key in known:
                        yield Event("DELETED", known.pop(event.object.key))
        except Expired:
            listing = await _list_with_retries(relist)


async def only_readable(
    events: AsyncGenerator[Event[T | UnreadableObject]], on_unreadable: OnUnreadable
) -> AsyncGenerator[Event[T]]:
    """Pass on the events of readable objects, and report the others."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event.object, UnreadableObject):
                on_unreadable(cast("Event[UnreadableObject]", event))
            else:
                yield cast("Event[T]", event)


def differences(
    codec: Codec[T],
    known: Mapping[tuple[str, str], T],
    items: Iterable[T],
    unreadable: Iterable[UnreadableObject] = (),
) -> Iterator[Event[T]]:
    """The events that change the known objects into the listed ones."""
    now = {codec.identity(item).key: item for item in items}
    unread = {item.key: item.uid for item in unreadable}
    before = dict(known)
    for key, item in before.items():
        uid = codec.identity(item).uid
        listed = codec.identity(now[key]).uid if key in now else unread.get(key)
        if listed != uid:
            yield Event("DELETED", item)
    for key, item in now.items():
        was = codec.identity(before[key]) if key in before else None
        identity = codec.identity(item)
        if was is None or was.uid != identity.uid:
            yield Event("ADDED", item)
        elif was.version != identity.version:
            yield Event("MODIFIED", item)


def _remember(codec: Codec[T], known: dict[tuple[str, str], T], event: Event[T]) -> None:
    key = codec.identity(event.object).key
    if event.type == "DELETED":
        known.pop(key, None)
    else:
        known[key] = event.object


async def follow(
    transport: Transport, codec: Codec[T], path: str, parameters: Mapping[str, str], since: str
) -> AsyncGenerator[Event[T | UnreadableObject]]:
    """Each event after version `since` once, across broken connections.

    Raises:
        Expired: The server no longer has the events since then.
        ApiError: The server rejects the watch.
    """
    clock = asyncio.get_running_loop().time
    version, failures = since, 0
    while True:
        started, received = clock(), False
        try:
            async with transport.stream(_watch_request(path, parameters, version)) as stream:
                async for line in _lines(stream, transport):
                    event = _event(codec, line)
                    version, received = event.version or version, True
                    if event.object is not None:
                        yield Event(cast("Any", event.type), event.object)
        except ClientError as error:
            if not _is_transient(error):
                raise
            if transport.closed:
                return
            failures = 1 if received else failures + 1
            log.debug("The watch of %s broke off and is restarted: %s", path, error)
        else:
            failures = 0 if received or clock() - started >= _MIN_SECONDS else failures + 1
        await asyncio.sleep(backoff(failures, random.random()))  # noqa: S311 - spreads load


def backoff(failures: int, jitter: float) -> float:
    return exponential_delay(failures, first=0.8, longest=30.0) * (0.5 + jitter / 2)


async def _list_with_retries(relist: Callable[[], Awaitable[Listing[T]]]) -> Listing[T]:
    failures = 0
    while True:
        try:
            return await relist()
        except ClientError as error:
            if not _is_transient(error):
                raise
            failures += 1
        await asyncio.sleep(backoff(failures, random.random()))  # noqa: S311 - spreads load


def _is_transient(error: ClientError) -> bool:
    """Whether waiting may help."""
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status >= 500 or error.status == 429)
    )


def _watch_request(path: str, parameters: Mapping[str, str], version: str) -> Request:
    # A random end, so that watches do not all restart at once.
    seconds = random.randint(300, 600)  # noqa: S311 - spreads load
    return Request(
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


async def _lines(stream: aiohttp.StreamReader, transport: Transport) -> AsyncGenerator[bytes]:
    """Complete lines. Drops the incomplete last line of a broken connection."""
    pending: list[bytes] = []
    size = 0
    while chunk := await stream.readany():
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > transport.max_bytes:
            raise transport.too_large("a line of a watch", transport.max_bytes)
        for part in rest:
            if line := b"".join(pending):
                transport.check_values("a line of a watch", line)
                yield line
            pending, size = [part], len(part)


@dataclass(frozen=True, slots=True)
class _Line(Generic[T]):
    """One line of a watch. A bookmark has no object."""

    type: str
    version: str
    object: T | UnreadableObject | None


def _event(codec: Codec[T], line: bytes) -> _Line[T]:
    try:
        try:
            event: dict[str, Any] = read_json(line)
        except TooDeepError as error:
            parts = dict(members(line))
            unreadable = UnreadableObject.of(
                codec.resource, metadata_of(parts["object"]), str(error)
            )
            return _Line(str(read_json(parts["type"])), unreadable.version, unreadable)
        kind, data = str(event["type"]), cast("dict[str, Any]", event["object"])
        if kind == "ERROR":
            raise error_of(int(data.get("code") or 500), data)
        metadata = cast("dict[str, Any]", data["metadata"])
        version = str(metadata["resourceVersion"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable(f"a watch of {codec.resource.plural} sent no event") from None
    if kind == "BOOKMARK":
        return _Line(kind, version, None)
    try:
        return _Line(kind, version, codec.decode_value(data))
    except Unreadable as error:
        return _Line(kind, version, error.object)
