"""Writes of a reconcile to its object, on a real API server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le, MaxLen
from capelin.api import Model, Object, ObjectMeta, kind
from capelin.api.core import ConfigMap, Event
from capelin.client import Client, ClientOptions, Config, NotFound
from capelin.contract import reference_to
from capelin.controller import Context, Recorder
from capelin.testing.waiting import until

FINALIZER = "writing.test/reef"


class Spec(Model):
    size: Annotated[int, Ge(0), Le(1000)] = 1


class Status(Model):
    fish: Annotated[int | None, Ge(0), Le(1000)] = None
    mood: Annotated[str | None, MaxLen(10)] = None


@kind(group="writing.test", version="v1")
class Reef(Object[Spec, Status]):
    """A kind."""


@pytest.fixture(scope="module", autouse=True)
def installed(install_crds: Callable[..., None]) -> None:
    install_crds(Reef)


@pytest.fixture
async def writer(config: Config) -> AsyncIterator[Client]:
    async with Client(config, manager="capelin-test", options=ClientOptions(qps=0)) as client:
        yield client


@pytest.fixture
def recorder(writer: Client) -> Recorder:
    return Recorder(writer, "capelin-test", "a-host", now=lambda: datetime.now(UTC))


@pytest.fixture
def ctx(writer: Client, recorder: Recorder) -> Context:
    return Context(writer, logging.getLogger("test"), recorder)


@pytest.fixture
async def reef(client: Client, namespace: str) -> Reef:
    metadata = ObjectMeta(name="a", namespace=namespace)
    return await client.create(Reef(metadata=metadata, spec=Spec(size=3)))


async def reread(client: Client, reef: Reef) -> Reef:
    return await client.get(Reef, reef.name, reef.namespace)


async def version(client: Client, reef: Reef) -> str:
    return (await reread(client, reef)).metadata.resource_version


async def test_patch_status_sends_no_unchanged_status(
    client: Client, reef: Reef, ctx: Context
) -> None:
    assert await ctx.patch_status(reef, Status(fish=3)) is True
    assert (await reread(client, reef)).status == Status(fish=3)
    before = await version(client, reef)
    assert await ctx.patch_status(reef, Status(fish=3)) is False
    assert await ctx.patch_status(await reread(client, reef), Status(fish=3)) is False
    assert await version(client, reef) == before
    assert reef.metadata.resource_version == before


async def test_patch_status_removes_missing_fields(
    client: Client, reef: Reef, ctx: Context
) -> None:
    await ctx.patch_status(reef, Status(fish=3, mood="calm"))
    assert await ctx.patch_status(reef, Status(fish=3)) is True
    assert (await reread(client, reef)).status == Status(fish=3)


async def test_an_added_finalizer_survives_an_apply(
    client: Client, writer: Client, reef: Reef, ctx: Context
) -> None:
    assert await ctx.add_finalizer(reef, FINALIZER) is True
    assert reef.metadata.finalizers == [FINALIZER]
    before = await version(client, reef)
    assert await ctx.add_finalizer(reef, FINALIZER) is False
    assert await version(client, reef) == before
    desired = Reef(metadata=ObjectMeta(name="a", namespace=reef.namespace), spec=Spec(size=9))
    await writer.apply(desired)
    assert (await reread(client, reef)).metadata.finalizers == [FINALIZER]


async def test_a_finalizer_delays_the_deletion_of_the_object(
    client: Client, reef: Reef, ctx: Context
) -> None:
    await ctx.add_finalizer(reef, FINALIZER)
    await client.delete(Reef, reef.name, reef.namespace)
    deleted = await reread(client, reef)
    assert deleted.metadata.deletion_timestamp is not None
    assert await ctx.add_finalizer(deleted, "writing.test/too-late") is False
    assert await ctx.remove_finalizer(deleted, FINALIZER) is True
    with pytest.raises(NotFound):
        await reread(client, reef)


async def test_add_finalizer_does_not_recreate_a_deleted_object(
    client: Client, reef: Reef, ctx: Context
) -> None:
    await client.delete(Reef, reef.name, reef.namespace)
    with pytest.raises(Exception, match="uid mismatch"):
        await ctx.add_finalizer(reef, FINALIZER)
    with pytest.raises(NotFound):
        await reread(client, reef)


async def test_remove_finalizer_keeps_finalizers_of_others(
    client: Client, reef: Reef, ctx: Context
) -> None:
    ours_last = {"metadata": {"finalizers": ["other.test/first", FINALIZER]}}
    stale = await client.patch(Reef, reef.name, reef.namespace, ours_last)
    reordered = {"metadata": {"finalizers": [FINALIZER, "other.test/first", "other.test/new"]}}
    await client.patch(Reef, reef.name, reef.namespace, reordered)
    assert await ctx.remove_finalizer(stale, FINALIZER) is True
    finalizers = (await reread(client, reef)).metadata.finalizers
    assert finalizers == ["other.test/first", "other.test/new"] == stale.metadata.finalizers
    assert await ctx.remove_finalizer(stale, FINALIZER) is False


async def test_remove_finalizer_ignores_a_deleted_object(
    client: Client, reef: Reef, ctx: Context
) -> None:
    reef.metadata.finalizers = [FINALIZER]
    await client.delete(Reef, reef.name, reef.namespace)
    assert await ctx.remove_finalizer(reef, FINALIZER) is False


async def test_remove_finalizer_does_not_change_a_recreated_object(
    client: Client, reef: Reef, ctx: Context
) -> None:
    reef.metadata.finalizers = [FINALIZER]
    await client.delete(Reef, reef.name, reef.namespace)
    metadata = ObjectMeta(name=reef.name, namespace=reef.namespace, finalizers=[FINALIZER])
    await client.create(Reef(metadata=metadata, spec=Spec()))
    assert await ctx.remove_finalizer(reef, FINALIZER) is False
    assert (await reread(client, reef)).metadata.finalizers == [FINALIZER]


async def test_apply_metadata_owns_only_its_own_fields(
    client: Client, namespace: str, reef: Reef, ctx: Context
) -> None:
    assert await ctx.apply_metadata(reef) is False, "nothing to add or remove"
    owner = await client.create(ConfigMap.of("owner", namespace))
    owners = [reference_to(owner)]
    await client.patch(Reef, "a", namespace, {"metadata": {"labels": {"theirs": "1"}}})
    reef = await reread(client, reef)
    kept: dict[str, Any] = {"labels": {"ours": "1"}, "owner_references": owners}
    assert await ctx.apply_metadata(reef, annotations={"note": "x"}, **kept) is True
    assert reef.metadata.labels == {"theirs": "1", "ours": "1"}
    before = await version(client, reef)
    assert await ctx.apply_metadata(reef, annotations={"note": "x"}, **kept) is False
    assert await version(client, reef) == before
    assert await ctx.apply_metadata(reef, **kept) is True
    metadata = (await reread(client, reef)).metadata
    assert (metadata.annotations, metadata.owner_references) == ({}, owners)
    assert await ctx.apply_metadata(reef) is True
    metadata = (await reread(client, reef)).metadata
    assert (metadata.labels, metadata.owner_references) == ({"theirs": "1"}, [])
    assert await ctx.apply_metadata(await reread(client, reef)) is False


async def events(client: Client, namespace: str) -> list[Event]:
    return (await client.list(Event, namespace)).items


async def test_repeated_events_are_stored_once_with_a_count(
    client: Client, namespace: str, reef: Reef, ctx: Context, recorder: Recorder
) -> None:
    for _ in range(3):
        ctx.event(reef, "Warning", "Bleached", "the reef is bleached")
    ctx.event(reef, "Normal", "Grew", "it grew")
    await recorder.flush()
    recorded = {event.reason: event for event in await events(client, namespace)}
    assert recorded.keys() == {"Bleached", "Grew"}
    bleached = recorded["Bleached"]
    assert bleached.series is not None
    assert (bleached.type, bleached.series.count) == ("Warning", 3)
    assert (bleached.note, bleached.action) == ("the reef is bleached", "Reconcile")
    assert bleached.reporting_controller == "capelin-test"
    assert bleached.regarding is not None
    assert (bleached.regarding.kind, bleached.regarding.uid) == ("Reef", reef.uid)
    assert recorded["Grew"].series is None


async def test_another_process_continues_the_count(
    client: Client, writer: Client, namespace: str, reef: Reef
) -> None:
    for _ in range(3):
        recorder = Recorder(writer, "capelin-test", "a-host", now=lambda: datetime.now(UTC))
        Context(writer, logging.getLogger("test"), recorder).event(reef, "Normal", "Grew", "it did")
        await recorder.flush()
    (event,) = await events(client, namespace)
    assert event.series is not None
    assert event.series.count == 3


async def test_an_event_that_kubernetes_has_deleted_is_created_again(
    client: Client, namespace: str, reef: Reef, ctx: Context, recorder: Recorder
) -> None:
    ctx.event(reef, "Normal", "Grew", "it grew")
    await recorder.flush()
    (event,) = await events(client, namespace)
    await client.delete(Event, event.name, namespace)
    ctx.event(reef, "Normal", "Grew", "it grew")
    await recorder.flush()
    (event,) = await events(client, namespace)
    assert event.series is None


async def test_a_failed_event_does_not_stop_later_events(
    client: Client, namespace: str, reef: Reef, ctx: Context, recorder: Recorder
) -> None:
    lost = Reef(metadata=ObjectMeta(name="b", namespace="no-such-namespace"), spec=Spec())
    writing = asyncio.create_task(recorder.run())
    ctx.event(lost, "Normal", "Lost", "the namespace is missing")
    ctx.event(reef, "Normal", "Stored", "the namespace exists")

    async def is_stored() -> bool:
        return [event.reason for event in await events(client, namespace)] == ["Stored"]

    await until(is_stored)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
