from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from capelin.api import Resource
from capelin.api.core import ConfigMap
from capelin.client import (
    Event,
    Expired,
    Forbidden,
    ResponseTooLarge,
    Unreachable,
    UnreadableObject,
    User,
)
from capelin.client.codecs import Listing, codec_of
from capelin.client.watch import backoff, differences, mirror

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from core.tests.client.conftest import Scripted

MAPS = Resource("", "v1", "ConfigMap", "configmaps")


def thing(name: str, version: int, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "b", "uid": uid or name, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def change(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": thing(name, version)}


def bookmark(version: int) -> dict[str, Any]:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


def listing(version: int, *things: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(things)}


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


async def take(events: AsyncIterator[Event[dict[str, Any]]], count: int) -> list[tuple[str, ...]]:
    received: list[tuple[str, ...]] = []
    async for event in events:
        metadata = event.object["metadata"]
        received.append((event.type, metadata["name"], metadata["resourceVersion"]))
        if len(received) == count:
            break
    return received


def start_versions(server: Scripted) -> list[str]:
    """Resource versions at which watches began."""
    targets = [request.target for request in server.requests]
    return [
        part.removeprefix("resourceVersion=")
        for target in targets
        for part in target.partition("?")[2].split("&")
        if part.startswith("resourceVersion=")
    ]


async def test_a_watch_yields_existing_objects_before_changes(server: Scripted) -> None:
    server.then(
        server.reply(200, listing(5, thing("a", 3))),
        server.stream(change("MODIFIED", "a", 6), change("ADDED", "b", 7)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, "b")) as events:
        assert await take(events, 3) == [
            ("ADDED", "a", "3"),
            ("MODIFIED", "a", "6"),
            ("ADDED", "b", "7"),
        ]
    assert "allowWatchBookmarks=true" in server.requests[1].target
    assert server.requests[1].target.startswith("/api/v1/namespaces/b/configmaps?")


async def test_a_watch_of_a_class_yields_its_instances(server: Scripted) -> None:
    server.then(server.stream(change("ADDED", "a", 6)))
    async with server.client() as client:
        async for event in client.watch(ConfigMap, "b", since="5"):
            assert isinstance(event.object, ConfigMap)
            assert event.object.name == "a"
            break


async def test_label_and_field_selectors_are_sent_to_the_server(server: Scripted) -> None:
    server.then(server.reply(200, listing(5)), server.stream(change("ADDED", "a", 6)))
    labels, fields = {"app": "web", "tier": "front"}, "metadata.name=a"
    async with (
        server.client() as client,
        aclosing(client.watch(MAPS, labels=labels, fields=fields)) as events,
    ):
        await take(events, 1)
    for request in server.requests:
        assert "labelSelector=app%3Dweb%2Ctier%3Dfront" in request.target
        assert "fieldSelector=metadata.name%3Da" in request.target


async def test_an_ended_watch_continues_at_its_last_version(server: Scripted) -> None:
    server.then(
        server.stream(change("ADDED", "a", 6), bookmark(9)),
        server.stream(change("MODIFIED", "a", 12)),
        server.stream(change("DELETED", "a", 15)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await take(events, 3) == [
            ("ADDED", "a", "6"),
            ("MODIFIED", "a", "12"),
            ("DELETED", "a", "15"),
        ]
    assert start_versions(server) == ["5", "9", "12"]


async def test_a_broken_watch_discards_an_incomplete_line(server: Scripted) -> None:
    half = json.dumps(change("MODIFIED", "a", 7)).encode()[:40]
    server.then(
        server.stream(change("ADDED", "a", 6), half, ending=server.hang_up),
        server.hang_up,
        server.failure(503, "ServiceUnavailable"),
        server.stream(change("MODIFIED", "a", 7)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await take(events, 2) == [("ADDED", "a", "6"), ("MODIFIED", "a", "7")]
    assert start_versions(server) == ["5", "6", "6", "6"]


async def test_a_line_may_have_any_length_and_arrive_in_pieces(server: Scripted) -> None:
    large = change("ADDED", "a", 6)
    large["object"]["data"] = {"x": "y" * 600_000}
    data = json.dumps(large).encode() + b"\n" + json.dumps(change("ADDED", "b", 7)).encode()
    server.then(server.stream(data[:7], data[7:300_000], data[300_000:], b"\n"))
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await take(events, 2) == [("ADDED", "a", "6"), ("ADDED", "b", "7")]


async def test_a_silent_watch_reconnects(server: Scripted) -> None:
    server.then(
        server.stream(change("ADDED", "a", 6), ending=server.stay_silent),
        server.stream(change("MODIFIED", "a", 7)),
    )
    async with (
        server.client(silence=0.1) as client,
        aclosing(client.watch(MAPS, since="5")) as events,
    ):
        assert await take(events, 2) == [("ADDED", "a", "6"), ("MODIFIED", "a", "7")]
    assert server.connections == 2


@pytest.mark.parametrize("in_stream", [True, False])
async def test_expired_version_ends_the_watch(server: Scripted, *, in_stream: bool) -> None:
    server.then(server.stream(EXPIRED) if in_stream else server.failure(410, "Expired"))
    async with server.client() as client:
        with pytest.raises(Expired):
            await anext(client.watch(MAPS, since="5"))


async def test_a_watch_yields_only_differences_after_a_gap(server: Scripted) -> None:
    server.then(
        server.reply(200, listing(5, thing("a", 1), thing("b", 2), thing("c", 3))),
        server.stream(change("ADDED", "d", 6), change("DELETED", "c", 7), EXPIRED),
        server.reply(500),
        server.reply(200, listing(90, thing("a", 1), thing("b", 80), thing("e", 81))),
        server.stream(change("DELETED", "e", 91)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS)) as events:
        await take(events, 5)
        assert await take(events, 4) == [
            ("DELETED", "d", "6"),
            ("MODIFIED", "b", "80"),
            ("ADDED", "e", "81"),
            ("DELETED", "e", "91"),
        ]
    assert start_versions(server) == ["5", "90"]


async def test_a_forbidden_list_after_a_gap_ends_the_watch(server: Scripted) -> None:
    server.then(server.reply(200, listing(5)), server.stream(EXPIRED))
    server.then(server.failure(403, "Forbidden"))
    async with server.client() as client:
        with pytest.raises(Forbidden):
            await anext(client.watch(MAPS))


async def test_an_unreadable_object_that_was_never_known_is_deleted_once(
    server: Scripted,
) -> None:
    broken = change("DELETED", "a", 6)
    broken["object"]["data"] = ["no", "map"]
    server.then(server.reply(200, listing(5)), server.stream(broken, change("ADDED", "b", 7)))
    unreadable: list[Event[UnreadableObject]] = []
    async with (
        server.client() as client,
        aclosing(client.watch(ConfigMap, on_unreadable=unreadable.append)) as events,
    ):
        event = await anext(events)
    assert (event.type, event.object.name) == ("ADDED", "b")
    assert [(it.type, it.object.name) for it in unreadable] == [("DELETED", "a")]


async def test_failed_lists_after_a_gap_wait_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    outcomes: list[Exception | Listing[dict[str, Any]]] = [
        Listing([], "1"),
        *(Unreachable("it does not answer") for _ in range(3)),
        Listing([thing("a", 2)], "2"),
    ]

    async def relist() -> Listing[dict[str, Any]]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def expired(_: str) -> AsyncGenerator[Event[dict[str, Any] | UnreadableObject]]:
        raise Expired(410, "Expired", "too old")
        yield Event("ADDED", {})

    monkeypatch.setattr("capelin.client.watch.asyncio.sleep", pause)
    async with aclosing(mirror(codec_of(MAPS), relist, expired)) as events:
        assert await anext(events) == Event("ADDED", thing("a", 2))
    assert [first <= it <= 2 * first for first, it in zip((0.4, 0.8, 1.6), pauses, strict=True)]


def test_a_recreated_object_yields_a_deletion_and_an_addition() -> None:
    known = {("b", "a"): thing("a", 1, uid="first")}
    now = [thing("a", 9, uid="second")]
    assert list(differences(codec_of(MAPS), known, now)) == [
        Event("DELETED", known["b", "a"]),
        Event("ADDED", now[0]),
    ]


async def test_a_watch_continues_with_a_new_token(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server.then(server.stream(change("ADDED", "a", 6)), server.failure(401, "Unauthorized"))
    server.then(server.stream(change("MODIFIED", "a", 7)))
    async with (
        server.client(User(token_file=file)) as client,
        aclosing(client.watch(MAPS, since="5")) as events,
    ):
        await take(events, 1)
        file.write_text("new")
        assert await take(events, 1) == [("MODIFIED", "a", "7")]
    shown = [request.header("Authorization") for request in server.requests]
    assert shown == ["Bearer old", "Bearer old", "Bearer new"]


async def test_an_error_without_a_code_restarts_the_watch(server: Scripted) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status"}}
    server.then(server.stream(error), server.stream(change("ADDED", "a", 6)))
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await take(events, 1) == [("ADDED", "a", "6")]
    assert start_versions(server) == ["5", "5"]


async def test_a_line_with_too_many_values_ends_the_watch(server: Scripted) -> None:
    crowded = change("ADDED", "a", 6)
    crowded["object"]["data"] = {str(number): "" for number in range(2000)}
    server.then(server.stream(crowded))
    async with server.client(max_bytes=32_000) as client:
        with pytest.raises(ResponseTooLarge, match="a line of a watch"):
            await anext(client.watch(MAPS, since="5"))


async def test_a_forbidden_watch_ends(server: Scripted) -> None:
    server.then(server.failure(403, "Forbidden"))
    async with server.client() as client:
        with pytest.raises(Forbidden):
            await anext(client.watch(MAPS, since="5"))


async def test_a_watch_fails_if_the_first_request_fails(server: Scripted) -> None:
    server.then(*[server.hang_up] * 10)
    async with server.client(timeout=0.2) as client:
        with pytest.raises(Unreachable):
            await anext(client.watch(MAPS))


async def test_a_watch_ends_with_its_client(server: Scripted) -> None:
    silent = server.stream(change("ADDED", "a", 6), ending=server.stay_silent)
    server.then(silent, silent)
    client = server.client()
    idle, read = client.watch(MAPS, since="5"), client.watch(MAPS, since="5")
    assert (await anext(idle)).type == (await anext(read)).type == "ADDED"
    reading = asyncio.create_task(take(read, 1))
    await asyncio.sleep(0)
    await client.close()
    assert await take(idle, 1) == await reading == []


def test_pauses_grow_up_to_half_a_minute_with_jitter() -> None:
    assert [backoff(failures, jitter=1) for failures in (0, 1, 2, 3, 20)] == [0, 0.8, 1.6, 3.2, 30]
    assert backoff(1, jitter=0) == 0.4
