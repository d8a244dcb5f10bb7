"""Cached reads cost no request, and are never older than the client's earlier requests."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from capelin.api import BaseObject, Resource
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap
from capelin.client import AlreadyExists, Conflict, Feed, ObjectCache, Request, path_of
from capelin.client.cache import Delivered, Known
from capelin.testing.fake_client import FakeClient, cluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

STREAM = object()
PATH = "/api/v1/namespaces/sea/configmaps/a"


class World:
    """A client with a cache, another client, and a watch that delivers on demand."""

    def __init__(self, kind: type[BaseObject] = ConfigMap) -> None:
        self.client = FakeClient()
        self.other = FakeClient(server=self.client.server, manager="other")
        self.cache = ObjectCache()
        self.feed = self.cache.follow(kind.resource)
        self.feed.open(STREAM)
        self.client.use_cache(self.cache)

    def deliver(self, *objects: BaseObject) -> None:
        self.feed.deliver([self.feed.delivered(obj.dump()) for obj in objects])

    async def create(self, name: str = "a", **data: str) -> ConfigMap:
        """Create an object and read it once."""
        made = await self.other.create(ConfigMap.of(name, "sea", data=data))
        self.deliver(made)
        await self.client.cached.get(ConfigMap, name, "sea")
        return made

    async def change(self, **data: str) -> ConfigMap:
        return await self.other.patch(ConfigMap, "a", "sea", {"data": data})

    async def read(self, name: str = "a") -> tuple[dict[str, str] | None, int]:
        """The data of a ConfigMap as the cached client reads it, and the number of requests."""
        before = len(self.client.requests)
        found = await self.client.cached.find(ConfigMap, name, "sea")
        return None if found is None else found.data, len(self.client.requests) - before


async def test_unchanged_object_costs_no_request() -> None:
    world = World()
    await world.create(size="1")
    assert await world.read() == ({"size": "1"}, 0)
    world.deliver(await world.change(size="2"))
    assert await world.read() == ({"size": "2"}, 1)
    assert await world.read() == ({"size": "2"}, 0)


async def test_object_is_the_same_as_from_the_api_server() -> None:
    world = World()
    await world.create(size="1")
    for kind in (ConfigMap, ConfigMap.resource):
        live = await world.client.get(kind, "a", "sea")
        assert await world.client.cached.get(kind, "a", "sea") == live


async def test_caller_cannot_change_cached_objects() -> None:
    world = World()
    await world.create(size="1")
    first = await world.client.cached.get(ConfigMap, "a", "sea")
    first.data["size"] = "2"
    assert await world.read() == ({"size": "1"}, 0)


async def test_other_reads_are_requests() -> None:
    world = World()
    await world.create(size="1")
    before = len(world.client.requests)
    await world.client.get(ConfigMap, "a", "sea")
    await world.client.cached.list(ConfigMap, "sea")
    await world.client.cached.find(Cluster, "a", "sea")
    assert len(world.client.requests) - before == 3


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("DELETE", {}), ("PUT", {}), ("PATCH", {"dryRun": "All"}), ("GET", {"pretty": "true"})],
)
async def test_only_reads_without_parameters_are_answered(
    method: str, parameters: dict[str, str]
) -> None:
    world = World()
    await world.create()
    assert world.cache.read(Request("GET", PATH)) is not None
    assert world.cache.read(Request(method, PATH, parameters)) is None


async def test_deletion_through_the_cached_client_reaches_the_server() -> None:
    world = World()
    await world.create()
    await world.client.cached.delete(ConfigMap, "a", "sea")
    assert await world.other.find(ConfigMap, "a", "sea") is None


async def test_object_that_was_not_delivered_is_a_request() -> None:
    world = World()
    await world.other.create(ConfigMap.of("a", "sea", data={"size": "1"}))
    assert [await world.read(), await world.read()] == [({"size": "1"}, 1)] * 2
    assert [await world.read("missing"), await world.read("missing")] == [(None, 1)] * 2


async def test_client_without_a_cache_reads_from_the_api_server() -> None:
    client = FakeClient()
    assert client.cached is client


async def test_nothing_is_read_from_the_cache_while_no_watch_is_open() -> None:
    world = World()
    await world.create(size="1")
    world.feed.close("another stream")
    assert await world.read() == ({"size": "1"}, 0)
    world.feed.close(STREAM)
    assert await world.read() == ({"size": "1"}, 1)
    world.feed.open(STREAM)
    assert await world.read() == ({"size": "1"}, 0)


async def test_new_list_forgets_everything() -> None:
    world = World()
    made = await world.create(size="1")
    world.feed.restart()
    assert await world.read() == ({"size": "1"}, 1)
    world.deliver(made)
    assert [await world.read(), await world.read()] == [({"size": "1"}, 1), ({"size": "1"}, 0)]


# Read your writes


async def test_own_patch_is_read_before_its_event_arrives() -> None:
    world = World()
    await world.create(size="1")
    patched = await world.client.patch(ConfigMap, "a", "sea", {"data": {"size": "2"}})
    assert [await world.read(), await world.read()] == [({"size": "2"}, 1)] * 2
    world.deliver(patched)
    assert await world.read() == ({"size": "2"}, 0)


async def test_event_between_two_own_patches_is_not_enough() -> None:
    world = World()
    await world.create(size="1")
    second = await world.client.patch(ConfigMap, "a", "sea", {"data": {"size": "2"}})
    await world.client.cached.patch(ConfigMap, "a", "sea", {"data": {"size": "3"}})
    world.deliver(second)
    assert await world.read() == ({"size": "3"}, 1)


async def test_patch_that_changes_nothing_leaves_the_object_cached() -> None:
    world = World()
    await world.create(size="1")
    await world.client.patch(ConfigMap, "a", "sea", {"data": {"size": "1"}})
    assert await world.read() == ({"size": "1"}, 0)


async def test_dry_run_leaves_the_object_cached() -> None:
    world = World()
    await world.create(size="1")
    await world.client.patch(ConfigMap, "a", "sea", {"data": {"size": "2"}}, dry_run=True)
    assert await world.read() == ({"size": "1"}, 0)


async def test_own_status_is_read_before_its_event_arrives() -> None:
    world = World(Cluster)
    made = world.other.add(cluster("demo", "sea"))
    world.deliver(made)
    await world.client.cached.get(Cluster, "demo", "sea")
    patch = {"status": {"phase": "Provisioned"}}
    await world.client.patch(Cluster.resource, "demo", "sea", patch, subresource="status")
    found = await world.client.cached.get(Cluster.resource, "demo", "sea")
    assert found["status"]["phase"] == "Provisioned"


async def test_own_deletion_is_read_before_its_event_arrives() -> None:
    world = World()
    await world.create(size="1")
    assert await world.client.delete(ConfigMap, "a", "sea")
    assert await world.read() == (None, 1)


async def test_own_deletion_leaves_other_objects_cached() -> None:
    world = World()
    await world.create("a")
    await world.create("b", size="1")
    await world.client.delete(ConfigMap, "a", "sea")
    assert await world.read("b") == ({"size": "1"}, 0)


async def test_own_deletion_of_all_objects_is_read_before_its_events_arrive() -> None:
    world = World()
    await world.create(size="1")
    await world.create("b")
    read = Request("GET", PATH)
    before = world.cache.known(read)
    deletion = Request("DELETE", "/api/v1/namespaces/sea/configmaps", {"labelSelector": "old"})
    world.cache.learn(deletion, None, world.cache.known(deletion), keep=False)
    assert world.cache.read(read) is None
    world.cache.learn(read, json.dumps(obj(1)).encode(), before, keep=True)
    assert world.cache.read(read) is None, "this read may be older than the deletion"
    assert await world.read("b") == ({}, 1)
    assert await world.read("b") == ({}, 0)


async def test_own_new_object_replaces_one_whose_deletion_was_not_delivered() -> None:
    world = World()
    first = await world.create(size="1")
    await world.other.delete(ConfigMap, "a", "sea")
    second = await world.client.create(ConfigMap.of("a", "sea", data={"size": "2"}))
    assert await world.read() == ({"size": "2"}, 1)
    world.feed.remove(world.feed.delivered(first.dump()))
    world.deliver(second)
    assert await world.read() == ({"size": "2"}, 0)


async def test_late_deletion_of_an_older_object_leaves_the_newer_one() -> None:
    world = World()
    first = await world.create(size="1")
    await world.other.delete(ConfigMap, "a", "sea")
    await world.create(size="2")
    world.feed.remove(world.feed.delivered(first.dump()))
    assert await world.read() == ({"size": "2"}, 0)


async def test_deleted_object_is_not_read_from_the_cache() -> None:
    world = World()
    made = await world.create(size="1")
    await world.other.delete(ConfigMap, "a", "sea")
    assert await world.read() == ({"size": "1"}, 0), "its deletion was not delivered yet"
    world.feed.remove(world.feed.delivered(made.dump()))
    assert await world.read() == (None, 1)


async def test_reads_do_not_go_back() -> None:
    world = World()
    await world.create(size="1")
    await world.change(size="2")
    await world.client.get(ConfigMap, "a", "sea")
    assert await world.read() == ({"size": "2"}, 1)
    await world.other.delete(ConfigMap, "a", "sea")
    assert await world.client.find(ConfigMap, "a", "sea") is None
    assert await world.read() == (None, 1)


async def test_failed_write_is_followed_by_a_request() -> None:
    world = World()
    await world.create(size="1")
    stale = {"metadata": {"resourceVersion": "999"}, "data": {"size": "2"}}
    with pytest.raises(Conflict):
        await world.client.patch(ConfigMap, "a", "sea", stale)
    assert [await world.read(), await world.read()] == [({"size": "1"}, 1), ({"size": "1"}, 0)]


async def test_failed_create_is_followed_by_a_request() -> None:
    world = World()
    await world.create(size="1")
    with pytest.raises(AlreadyExists):
        await world.client.create(ConfigMap.of("a", "sea"))
    assert await world.read() == ({"size": "1"}, 1)


# Of the feed


def obj(version: int | str, name: str = "a", size: int = 1) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "sea", "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"filler": "x" * size}}


def filled(feed: Feed, version: int, *, name: str = "a", size: int = 1) -> str:
    """Deliver and read an object; its path."""
    feed.open(STREAM)
    path = path_of(ConfigMap.resource, "sea", name)
    feed.deliver([Delivered(path, version)])
    feed.learn(path, version, json.dumps(obj(version, name, size)).encode(), feed.known(path))
    return path


def test_response_that_was_overtaken_is_not_kept() -> None:
    feed = Feed(ConfigMap.resource)
    path = filled(feed, 5)
    before = feed.known(path)
    feed.learn(path, 0, None, before)
    feed.learn(path, 5, b"{}", before)
    assert feed.read(path) is None, "the failed write may have been processed after this read"


def test_version_that_cannot_be_compared_is_a_request() -> None:
    feed = Feed(ConfigMap.resource)
    path = filled(feed, 5)
    feed.deliver([feed.delivered(obj("5-abc"))])
    assert feed.read(path) is None
    path = filled(feed, 5)
    feed.remove(feed.delivered(obj("5-abc")))
    assert feed.read(path) is None


def test_repeated_event_does_not_bring_back_an_older_object() -> None:
    feed = Feed(ConfigMap.resource)
    path = filled(feed, 6)
    feed.deliver([feed.delivered(obj(5))])
    assert feed.read(path) is not None
    feed.deliver([feed.delivered(obj(7)), feed.delivered(obj(6))])
    assert feed.read(path) is None


def test_memory_is_limited_and_recently_read_objects_stay() -> None:
    feed = Feed(ConfigMap.resource, max_bytes=2000)
    paths = [filled(feed, 5, name=f"n{number}") for number in range(3)]
    assert feed.read(paths[0]) is not None
    paths += [filled(feed, 5, name=f"n{number}") for number in range(3, 6)]
    kept = [path for path in paths if feed.read(path) is not None]
    assert paths[0] in kept
    assert paths[-1] in kept
    assert 2 < len(kept) < 6


def test_own_writes_of_one_object_take_no_memory_from_others() -> None:
    feed = Feed(ConfigMap.resource, max_bytes=2000)
    written, other = filled(feed, 5, name="a"), filled(feed, 5, name="b")
    for version in range(6, 30):
        feed.learn(written, version, None, feed.known(written))
    assert feed.read(other) is not None


def test_object_in_the_response_to_its_deletion_is_gone() -> None:
    cache = ObjectCache()
    filled(cache.follow(ConfigMap.resource), 5)
    assert cache.read(Request("GET", PATH)) is not None
    deletion = Request("DELETE", PATH)
    cache.learn(deletion, json.dumps(obj(5)).encode(), cache.known(deletion), keep=False)
    assert cache.read(Request("GET", PATH)) is None


def test_large_object_is_not_kept() -> None:
    feed = Feed(ConfigMap.resource)
    assert feed.read(filled(feed, 5, size=300_000)) is None


def test_change_or_deletion_frees_the_object() -> None:
    feed = Feed(ConfigMap.resource)
    path = filled(feed, 5)
    feed.deliver([Delivered(path, 6)])
    assert feed.known(path) == feed.known("unknown")
    path = filled(feed, 7)
    feed.remove(Delivered(path, 8))
    assert feed.known(path) == feed.known("unknown")


@pytest.mark.parametrize(
    ("method", "path", "is_about"),
    [
        ("GET", PATH, True),
        ("PATCH", f"{PATH}/status", True),
        ("POST", f"{PATH}/eviction", True),
        ("GET", "/api/v1/namespaces/sea/configmaps", False),
        ("GET", "/api/v1/configmaps", False),
        ("GET", "/api/v1/namespaces/sea/secrets/a", False),
        ("GET", "/apis/apps/v1/namespaces/sea/configmaps/a", False),
        ("GET", "/api/v1", False),
    ],
)
def test_objects_of_requests(method: str, path: str, is_about: bool) -> None:
    cache = ObjectCache()
    cache.follow(ConfigMap.resource)
    assert (cache.known(Request(method, path)) is not None) is is_about


@pytest.mark.parametrize("name", ["sea", "system:sea"])
async def test_cluster_scoped_objects(name: str) -> None:
    resource = Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False)
    cache = ObjectCache()
    feed, path = cache.follow(resource), path_of(resource, None, name)
    feed.open(STREAM)
    feed.deliver([Delivered(path, 5)])
    body = json.dumps({"metadata": {"name": name, "resourceVersion": "5"}}).encode()
    read = Request("GET", path)
    cache.learn(read, body, cache.known(read), keep=True)
    assert cache.read(read) == body
    create = Request("POST", resource.path(), body=body)
    cache.learn(create, None, cache.known(create), keep=True)
    assert cache.read(read) is None


# Any order


@dataclass
class Flight:
    """A request under way, before or after the server has processed it."""

    request: Request
    before: Known | None
    body: bytes | None = None
    processed_at: int | None = None

    @property
    def name(self) -> str:
        if self.request.method == "POST":
            return json.loads(self.request.body or b"")["metadata"]["name"]
        return self.request.path.rpartition("/")[2]


@dataclass
class Server:
    """Objects by name, and all that has happened to them."""

    now: int = 1
    objects: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    events: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])

    def write(self, name: str, written: dict[str, Any] | None) -> None:
        self.now += 1
        if written is None:
            self.objects.pop(name, None)
            self.events.append(("DELETED", self.now, name))
        else:
            self.objects[name] = written
            self.events.append(("MODIFIED", self.now, name))

    def process(self, method: str, name: str) -> bytes | None:
        """The body of the response; None for an error."""
        exists = name in self.objects
        match method:
            case "GET":
                pass
            case "DELETE" if exists:
                deleted = self.objects[name] if self.now % 2 else {"kind": "Status"}
                self.write(name, None)
                return json.dumps(deleted).encode()
            case "PATCH" if exists:
                self.write(name, obj(self.now + 1, name))
            case "POST" if not exists:
                self.write(name, obj(self.now + 1, name))
            case _:
                return None
        return json.dumps(self.objects[name]).encode() if name in self.objects else None


NAMES = st.just("a")
OFTEN, RARELY = st.sampled_from([True, True, False]), st.sampled_from([False, False, True])


class AnyOrder(RuleBasedStateMachine):
    """Requests overlap, responses are lost, and events are late, repeated, dropped or reordered.

    The client never reads an object that is older than a response that it had before, or than the
    events and the list that the watch has delivered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.cache = ObjectCache()
        self.feed = self.cache.follow(ConfigMap.resource, max_bytes=1000)
        self.feed.open(STREAM)
        self.flights: list[Flight] = []
        self.least: dict[str, int] = {}
        """The moment whose objects the client has read or written, by name."""
        self.listed: tuple[int, list[dict[str, Any]]] | None = None
        """A list under way: its moment and its objects."""
        self.delivered: dict[str, int] = {}
        """The moment until which the watch has delivered all events, by name."""

    # The server's other clients

    @rule(name=NAMES, is_delivered=st.booleans())
    def other_writes(self, name: str, *, is_delivered: bool) -> None:
        written = obj(self.server.now + 1, name)
        self.server.write(name, written)
        if is_delivered:
            self.feed.deliver([self.feed.delivered(written)])
            self.delivered[name] = self.server.now

    @rule(name=NAMES)
    def other_deletes(self, name: str) -> None:
        if name in self.server.objects:
            self.server.write(name, None)

    # The client's requests

    @rule(
        name=NAMES,
        method=st.sampled_from(["GET", "GET", "PATCH", "DELETE", "POST"]),
        is_quick=st.booleans(),
    )
    def begin(self, name: str, method: str, *, is_quick: bool) -> None:
        flight = self._flight(name, method)
        self.flights.append(flight)
        if is_quick:
            self._process(flight)

    @rule(
        name=NAMES,
        method=st.sampled_from(["PATCH", "DELETE", "POST"]),
        is_lost=RARELY,
        then=st.sampled_from(["nothing", "eviction", "list"]),
    )
    def write_while_reading(self, name: str, method: str, *, is_lost: bool, then: str) -> None:
        """A write begins after a read, and ends before it."""
        read = self._flight(name, "GET")
        self._process(read)
        self.begin_list()
        write = self._flight(name, method)
        self._process(write)
        self._finish(write, is_lost=is_lost, keep=False)
        if then == "eviction":
            self.read_others()
        if then == "list":
            self.finish_list()
            self.connect(is_open=True)
        self._finish(read, is_lost=False, keep=True)

    @rule(name=NAMES)
    def other_writes_while_reading(self, name: str) -> None:
        """The event of a change arrives before the response to an earlier read."""
        read = self._flight(name, "GET")
        self._process(read)
        self.other_writes(name, is_delivered=True)
        self._finish(read, is_lost=False, keep=True)

    @rule()
    def read_others(self) -> None:
        """Read so many other objects that the cache drops the rest."""
        for name in ("b", "c", "d", "e"):
            read = self._flight(name, "GET")
            self.cache.learn(read.request, json.dumps(obj(1, name)).encode(), None, keep=False)

    def _flight(self, name: str, method: str) -> Flight:
        path = path_of(ConfigMap.resource, "sea", name)
        body = json.dumps(obj(1, name)).encode()
        if method == "POST":
            path = path_of(ConfigMap.resource, "sea")
        request = Request(method, path, body=body if method == "POST" else None)
        return Flight(request, self.cache.known(request))

    @precondition(lambda self: any(flight.processed_at is None for flight in self.flights))
    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        waiting = [flight for flight in self.flights if flight.processed_at is None]
        self._process(data.draw(st.sampled_from(waiting)))

    def _process(self, flight: Flight) -> None:
        flight.body = self.server.process(flight.request.method, flight.name)
        flight.processed_at = self.server.now

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), is_lost=RARELY, keep=OFTEN)
    def finish(self, data: st.DataObject, *, is_lost: bool, keep: bool) -> None:
        """The response arrives, or is lost."""
        flight = data.draw(st.sampled_from(self.flights))
        self.flights.remove(flight)
        self._finish(flight, is_lost=is_lost, keep=keep)

    def _finish(self, flight: Flight, *, is_lost: bool, keep: bool) -> None:
        if is_lost or flight.processed_at is None:
            self.cache.learn(flight.request, None, flight.before, keep=keep)
        else:
            self.cache.learn(flight.request, flight.body, flight.before, keep=keep)
            self.note(flight.name, flight.processed_at)

    @rule(name=NAMES)
    def read_at_once(self, name: str) -> None:
        """A read through the cache, with a request if the cache has no answer."""
        request = Request("GET", path_of(ConfigMap.resource, "sea", name))
        if self.cache.read(request) is None:
            body = self.server.process("GET", name)
            self.cache.learn(request, body, self.cache.known(request), keep=True)
            self.note(name, self.server.now)

    def note(self, name: str, moment: int) -> None:
        self.least[name] = max(self.least.get(name, 0), moment)

    # The watch

    @precondition(lambda self: self.server.events)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Any event: the next one, an earlier one again, or one that skips others."""
        type_, version, name = data.draw(st.sampled_from(self.server.events))
        self.delivered.pop(name, None)
        delivered = self.feed.delivered(obj(version, name))
        if type_ == "DELETED":
            self.feed.remove(delivered)
        else:
            self.feed.deliver([delivered])

    @rule()
    def deliver_all(self) -> None:
        """All events, in order."""
        for type_, version, name in self.server.events:
            delivered = self.feed.delivered(obj(version, name))
            if type_ == "DELETED":
                self.feed.remove(delivered)
            else:
                self.feed.deliver([delivered])
            self.delivered[name] = self.server.now

    @rule()
    def begin_list(self) -> None:
        self.listed = self.server.now, list(self.server.objects.values())

    @precondition(lambda self: self.listed)
    @rule()
    def finish_list(self) -> None:
        """A list arrives, maybe after changes that it does not contain."""
        moment, objects = self.listed or (0, [])
        self.listed = None
        self.feed.close(STREAM)
        self.feed.restart()
        self.feed.deliver([self.feed.delivered(listed) for listed in objects])
        self.delivered = {name: moment for _, _, name in self.server.events}

    @rule(is_open=st.booleans())
    def connect(self, *, is_open: bool) -> None:
        if is_open:
            self.feed.open(STREAM)
        else:
            self.feed.close(STREAM)

    # The promise

    def answer(self, name: str) -> int | None:
        """The version of the object with which the cache answers."""
        body = self.cache.read(Request("GET", path_of(ConfigMap.resource, "sea", name)))
        if body is None:
            return None
        found = json.loads(body)
        version = int(found["metadata"]["resourceVersion"])
        assert found == obj(version, name)
        return version

    @rule(name=NAMES, method=st.sampled_from(["PUT", "PATCH", "DELETE"]))
    def write_through_the_cache(self, name: str, method: str) -> None:
        """Only the API server answers writes, and reads with parameters."""
        path = path_of(ConfigMap.resource, "sea", name)
        assert self.cache.read(Request(method, path)) is None
        assert self.cache.read(Request("GET", path, {"resourceVersion": "0"})) is None

    @invariant()
    def answers_are_not_older_than_responses_and_events(self) -> None:
        for name in self.least.keys() | self.delivered.keys():
            version = self.answer(name)
            if version is None:
                continue
            least = max(self.least.get(name, 0), self.delivered.get(name, 0))
            changes = [at for _, at, changed in self.server.events if changed == name]
            current = max((at for at in changes if at <= least), default=0)
            assert version >= current, (name, version, least)


# The number of examples comes from the profile.
AnyOrder.TestCase.settings = settings(stateful_step_count=30)
TestAnyOrder = pytest.mark.repetitive(AnyOrder.TestCase)
