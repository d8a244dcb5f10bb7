from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from capelin.api import Resource
from capelin.api.core import ConfigMap
from capelin.client import Event, Expired, Forbidden, Unreachable, User
from capelin.client.codecs import codec_of
from capelin.client.watch import backoff, differences

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from core.tests.client.conftest import Scripted

MAPS = Resource("", "v1", "ConfigMap", "configmaps")


def thing(name: str, version: int, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "b", "uid": uid or name, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def happened(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": thing(name, version)}


def bookmark(version: int) -> dict[str, Any]:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


def listing(version: int, *things: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(things)}


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


async def told(events: AsyncIterator[Event[dict[str, Any]]], count: int) -> list[tuple[str, ...]]:
    seen: list[tuple[str, ...]] = []
    async for event in events:
        metadata = event.object["metadata"]
        seen.append((event.type, metadata["name"], metadata["resourceVersion"]))
        if len(seen) == count:
            break
    return seen


def asked_from(server: Scripted) -> list[str]:
    """The versions that watches were asked to begin at."""
    targets = [request.target for request in server.requests]
    return [
        part.removeprefix("resourceVersion=")
        for target in targets
        for part in target.partition("?")[2].split("&")
        if part.startswith("resourceVersion=")
    ]


async def test_what_is_there_comes_first_and_then_what_happens(server: Scripted) -> None:
    server.then(
        server.reply(200, listing(5, thing("a", 3))),
        server.stream(happened("MODIFIED", "a", 6), happened("ADDED", "b", 7)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, "b")) as events:
        assert await told(events, 3) == [
            ("ADDED", "a", "3"),
            ("MODIFIED", "a", "6"),
            ("ADDED", "b", "7"),
        ]
    assert "allowWatchBookmarks=true" in server.requests[1].target
    assert server.requests[1].target.startswith("/api/v1/namespaces/b/configmaps?")


async def test_objects_of_a_class_come_as_that_class(server: Scripted) -> None:
    server.then(server.stream(happened("ADDED", "a", 6)))
    async with server.client() as client:
        async for event in client.watch(ConfigMap, "b", since="5"):
            assert isinstance(event.object, ConfigMap)
            assert event.object.name == "a"
            break


async def test_labels_and_fields_are_chosen_by_the_server(server: Scripted) -> None:
    server.then(server.reply(200, listing(5)), server.stream(happened("ADDED", "a", 6)))
    labels, fields = {"app": "web", "tier": "front"}, "metadata.name=a"
    async with (
        server.client() as client,
        aclosing(client.watch(MAPS, labels=labels, fields=fields)) as events,
    ):
        await told(events, 1)
    for request in server.requests:
        assert "labelSelector=app%3Dweb%2Ctier%3Dfront" in request.target
        assert "fieldSelector=metadata.name%3Da" in request.target


async def test_a_watch_that_ends_goes_on_where_it_was(server: Scripted) -> None:
    server.then(
        server.stream(happened("ADDED", "a", 6), bookmark(9)),
        server.stream(happened("MODIFIED", "a", 12)),
        server.stream(happened("DELETED", "a", 15)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await told(events, 3) == [
            ("ADDED", "a", "6"),
            ("MODIFIED", "a", "12"),
            ("DELETED", "a", "15"),
        ]
    assert asked_from(server) == ["5", "9", "12"]


async def test_a_broken_watch_forgets_its_last_half_line(server: Scripted) -> None:
    half = json.dumps(happened("MODIFIED", "a", 7)).encode()[:40]
    server.then(
        server.stream(happened("ADDED", "a", 6), half, ending=server.hang_up),
        server.hang_up,
        server.failure(503, "ServiceUnavailable"),
        server.stream(happened("MODIFIED", "a", 7)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await told(events, 2) == [("ADDED", "a", "6"), ("MODIFIED", "a", "7")]
    assert asked_from(server) == ["5", "6", "6", "6"]


async def test_a_line_may_come_in_any_pieces_and_any_length(server: Scripted) -> None:
    large = happened("ADDED", "a", 6)
    large["object"]["data"] = {"x": "y" * 600_000}
    data = json.dumps(large).encode() + b"\n" + json.dumps(happened("ADDED", "b", 7)).encode()
    server.then(server.stream(data[:7], data[7:300_000], data[300_000:], b"\n"))
    async with server.client() as client, aclosing(client.watch(MAPS, since="5")) as events:
        assert await told(events, 2) == [("ADDED", "a", "6"), ("ADDED", "b", "7")]


async def test_a_silent_watch_is_taken_for_dead(server: Scripted) -> None:
    server.then(
        server.stream(happened("ADDED", "a", 6), ending=server.say_nothing),
        server.stream(happened("MODIFIED", "a", 7)),
    )
    async with (
        server.client(silence=0.1) as client,
        aclosing(client.watch(MAPS, since="5")) as events,
    ):
        assert await told(events, 2) == [("ADDED", "a", "6"), ("MODIFIED", "a", "7")]
    assert server.connections == 2


@pytest.mark.parametrize("in_stream", [True, False])
async def test_expired_version_ends_the_watch(server: Scripted, *, in_stream: bool) -> None:
    server.then(server.stream(EXPIRED) if in_stream else server.failure(410, "Expired"))
    async with server.client() as client:
        with pytest.raises(Expired):
            await anext(client.watch(MAPS, since="5"))


async def test_after_a_gap_only_what_differs_is_told(server: Scripted) -> None:
    server.then(
        server.reply(200, listing(5, thing("a", 1), thing("b", 2), thing("c", 3))),
        server.stream(happened("ADDED", "d", 6), happened("DELETED", "c", 7), EXPIRED),
        server.reply(500),
        server.reply(200, listing(90, thing("a", 1), thing("b", 80), thing("e", 81))),
        server.stream(happened("DELETED", "e", 91)),
    )
    async with server.client() as client, aclosing(client.watch(MAPS)) as events:
        await told(events, 5)
        assert await told(events, 4) == [
            ("DELETED", "d", "6"),
            ("MODIFIED", "b", "80"),
            ("ADDED", "e", "81"),
            ("DELETED", "e", "91"),
        ]
    assert asked_from(server) == ["5", "90"]


async def test_a_gap_that_may_not_be_filled_ends_the_watch(server: Scripted) -> None:
    server.then(server.reply(200, listing(5)), server.stream(EXPIRED))
    server.then(server.failure(403, "Forbidden"))
    async with server.client() as client:
        with pytest.raises(Forbidden):
            await anext(client.watch(MAPS))


def test_an_object_made_anew_was_deleted_in_between() -> None:
    known = {("b", "a"): thing("a", 1, uid="first")}
    now = [thing("a", 9, uid="second")]
    assert list(differences(codec_of(MAPS), known, now)) == [
        Event("DELETED", known["b", "a"]),
        Event("ADDED", now[0]),
    ]


async def test_a_watch_goes_on_with_a_new_token(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server.then(server.stream(happened("ADDED", "a", 6)), server.failure(401, "Unauthorized"))
    server.then(server.stream(happened("MODIFIED", "a", 7)))
    async with (
        server.client(User(token_file=file)) as client,
        aclosing(client.watch(MAPS, since="5")) as events,
    ):
        await told(events, 1)
        file.write_text("new")
        assert await told(events, 1) == [("MODIFIED", "a", "7")]
    shown = [request.header("Authorization") for request in server.requests]
    assert shown == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_clear_no_ends_the_watch(server: Scripted) -> None:
    server.then(server.failure(403, "Forbidden"))
    async with server.client() as client:
        with pytest.raises(Forbidden):
            await anext(client.watch(MAPS, since="5"))


async def test_a_server_that_never_answered_is_an_error_at_once(server: Scripted) -> None:
    server.then(*[server.hang_up] * 10)
    async with server.client(timeout=0.2) as client:
        with pytest.raises(Unreachable):
            await anext(client.watch(MAPS))


async def test_a_watch_ends_with_its_client(server: Scripted) -> None:
    silent = server.stream(happened("ADDED", "a", 6), ending=server.say_nothing)
    server.then(silent, silent)
    client = server.client()
    idle, read = client.watch(MAPS, since="5"), client.watch(MAPS, since="5")
    assert (await anext(idle)).type == (await anext(read)).type == "ADDED"
    reading = asyncio.create_task(told(read, 1))
    await asyncio.sleep(0)
    await client.close()
    assert await told(idle, 1) == await reading == []


def test_pauses_grow_up_to_half_a_minute_and_spread() -> None:
    assert [backoff(failures, jitter=1) for failures in (0, 1, 2, 3, 20)] == [0, 0.8, 1.6, 3.2, 30]
    assert backoff(1, jitter=0) == 0.4
