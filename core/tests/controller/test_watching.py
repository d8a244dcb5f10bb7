"""kopf with a scripted API server."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from capelin.api import Object, kind
from capelin.api.core import ConfigMap
from capelin.client import Config, ObjectCache, Request, Server, Unreadable, User
from capelin.controller import For, ObjectKey, Owns, Watch, Watches, WatchLostError
from capelin.controller.diagnostics import Metrics
from capelin.controller.reconciler import Subscription, concerned
from capelin.controller.watching import Watching, bounded_line
from capelin.testing.waiting import until

from tests.support.web import api_server


@kind(group="watching.test", version="v1")
class Crab(Object[dict[str, Any], dict[str, Any]]):
    """A kind."""


CRABS = "/apis/watching.test/v1/crabs"
MAPS = "/api/v1/configmaps"
RESOURCES = {
    "/api/v1": [("namespaces", "Namespace", False), ("configmaps", "ConfigMap", True)],
    "/apis/watching.test/v1": [("crabs", "Crab", True)],
}


class Api:
    """A minimal API server with items for lists and lines for watches."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[web.Request] = []
        self.items: dict[str, list[str]] = {CRABS: [], MAPS: []}
        self.lines: dict[str, asyncio.Queue[Any]] = {CRABS: asyncio.Queue(), MAPS: asyncio.Queue()}
        self.deep: set[str] = set()
        """Paths whose list contains an object with too many levels."""
        self.errors: list[int] = []
        self.pages: list[int] = []
        """The statuses of further pages, each of which repeats the objects."""
        self.version = 1
        self.tokens: set[str] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.tokens is not None and request.headers.get("Authorization") not in self.tokens:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if request.path in self.lines:
            if self.errors:
                return web.json_response({"kind": "Status"}, status=self.errors.pop(0))
            return await (self.watch if "watch" in request.query else self.list)(request)
        return web.json_response(self.discovery(request.path))

    def discovery(self, path: str) -> dict[str, Any]:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            version = {"version": "v1"}
            group = {"name": "watching.test", "versions": [version], "preferredVersion": version}
            return {"groups": [group]}
        resources = [
            {
                "name": name,
                "kind": kind_,
                "namespaced": namespaced,
                "singularName": kind_.lower(),
                "verbs": ["list", "watch", "patch"],
            }
            for name, kind_, namespaced in RESOURCES[path]
        ]
        return {"resources": resources}

    async def list(self, request: web.Request) -> web.StreamResponse:
        items = [json.dumps(body(name)) for name in self.items[request.path]]
        items += [deep_body("deep")] * (request.path in self.deep)
        metadata = {"resourceVersion": str(self.version), "continue": "next" if self.pages else ""}
        if self.pages and (status := self.pages.pop(0)) != 200:
            return web.json_response({"kind": "Status"}, status=status)
        text = f'{{"metadata":{json.dumps(metadata)},"items":[{",".join(items)}]}}'
        return web.Response(text=text, content_type="application/json")

    async def watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (line := await self.lines[request.path].get()) is not None:
            text = line if isinstance(line, str) else json.dumps(line)
            await response.write(text.encode() + b"\n")
        return response

    def count(self, path: str, *, watch: bool) -> int:
        """The number of lists or watches, without checks of the version."""
        return sum(
            r.path == path and ("watch" in r.query) is watch and r.query.get("limit") != "1"
            for r in self.requests
        )


def body(name: str, **metadata: Any) -> dict[str, Any]:
    owner = {"apiVersion": "watching.test/v1", "kind": "Crab", "name": f"of-{name}", "uid": "1"}
    return {
        "metadata": {
            "name": name,
            "namespace": "sea",
            "uid": name,
            "resourceVersion": "2",
            "ownerReferences": [owner],
            **metadata,
        }
    }


def deep_body(name: str) -> str:
    """An object with 1,100 nested levels, in its managed fields too."""
    levels = '{"a":' * 1100 + "1" + "}" * 1100
    text = json.dumps({**body(name, managedFields="LEVELS"), "spec": "LEVELS"})
    return text.replace('"LEVELS"', levels)


def test_readable_lines_are_not_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_: bytes) -> Any:
        raise AssertionError("parsed")

    monkeypatch.setattr("capelin.controller.watching.read_json", parse)
    wide = json.dumps({"type": "ADDED", "object": body("wide", annotations=[[1], {}] * 1000)})
    assert bounded_line(wide.encode()) == wide.encode()


def changed(name: str, **metadata: Any) -> dict[str, Any]:
    return {"type": "MODIFIED", "object": body(name, **metadata)}


GONE = {"type": "ERROR", "object": {"code": 410}}


class FakeQueue:
    """Records the calls of a queue."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.deleted: list[str] = []
        self.unreadable: list[str] = []
        self.lists: list[set[str]] = []
        """The uids in each complete list."""
        self.retries = 0

    def changed(self, watch: Watch, body: Mapping[str, Any], *, deleted: bool) -> None:
        self.deleted += [body["metadata"]["name"]] if deleted else []
        try:
            keys = cast("list[ObjectKey]", concerned(watch, Crab.resource, body))
        except Unreadable as error:
            self.unreadable.append(str(error))
        else:
            self.keys += [key.name for key in keys]

    def listed(self, watch: Watch, uids: AbstractSet[str]) -> None:
        _ = watch
        self.lists.append({*uids})

    def retry_soon(self) -> None:
        self.retries += 1


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr("capelin.controller.informer._FIRST_PAUSE", 0.01)
    api = Api()
    async with api_server(api.answer) as api.address:
        yield api


def watching(
    api: Api,
    queue: FakeQueue,
    *watches: Watch,
    user: User | None = None,
    cache: ObjectCache | None = None,
) -> Watching:
    subscriptions = [Subscription(watch, queue) for watch in watches]
    config = Config(Server(api.address), user or User())
    return Watching(config, subscriptions, Metrics(), cache=cache)


@asynccontextmanager
async def run(made: Watching) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(made.run())
    try:
        async with asyncio.timeout(30):
            await made.listed.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_existing_and_changed_objects_are_queued(api: Api) -> None:
    queue = FakeQueue()
    api.items[CRABS] = ["a", "b"]
    api.items[MAPS] = ["m"]
    async with run(watching(api, queue, For(Crab), Owns(ConfigMap))):
        await until(lambda: sorted(queue.keys) == ["a", "b", "of-m"])
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: sorted(queue.keys) == ["a", "a", "b", "of-m"])
        api.lines[MAPS].put_nowait({**changed("m"), "type": "DELETED"})
        await until(lambda: sorted(queue.keys) == ["a", "a", "b", "of-m", "of-m"])
    assert queue.deleted == ["m"]
    assert (sorted(map(sorted, queue.lists)), queue.retries) == ([["a", "b"], ["m"]], 0)


@pytest.mark.parametrize("path", [CRABS, MAPS])
async def test_a_deep_object_does_not_stop_lists_and_watches(api: Api, path: str) -> None:
    queue = FakeQueue()
    api.items[CRABS], api.deep = ["a"], {path}
    api.items[MAPS] = ["m"]
    async with run(watching(api, queue, For(Crab), Owns(ConfigMap))):
        name = "deep" if path == CRABS else "of-deep"
        await until(lambda: sorted(queue.keys) == sorted(["a", "of-m", name]))
        api.lines[path].put_nowait(f'{{"type":"MODIFIED","object":{deep_body("deep")}}}')
        await until(lambda: sorted(queue.keys) == sorted(["a", "of-m", name, name]))
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: queue.keys[-1] == "a")
    assert (api.count(path, watch=False), api.count(path, watch=True)) == (1, 1)


async def test_a_mapper_does_not_receive_a_deep_object(api: Api) -> None:
    queue = FakeQueue()
    api.items[MAPS], api.deep = ["m"], {MAPS}

    def crabs_of(config_map: ConfigMap) -> list[ObjectKey]:
        return [ObjectKey("sea", config_map.name)]

    watches = (For(Crab), Watches(ConfigMap, to=crabs_of))
    async with run(watching(api, queue, *watches)):
        await until(lambda: (queue.keys, len(queue.unreadable)) == (["m"], 1))
        api.lines[MAPS].put_nowait(f'{{"type":"MODIFIED","object":{deep_body("deep")}}}')
        api.lines[MAPS].put_nowait(changed("m"))
        await until(lambda: queue.keys == ["m", "m"])
    reason = "ConfigMap sea/deep cannot be read: it has more than 200 nested levels"
    assert queue.unreadable == [reason] * 2


async def test_waiting_for_names_the_kinds_that_are_not_listed_yet(api: Api) -> None:
    made = watching(api, FakeQueue(), For(Crab), Owns(ConfigMap))
    assert sorted(made.waiting_for) == ["configmaps", "crabs"]
    async with run(made):
        assert made.waiting_for == []


async def test_requests_ask_only_for_metadata_and_selected_labels(api: Api) -> None:
    labels = {"a": "1", "b": None}
    async with run(watching(api, FakeQueue(), For(Crab, labels=labels), Owns(ConfigMap))):
        pass
    crabs = [request for request in api.requests if request.path == CRABS]
    *selected, check_of_the_version = crabs
    assert [request.query["labelSelector"] for request in selected] == ["a=1,b", "a=1,b"]
    assert dict(check_of_the_version.query) == {"limit": "1"}
    assert [request.headers["Accept"].split(";")[1] for request in crabs] == [
        "as=PartialObjectMetadataList",
        "as=PartialObjectMetadata",
        "as=PartialObjectMetadataList",
    ]
    maps = [request for request in api.requests if request.path == MAPS]
    assert not any("labelSelector" in request.query for request in maps)


def answers(cache: ObjectCache, name: str, version: int) -> bool:
    """Whether the cache answers with an object of this version, once a client has read it."""
    read = Request("GET", f"/apis/watching.test/v1/namespaces/sea/crabs/{name}")
    response = json.dumps(body(name, resourceVersion=str(version))).encode()
    cache.learn(read, response, cache.known(read), keep=True)
    return cache.read(read) is not None


async def test_cache_follows_the_watch(api: Api) -> None:
    queue, cache = FakeQueue(), ObjectCache()
    api.items[CRABS], api.deep = ["a"], {CRABS}
    async with run(watching(api, queue, For(Crab), cache=cache)):
        await until(lambda: answers(cache, "a", 2))
        assert answers(cache, "deep", 2)
        api.lines[CRABS].put_nowait(changed("a", resourceVersion="3"))
        await until(lambda: queue.keys.count("a") == 2)
        assert answers(cache, "a", 3), "before a reconcile is queued"
        api.lines[CRABS].put_nowait(f'{{"type":"MODIFIED","object":{deep_body("deep")}}}')
        await until(lambda: queue.keys.count("deep") == 2)
        assert answers(cache, "deep", 2)
        api.lines[CRABS].put_nowait({**changed("a", resourceVersion="4"), "type": "DELETED"})
        await until(lambda: queue.keys.count("a") == 3)
        assert not answers(cache, "a", 3)


async def test_object_that_was_deleted_in_a_gap_is_not_cached(api: Api) -> None:
    queue, cache = FakeQueue(), ObjectCache()
    api.items[CRABS] = ["a"]
    async with run(watching(api, queue, For(Crab), cache=cache)):
        await until(lambda: answers(cache, "a", 2))
        api.items[CRABS] = ["b"]
        api.lines[CRABS].put_nowait(GONE)
        await until(lambda: answers(cache, "b", 2))
        assert not answers(cache, "a", 2)


async def test_nothing_is_cached_while_a_watch_is_interrupted(api: Api) -> None:
    queue, cache = FakeQueue(), ObjectCache()
    api.items[CRABS] = ["a"]
    async with run(watching(api, queue, For(Crab), cache=cache)):
        await until(lambda: answers(cache, "a", 2))
        api.errors = [503] * 3
        api.lines[CRABS].put_nowait(None)
        await until(lambda: not answers(cache, "a", 2))
        await until(lambda: answers(cache, "a", 2))
    assert api.count(CRABS, watch=False) == 1, "the watch continues without a new list"
    assert not answers(cache, "a", 2)


async def test_watches_with_different_selectors_share_one_unfiltered_watch(api: Api) -> None:
    queue = FakeQueue()
    api.items[CRABS] = ["a"]
    watches = For(Crab, labels={"a": "1"}), Owns(Crab, labels={"b": None})
    async with run(watching(api, queue, *watches)):
        api.lines[CRABS].put_nowait(changed("a", labels={"b": "2"}))
        await until(lambda: queue.keys == ["of-a"])
    assert not any("labelSelector" in request.query for request in api.requests)
    assert api.count(CRABS, watch=False) == 1


@pytest.mark.parametrize("path", [CRABS, MAPS])
async def test_list_after_a_gap_names_the_objects_that_exist(api: Api, path: str) -> None:
    queue = FakeQueue()
    api.items[path] = ["a", "b"]
    async with run(watching(api, queue, For(Crab), Owns(ConfigMap))):
        await until(lambda: {"a", "b"} in queue.lists)
        api.items[path] = ["b"]
        api.lines[path].put_nowait(GONE)
        await until(lambda: {"b"} in queue.lists)


async def test_a_watch_that_ends_is_resumed_without_a_list(api: Api) -> None:
    queue = FakeQueue()
    async with run(watching(api, queue, For(Crab))):
        api.lines[CRABS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: queue.keys == ["a"])
    assert api.count(CRABS, watch=False) == 1
    assert queue.retries == 0


async def test_the_end_of_an_outage_retries_failed_keys(api: Api) -> None:
    queue = FakeQueue()
    async with run(watching(api, queue, For(Crab), Owns(ConfigMap))):
        api.errors = [503, 500]
        api.lines[CRABS].put_nowait(None)
        await until(lambda: api.count(CRABS, watch=True) == 4)
        await until(lambda: queue.retries == 1)
    assert queue.retries == 1


async def test_a_forbidden_list_is_not_an_outage(api: Api) -> None:
    queue = FakeQueue()
    api.errors = [403]
    made = watching(api, queue, Owns(ConfigMap))
    async with run(made):
        pass
    assert api.count(MAPS, watch=False) == 2
    assert queue.retries == 0


@pytest.mark.parametrize(
    "line",
    [
        {"type": "ERROR", "object": {"code": 500}},
        {"type": "ERROR", "object": {"code": 410}},
        {"type": "SURPRISE", "object": {}},
        {"type": "ADDED", "object": {"metadata": {}}},
        '{"type":"ADDED","obj',
        "[]",
    ],
)
async def test_unusable_line_starts_only_its_own_watch_again(api: Api, line: Any) -> None:
    queue = FakeQueue()
    async with run(watching(api, queue, For(Crab), Owns(ConfigMap))):
        for sent in (line, None):
            api.lines[CRABS].put_nowait(sent)
        await until(lambda: api.count(CRABS, watch=False) == 2)
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: queue.keys == ["a"])
    assert (api.count(MAPS, watch=False), api.count(MAPS, watch=True)) == (1, 1)


@pytest.mark.parametrize("status", [302, 400, 403, 404, 410, 429, 500, 504])
@pytest.mark.parametrize("is_listed", [False, True])
async def test_no_status_ends_a_watch(api: Api, status: int, is_listed: bool) -> None:
    queue = FakeQueue()
    made = watching(api, queue, For(Crab))
    if not is_listed:
        api.errors = [status]
    async with run(made):
        if is_listed:
            api.errors = [status]
            api.lines[CRABS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: queue.keys == ["a"])


async def test_waiting_for_names_the_problem(api: Api) -> None:
    api.errors = [403] * 2
    made = watching(api, FakeQueue(), For(Crab))
    task = asyncio.create_task(made.run())
    await until(lambda: made.waiting_for == ["crabs (the API server answers 403 Forbidden)"])
    await until(made.listed.is_set)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert made.waiting_for == []


async def test_list_begins_again_when_its_next_page_has_expired(api: Api) -> None:
    queue = FakeQueue()
    api.items[CRABS], api.pages = ["a", "b"], [200, 410]
    async with run(watching(api, queue, For(Crab))):
        await until(lambda: queue.lists == [{"a", "b"}])


async def test_lower_version_after_an_interruption_lists_again(api: Api) -> None:
    queue = FakeQueue()
    api.version = 9
    async with run(watching(api, queue, For(Crab))):
        api.version, api.errors = 5, [503]
        api.lines[CRABS].put_nowait(None)
        await until(lambda: len(queue.lists) == 2)


async def test_lower_version_between_a_list_and_its_watch_lists_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, answer = FakeQueue(), api.list
    api.version = 9

    async def answer_and_restore(request: web.Request) -> web.StreamResponse:
        response = await answer(request)
        api.version = 5
        return response

    monkeypatch.setattr(api, "list", answer_and_restore)
    async with run(watching(api, queue, For(Crab))):
        await until(lambda: api.count(CRABS, watch=False) == 2, within=20)


async def test_silent_watch_is_checked_for_a_lower_version(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.controller.kopf_thread._SILENT_SECONDS", 0.05)
    queue = FakeQueue()
    api.version = 9
    async with run(watching(api, queue, For(Crab))):
        await until(lambda: api.count(CRABS, watch=True) >= 3)
        assert len(queue.lists) == 1
        api.version = 5
        await until(lambda: len(queue.lists) == 2)


async def test_a_silently_canceled_watch_is_an_error(api: Api) -> None:
    made = watching(api, FakeQueue(), For(Crab), Owns(ConfigMap))
    async with run(made) as task:
        watcher = made.kopf.watchers[Crab.resource]
        assert "watcher for crabs" in watcher.get_name()
        watcher.get_loop().call_soon_threadsafe(watcher.cancel)
        with pytest.raises(WatchLostError, match="the watch of crabs has ended"):
            async with asyncio.timeout(30):
                await task


async def test_a_replaced_token_is_used(api: Api, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    api.tokens = {"Bearer old"}
    queue = FakeQueue()
    async with run(watching(api, queue, For(Crab), user=User(token_file=token))):
        token.write_text("new")
        api.tokens = {"Bearer new"}
        api.lines[CRABS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        # Earlier than the periodic read of the file.
        await until(lambda: queue.keys == ["a"], within=5)


async def test_new_login_continues_a_watch_that_pauses(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    api.tokens = {"Bearer old"}
    queue = FakeQueue()
    made = watching(api, queue, For(Crab), Owns(ConfigMap), user=User(token_file=token))
    async with run(made) as task:
        monkeypatch.setattr("capelin.controller.informer._FIRST_PAUSE", 2.0)
        api.errors = [503]
        api.lines[CRABS].put_nowait(None)
        await until(lambda: api.errors == [])
        # The watch of crabs pauses for at least a second. Meanwhile, the other logs in again.
        token.write_text("new")
        api.tokens = {"Bearer new"}
        api.lines[MAPS].put_nowait(changed("m"))
        api.lines[MAPS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: "a" in queue.keys or task.done())
        assert not task.done(), task.exception()


async def test_kopf_does_not_replace_signal_handlers(api: Api) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    queue = FakeQueue()
    caught: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    try:
        async with run(watching(api, queue, For(Crab))):
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: caught == [signal.SIGTERM])
            # The second key would not arrive if kopf had received the signal.
            for name in ("a", "b"):
                api.lines[CRABS].put_nowait(changed(name))
                await until(lambda name=name: name in queue.keys)
    finally:
        signal.signal(signal.SIGTERM, before[1])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_watching_leaves_no_task_or_thread_behind(api: Api) -> None:
    before = asyncio.all_tasks()
    async with run(watching(api, FakeQueue(), For(Crab), Owns(ConfigMap))):
        assert "kopf" in [thread.name for thread in threading.enumerate()]
    assert "kopf" not in [thread.name for thread in threading.enumerate()]
    server = {task for task in asyncio.all_tasks() if "RequestHandler" in repr(task)}
    assert asyncio.all_tasks() - before - server == set()


@pytest.mark.parametrize("turns", range(6))
async def test_early_cancellation_leaves_no_task_behind(api: Api, turns: int) -> None:
    before = asyncio.all_tasks()
    handler = signal.getsignal(signal.SIGTERM)
    task = asyncio.create_task(watching(api, FakeQueue(), For(Crab)).run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def remaining() -> list[str]:
        tasks = map(repr, asyncio.all_tasks() - before)
        return [task for task in tasks if "RequestHandler" not in task]

    # The event loop closes interrupted generators in short tasks.
    await until(remaining, lambda tasks: tasks == [], within=5)
    assert signal.getsignal(signal.SIGTERM) == handler


async def test_requests_are_counted(api: Api) -> None:
    made = Metrics()
    subscription = Subscription(For(Crab), FakeQueue())
    async with run(Watching(Config(Server(api.address)), [subscription], made)):
        host = api.address.removeprefix("http://")
        labels = {"code": "200", "method": "GET", "host": host}
        await until(
            lambda: made.registry.get_sample_value("rest_client_requests_total", labels),
            lambda counted: counted == len(api.requests),
        )
