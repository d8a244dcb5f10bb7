"""kopf against an API server that does what the test says."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from capelin.api import Object, kind
from capelin.api.core import ConfigMap
from capelin.client import Config, Server, Unreadable, User
from capelin.controller import For, ObjectKey, Owns, Watch, Watches, WatchLostError
from capelin.controller.diagnostics import Metrics
from capelin.controller.reconciler import Subscription, concerned
from capelin.controller.watching import Watching, bounded_line
from capelin.testing.waiting import until


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
    """Just enough of an API server: what is listed, and a line for each watch to send next."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[web.Request] = []
        self.items: dict[str, list[str]] = {CRABS: [], MAPS: []}
        self.lines: dict[str, asyncio.Queue[Any]] = {CRABS: asyncio.Queue(), MAPS: asyncio.Queue()}
        self.deep: set[str] = set()
        """Paths of which the list has an object that is nested too deep."""
        self.refuse: list[int] = []
        self.tokens: set[str] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.tokens is not None and request.headers.get("Authorization") not in self.tokens:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if request.path in self.lines:
            if self.refuse:
                return web.json_response({"kind": "Status"}, status=self.refuse.pop(0))
            return await (self.watch if "watch" in request.query else self.list)(request)
        return web.json_response(self.discovery(request.path))

    def discovery(self, path: str) -> dict[str, Any]:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            version = {"version": "v1"}
            group = {"name": "watching.test", "versions": [version], "preferredVersion": version}
            return {"groups": [group]}
        found = [
            {
                "name": name,
                "kind": kind_,
                "namespaced": namespaced,
                "singularName": kind_.lower(),
                "verbs": ["list", "watch", "patch"],
            }
            for name, kind_, namespaced in RESOURCES[path]
        ]
        return {"resources": found}

    async def list(self, request: web.Request) -> web.StreamResponse:
        items = [json.dumps(body(name)) for name in self.items[request.path]]
        items += [deep_body("deep")] * (request.path in self.deep)
        text = f'{{"metadata":{{"resourceVersion":"1"}},"items":[{",".join(items)}]}}'
        return web.Response(text=text, content_type="application/json")

    async def watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (line := await self.lines[request.path].get()) is not None:
            text = line if isinstance(line, str) else json.dumps(line)
            await response.write(text.encode() + b"\n")
        return response

    def count(self, path: str, *, watch: bool) -> int:
        return sum(each.path == path and ("watch" in each.query) is watch for each in self.requests)


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


def test_lines_that_kopf_can_parse_are_not_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_: bytes) -> Any:
        raise AssertionError("parsed")

    monkeypatch.setattr("capelin.controller.watching.read_json", parse)
    wide = json.dumps({"type": "ADDED", "object": body("wide", annotations=[[1], {}] * 1000)})
    assert bounded_line(wide.encode()) == wide.encode()


def changed(name: str, **metadata: Any) -> dict[str, Any]:
    return {"type": "MODIFIED", "object": body(name, **metadata)}


GONE = {"type": "ERROR", "object": {"code": 410}}


class Asked:
    """Notes what a queue is asked for."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.unreadable: list[str] = []
        self.all = 0
        self.retries = 0

    def changed(self, watch: Watch, body: Mapping[str, Any]) -> None:
        try:
            keys = cast("list[ObjectKey]", concerned(watch, Crab.resource, body))
        except Unreadable as error:
            self.unreadable.append(str(error))
        else:
            self.keys += [key.name for key in keys]

    def add_all(self) -> None:
        self.all += 1

    def retry_soon(self) -> None:
        self.retries += 1


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_get("/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    api.address = f"http://{host}:{port}"
    yield api
    await runner.cleanup()


def watching(api: Api, asked: Asked, *watches: Watch, user: User | None = None) -> Watching:
    subscriptions = [Subscription(watch, asked) for watch in watches]
    return Watching(Config(Server(api.address), user or User()), subscriptions, Metrics())


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


async def test_what_is_there_and_what_changes_is_told(api: Api) -> None:
    asked = Asked()
    api.items[CRABS] = ["a", "b"]
    api.items[MAPS] = ["m"]
    async with run(watching(api, asked, For(Crab), Owns(ConfigMap))):
        await until(lambda: sorted(asked.keys) == ["a", "b", "of-m"])
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: sorted(asked.keys) == ["a", "a", "b", "of-m"])
        api.lines[MAPS].put_nowait({**changed("m"), "type": "DELETED"})
        await until(lambda: sorted(asked.keys) == ["a", "a", "b", "of-m", "of-m"])
    assert (asked.all, asked.retries) == (0, 0)


@pytest.mark.parametrize("path", [CRABS, MAPS])
async def test_a_deep_object_does_not_end_lists_and_watches(api: Api, path: str) -> None:
    asked = Asked()
    api.items[CRABS], api.deep = ["a"], {path}
    api.items[MAPS] = ["m"]
    async with run(watching(api, asked, For(Crab), Owns(ConfigMap))):
        name = "deep" if path == CRABS else "of-deep"
        await until(lambda: sorted(asked.keys) == sorted(["a", "of-m", name]))
        api.lines[path].put_nowait(f'{{"type":"MODIFIED","object":{deep_body("deep")}}}')
        await until(lambda: sorted(asked.keys) == sorted(["a", "of-m", name, name]))
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: asked.keys[-1] == "a")
    assert (asked.all, api.count(path, watch=False), api.count(path, watch=True)) == (0, 1, 1)


async def test_a_mapper_is_not_called_with_a_deep_object(api: Api) -> None:
    asked = Asked()
    api.items[MAPS], api.deep = ["m"], {MAPS}

    def crabs_of(config_map: ConfigMap) -> list[ObjectKey]:
        return [ObjectKey("sea", config_map.name)]

    watches = (For(Crab), Watches(ConfigMap, to=crabs_of))
    async with run(watching(api, asked, *watches)):
        await until(lambda: (asked.keys, len(asked.unreadable)) == (["m"], 1))
        api.lines[MAPS].put_nowait(f'{{"type":"MODIFIED","object":{deep_body("deep")}}}')
        api.lines[MAPS].put_nowait(changed("m"))
        await until(lambda: asked.keys == ["m", "m"])
    reason = "ConfigMap sea/deep cannot be read: it has more than 200 nested levels"
    assert asked.unreadable == [reason] * 2


async def test_what_is_not_listed_yet_is_known(api: Api) -> None:
    made = watching(api, Asked(), For(Crab), Owns(ConfigMap))
    assert sorted(made.waiting_for) == ["configmaps", "crabs"]
    async with run(made):
        assert made.waiting_for == []


async def test_only_metadata_is_asked_for_and_only_what_the_labels_choose(api: Api) -> None:
    labels = {"a": "1", "b": None}
    async with run(watching(api, Asked(), For(Crab, labels=labels), Owns(ConfigMap))):
        pass
    crabs = [request for request in api.requests if request.path == CRABS]
    assert [request.query["labelSelector"] for request in crabs] == ["a=1,b", "a=1,b"]
    assert [request.headers["Accept"].split(";")[1] for request in crabs] == [
        "as=PartialObjectMetadataList",
        "as=PartialObjectMetadata",
    ]
    maps = [request for request in api.requests if request.path == MAPS]
    assert not any("labelSelector" in request.query for request in maps)


async def test_two_that_choose_differently_share_one_watch_of_everything(api: Api) -> None:
    asked = Asked()
    api.items[CRABS] = ["a"]
    watches = For(Crab, labels={"a": "1"}), Owns(Crab, labels={"b": None})
    async with run(watching(api, asked, *watches)):
        api.lines[CRABS].put_nowait(changed("a", labels={"b": "2"}))
        await until(lambda: asked.keys == ["of-a"])
    assert not any("labelSelector" in request.query for request in api.requests)
    assert api.count(CRABS, watch=False) == 1


async def test_after_a_gap_whoever_owned_what_may_be_gone_is_told(api: Api) -> None:
    asked = Asked()
    api.items[MAPS] = ["m"]
    async with run(watching(api, asked, For(Crab), Owns(ConfigMap))):
        await until(lambda: asked.keys == ["of-m"])
        api.items[MAPS] = []
        api.lines[MAPS].put_nowait(GONE)
        await until(lambda: asked.all == 1)
        api.lines[CRABS].put_nowait(GONE)
        await until(lambda: api.count(CRABS, watch=True) == 2)
    assert asked.all == 1, "what is gone itself needs no reconcile"


async def test_a_watch_that_ends_is_resumed_without_a_list(api: Api) -> None:
    asked = Asked()
    async with run(watching(api, asked, For(Crab))):
        api.lines[CRABS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        await until(lambda: asked.keys == ["a"])
    assert api.count(CRABS, watch=False) == 1
    assert (asked.all, asked.retries) == (0, 0)


async def test_the_end_of_an_outage_is_told(api: Api) -> None:
    asked = Asked()
    async with run(watching(api, asked, For(Crab), Owns(ConfigMap))):
        api.refuse = [503, 500]
        api.lines[CRABS].put_nowait(None)
        await until(lambda: api.count(CRABS, watch=True) == 4)
        await until(lambda: asked.retries == 1)
    assert asked.retries == 1


async def test_a_refusal_is_neither_a_list_nor_an_outage(api: Api) -> None:
    asked = Asked()
    api.refuse = [403]
    made = watching(api, asked, Owns(ConfigMap))
    async with run(made):
        pass
    assert api.count(MAPS, watch=False) == 2
    assert (asked.all, asked.retries) == (0, 0)


async def test_a_watch_that_dies_takes_the_others_with_it(api: Api) -> None:
    async with run(watching(api, Asked(), For(Crab), Owns(ConfigMap))) as task:
        api.lines[CRABS].put_nowait({"type": "ERROR", "object": {"code": 500}})
        with pytest.raises(WatchLostError, match="the watch of crabs has ended"):
            async with asyncio.timeout(30):
                await task


async def test_a_watch_that_kopf_loses_without_a_word_is_missed(api: Api) -> None:
    made = watching(api, Asked(), For(Crab), Owns(ConfigMap))
    async with run(made) as task:
        watcher = made.watchers[Crab.resource]
        assert "watcher for crabs" in watcher.get_name()
        watcher.get_loop().call_soon_threadsafe(watcher.cancel)
        with pytest.raises(WatchLostError, match="the watch of crabs has ended"):
            async with asyncio.timeout(30):
                await task


async def test_a_replaced_token_is_used(api: Api, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    api.tokens = {"Bearer old"}
    asked = Asked()
    async with run(watching(api, asked, For(Crab), user=User(token_file=token))):
        token.write_text("new")
        api.tokens = {"Bearer new"}
        api.lines[CRABS].put_nowait(None)
        api.lines[CRABS].put_nowait(changed("a"))
        # Sooner than files are read anew by themselves.
        await until(lambda: asked.keys == ["a"], within=5)


async def test_signals_stay_with_whoever_had_them(api: Api) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asked = Asked()
    caught: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    try:
        async with run(watching(api, asked, For(Crab))):
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: caught == [signal.SIGTERM])
            # The second would not come, had kopf heard the signal.
            for name in ("a", "b"):
                api.lines[CRABS].put_nowait(changed(name))
                await until(lambda name=name: name in asked.keys)
    finally:
        signal.signal(signal.SIGTERM, before[1])
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


async def test_no_task_is_left_behind(api: Api) -> None:
    before = asyncio.all_tasks()
    async with run(watching(api, Asked(), For(Crab), Owns(ConfigMap))):
        assert "kopf" in [thread.name for thread in threading.enumerate()]
    assert "kopf" not in [thread.name for thread in threading.enumerate()]
    server = {task for task in asyncio.all_tasks() if "RequestHandler" in repr(task)}
    assert asyncio.all_tasks() - before - server == set()


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_at_once_leaves_no_task_either(api: Api, turns: int) -> None:
    before = asyncio.all_tasks()
    handler = signal.getsignal(signal.SIGTERM)
    task = asyncio.create_task(watching(api, Asked(), For(Crab)).run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def left() -> list[str]:
        tasks = map(repr, asyncio.all_tasks() - before)
        return [each for each in tasks if "RequestHandler" not in each]

    # Generators that were cut short are ended by the loop, in tasks of a moment.
    await until(left, lambda found: found == [], within=5)
    assert signal.getsignal(signal.SIGTERM) == handler


async def test_requests_are_counted(api: Api) -> None:
    made = Metrics()
    subscription = Subscription(For(Crab), Asked())
    async with run(Watching(Config(Server(api.address)), [subscription], made)):
        host = api.address.removeprefix("http://")
        labels = {"code": "200", "method": "GET", "host": host}
        await until(
            lambda: made.registry.get_sample_value("rest_client_requests_total", labels),
            lambda counted: counted == len(api.requests),
        )
