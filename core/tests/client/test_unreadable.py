"""Unreadable objects do not stop lists and watches of the others."""

from __future__ import annotations

import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import pytest
from capelin.api import Resource
from capelin.api.core import ConfigMap
from capelin.client import Event, Unreadable
from capelin.client.unreadable import UnreadableObject
from capelin.json_text import TooDeepError, items, levels, members, metadata_of, read_json
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from core.tests.client.conftest import Scripted

MAPS = Resource("", "v1", "ConfigMap", "configmaps")
DEEP = b'{"a":' * 1100 + b"1" + b"}" * 1100


def config_map(name: str, version: int = 1, **fields: Any) -> bytes:
    metadata = {"name": name, "namespace": "b", "uid": name, "resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, **fields}).encode()


def deep_config_map(name: str, version: int = 1) -> bytes:
    """A ConfigMap with 1,100 levels, also in its managed fields, which come before its name."""
    fields = b'"managedFields":[{"fieldsV1":' + DEEP + b"}],"
    text = config_map(name, version).replace(b'{"metadata": {', b'{"metadata": {' + fields)
    return text[:-1] + b',"data":' + DEEP + b"}"


def page(*objects: bytes) -> bytes:
    return b'{"metadata":{"resourceVersion":"5"},"items":[' + b",".join(objects) + b"]}"


def event(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


WRONG_TYPE = config_map("wrong", data={"key": ["secret-value"]})


@pytest.mark.parametrize("kind", [ConfigMap, MAPS])
async def test_list_separates_unreadable_items(server: Scripted, kind: Any) -> None:
    sent = page(config_map("a"), deep_config_map("deep", 7), config_map("z"))
    server.then(server.reply(200, sent))
    async with server.client() as client:
        listing = await client.list(kind)
    objects = [item.dump() if isinstance(item, ConfigMap) else item for item in listing.items]
    assert [item["metadata"]["name"] for item in objects] == ["a", "z"]
    assert listing.resource_version == "5"
    assert listing.unreadable == (
        UnreadableObject(MAPS, "b", "deep", "deep", "7", "it has more than 200 nested levels"),
    )


async def test_errors_of_items_contain_no_values(
    server: Scripted,
) -> None:
    server.then(server.reply(200, page(config_map("a"), WRONG_TYPE, config_map("z"))))
    async with server.client() as client:
        listing = await client.list(ConfigMap)
    assert [item.name for item in listing.items] == ["a", "z"]
    (unreadable,) = listing.unreadable
    assert unreadable.reason == "data.key: Input should be a valid string"


async def test_an_unreadable_object_is_logged_once(
    server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reply = server.reply(200, page(deep_config_map("deep"), WRONG_TYPE))
    server.then(reply, reply, server.stream(event("MODIFIED", deep_config_map("deep", 2))))
    async with server.client() as client:
        await client.list(ConfigMap)
        assert [item async for item in client.iterate(ConfigMap)] == []
        server.then(server.failure(403, "Forbidden"))
        with pytest.raises(Exception, match="Forbidden"):
            await anext(client.watch(ConfigMap, since="1"))
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "capelin.client.unreadable"
    ] == [
        (
            "ConfigMap b/deep cannot be read and is skipped until it changes: "
            "it has more than 200 nested levels"
        ),
        (
            "ConfigMap b/wrong cannot be read and is skipped until it changes: "
            "data.key: Input should be a valid string"
        ),
    ]


@pytest.mark.parametrize("bad", [deep_config_map("bad", 6), config_map("bad", 6, data=["x"])])
async def test_a_watch_continues_after_an_unreadable_object(server: Scripted, bad: bytes) -> None:
    reported: list[Event[UnreadableObject]] = []
    server.then(
        server.stream(event("ADDED", bad), event("ADDED", config_map("a", 7))),
    )
    async with (
        server.client() as client,
        aclosing(client.watch(ConfigMap, since="5", on_unreadable=reported.append)) as events,
    ):
        readable = await anext(events)
    assert readable.object.name == "a"
    assert [(item.type, item.object.key, item.object.version) for item in reported] == [
        ("ADDED", ("b", "bad"), "6")
    ]


async def test_unreadable_object_is_not_deleted(
    server: Scripted,
) -> None:
    expired = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
    server.then(
        server.reply(200, page(config_map("a"), config_map("b"))),
        server.stream(event("MODIFIED", deep_config_map("a", 6)), expired),
        server.reply(200, page(deep_config_map("a", 6), config_map("c", 7))),
        server.stream(event("DELETED", deep_config_map("a", 8))),
    )
    reported: list[Event[UnreadableObject]] = []
    async with (
        server.client() as client,
        aclosing(client.watch(ConfigMap, on_unreadable=reported.append)) as events,
    ):
        received = [
            (item.type, item.object.name) for item in [await anext(events) for _ in range(5)]
        ]
    assert received == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("DELETED", "b"),
        ("ADDED", "c"),
        ("DELETED", "a"),
    ]
    assert [item.type for item in reported] == ["MODIFIED", "MODIFIED", "DELETED"]


async def test_a_watch_that_sends_no_events_fails_as_unreadable(server: Scripted) -> None:
    server.then(server.stream(b"garbage\n"))
    async with server.client() as client:
        with pytest.raises(Unreadable, match="sent no event"):
            await anext(client.watch(ConfigMap, since="5"))


@pytest.mark.parametrize("kind", [ConfigMap, MAPS])
async def test_reading_a_deep_object_fails_as_unreadable(server: Scripted, kind: Any) -> None:
    server.then(server.reply(200, deep_config_map("deep")))
    async with server.client() as client:
        with pytest.raises(Unreadable, match="more than 200 nested levels"):
            await client.get(kind, "deep", "b")


async def test_deep_responses_are_client_errors(
    server: Scripted,
) -> None:
    server.then(server.reply(200, DEEP), server.reply(422, DEEP))
    async with server.client() as client:
        with pytest.raises(Unreadable, match="more than 200 nested levels"):
            await client.request("GET", "/version")
        with pytest.raises(Exception, match="422"):
            await client.request("GET", "/version")


def test_parts_of_json_are_located_without_parsing_them() -> None:
    text = rb' { "a" : [1, {"b":"}]\"\\"}] ,"":null,"\u00e9":-1.5e3 } '
    assert [(part.key, part.value) for part in members(text)] == [
        ("a", rb'[1, {"b":"}]\"\\"}]'),
        ("", b"null"),
        ("é", b"-1.5e3"),
    ]
    assert list(items(rb'[ "a,]", {"b":[]} ,3]')) == [b'"a,]"', b'{"b":[]}', b"3"]
    assert list(items(b"null")) == list(items(b" [ ] ")) == []


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":[}', b"3", b'{"a" 1}']
)
def test_parts_of_broken_json_are_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        list(members(text))


def test_large_values_are_skipped_quickly_and_at_any_depth() -> None:
    escapes = b'"' + rb"\"" * 1_000_000 + b'"'
    levels = b"[" * 1_000_000 + b"]" * 1_000_000
    text = b'{"spec":' + levels + b',"x":' + escapes + b',"metadata":{"name":"n"}}'
    assert metadata_of(text) == {"name": "n"}


def test_nesting_is_limited() -> None:
    assert read_json(b"[" * 200 + b"]" * 200)
    with pytest.raises(TooDeepError):
        read_json(b"[" * 202 + b"]" * 202)


def depth(value: Any) -> int:
    """Nesting depth of a value."""
    match value:
        case dict():
            children = list(cast("dict[str, Any]", value).values())
        case list():
            children = cast("list[Any]", value)
        case _:
            return 0
    return 1 + max(map(depth, children), default=0)


TEXTS = st.text(alphabet='ab"\\[]{},:\n\u00e9', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
)


@given(VALUES, st.booleans())
def test_levels_are_counted_without_parsing(value: Any, ascii_only: bool) -> None:
    assert levels(json.dumps(value, ensure_ascii=ascii_only).encode()) == depth(value)


def test_many_levels_are_counted() -> None:
    assert levels(DEEP) == 1100
    assert levels(b"[" * 1_000_000 + b"]" * 1_000_000) == 1_000_000
