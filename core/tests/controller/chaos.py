"""A `FakeServer` behind HTTP that fails like a real API server, chosen by a seed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from aiohttp import web
from capelin.api import Unstructured
from capelin.client import ApiError, Expired, Request
from capelin.testing.fake_kinds import Key, Target
from capelin.testing.fake_server import FakeServer, Stored

from tests.support.web import api_server

_BOOKMARK_SECONDS = 0.05
_STATUSES = (401, 403, 429, 500, 504)
_WATCHING = {"capelin", "watches"}
"""The user agents of watches: of kopf, and of a manager in Go."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object. Nothing was before its creation, and nothing is after its deletion."""

    version: int
    key: Key
    before: Stored | None
    after: Stored | None

    def event(self, target: Target) -> Unstructured | None:
        """The event for a watch: its selector decides whether an object exists."""
        was, now = (
            None if state is None or not target.selects(self.key, state.manifest) else state
            for state in (self.before, self.after)
        )
        if now is not None:
            return {"type": "ADDED" if was is None else "MODIFIED", "object": now.dump()}
        if was is None:
            return None
        deleted = was.dump()
        deleted["metadata"]["resourceVersion"] = str(self.version)
        return {"type": "DELETED", "object": deleted}


class WatchedServer(FakeServer):
    """A `FakeServer` with watches and pages, which can go back to an earlier state."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._changes: list[Change] = []
        self._pages: dict[str, list[Unstructured]] = {}
        self._oldest = 0
        self._watchers: set[asyncio.Event] = set()

    @property
    def version(self) -> int:
        return self._version

    async def watch(self, request: Request) -> AsyncGenerator[Unstructured]:
        """The events after a version, until `restore`. Raises Expired if they are gone."""
        target = self.target(request)
        version, changes = int(request.parameters["resourceVersion"]), self._changes
        if version < self._oldest:
            raise target.error(Expired, 410, "has no such old version any more")
        woken = asyncio.Event()
        self._watchers.add(woken)
        try:
            while changes is self._changes:
                woken.clear()
                for change in [change for change in changes if change.version > version]:
                    version = change.version
                    if event := change.event(target):
                        yield event
                await woken.wait()
        finally:
            self._watchers.discard(woken)

    def compact(self) -> None:
        """Forget old versions: watches and further pages from before begin again with a list."""
        self._oldest = self._version
        self._pages.clear()

    def forget_changes(self) -> None:
        """Forget the changes that all watches have sent."""
        self._changes.clear()

    def save(self) -> Callable[[], None]:
        """Save the state, like a backup of etcd. Call the result to restore it."""
        objects, version = dict(self._objects), self._version

        def restore() -> None:
            self._objects, self._version, self._changes = dict(objects), version, []
            self.compact()
            self._wake()

        return restore

    def changed(self, target: Target, before: Stored | None, after: Stored | None) -> None:
        self._changes.append(Change(self._version, target.key, before, after))
        self._wake()

    def _wake(self) -> None:
        for woken in self._watchers:
            woken.set()

    def _list(self, target: Target) -> Unstructured:
        if token := target.parameters.get("continue"):
            if token not in self._pages:
                raise target.error(Expired, 410, "has expired: the continue parameter is too old")
            version, items = token.partition("/")[0], self._pages.pop(token)
        else:
            listed = super()._list(target)
            version, items = listed["metadata"]["resourceVersion"], listed["items"]
        limit = int(target.parameters.get("limit", "0")) or len(items)
        metadata = {"resourceVersion": version}
        resource = target.kind.resource
        names = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        if items[limit:]:
            metadata["continue"] = f"{version}/{len(self._pages)}/{id(items)}"
            self._pages[metadata["continue"]] = items[limit:]
        return {**names, "metadata": metadata, "items": items[:limit]}


class Chaos:
    """Answers requests. While `is_wild`, it fails some of them.

    Requests of watches fail often. Those of reconciles fail seldom, because a failed reconcile runs
    again, which would hide a missed event.
    """

    def __init__(self, server: WatchedServer) -> None:
        self.server = server
        self.random = Random(0)  # noqa: S311 - chooses faults
        self.is_wild = False
        self.calm = asyncio.Event()
        """Until then, reads wait, but not those of leases, like priorities of an API server."""
        self.calm.set()
        self.waiting = 0
        """How many reads wait."""
        self.address = ""
        self.faults: list[str] = []
        self._streams: set[asyncio.Event] = set()
        """The events that close the open watches."""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with api_server(self._answer) as self.address:
            yield

    def close_streams(self) -> None:
        for closed in self._streams:
            closed.set()

    def _happens(self, probability: float) -> bool:
        return self.is_wild and self.random.random() < probability

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        is_watching = http.headers.get("User-Agent") in _WATCHING
        if http.method == "GET" and "/leases" not in http.path:
            self.waiting += 1
            await self.calm.wait()
            self.waiting -= 1
        if self._happens(0.3):
            await asyncio.sleep(self.random.uniform(0, 0.02))
        if self._happens(0.3 if is_watching else 0.02):
            return await self._fail(http)
        request = Request(
            http.method,
            http.path,
            dict(http.query),
            await http.read() or None,
            http.content_type,
        )
        try:
            if "watch" in http.query:
                return await self._watch(http, request)
            response = await self.server.send(request)
        except ApiError as error:
            return web.json_response(_status(error), status=error.status)
        return web.json_response(_shown(http, json.loads(response.body)))

    async def _fail(self, http: web.Request) -> web.StreamResponse:
        fault = self.random.choice(("status", "status", "drop", "half", "gone", "page"))
        self.faults.append(fault)
        match fault:
            case "drop":
                _drop(http)
                return web.Response()
            case "half":
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                await response.prepare(http)
                await response.write(b'{"metadata":{"resourceVersion":"1"},"items":[{"meta')
                if self.random.random() < 0.5:
                    _drop(http)
                return response
            case "gone" | "page":
                status = 410 if "limit" in http.query else 504
                return web.json_response(_failure(410, "Expired"), status=status)
            case _:
                code = self.random.choice(_STATUSES)
                return web.json_response(_failure(code, "Chaos"), status=code)

    async def _watch(self, http: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        closed = asyncio.Event()
        events = self.server.watch(request)
        first: Any = asyncio.ensure_future(anext(events))
        ended = asyncio.ensure_future(closed.wait())
        await asyncio.wait({first, ended}, timeout=0.001)
        if first.done() and isinstance(first.exception(), ApiError):
            ended.cancel()
            raise first.exception()
        await response.prepare(http)
        self._streams.add(closed)
        is_silent = self._happens(0.05)
        version = request.parameters["resourceVersion"]
        resource = self.server.target(request).kind.resource
        names = {"apiVersion": resource.api_version, "kind": resource.kind}
        try:
            while not closed.is_set():
                await asyncio.wait(
                    {first, ended},
                    timeout=_BOOKMARK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if is_silent and self.is_wild:
                    continue
                if self._happens(0.1):
                    return await self._break(http, response)
                if first.done():
                    event = first.result()
                    event["object"] = _shown(http, event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]
                    first = asyncio.ensure_future(anext(events))
                elif int(version) > self.server.version:
                    continue  # It sends nothing to a watch from the future.
                else:
                    mark = {**names, "metadata": {"resourceVersion": version}}
                    event = {"type": "BOOKMARK", "object": _shown(http, mark)}
                if is_silent:
                    return response
                await response.write(json.dumps(event).encode() + b"\n")
        except (StopAsyncIteration, ConnectionError):
            pass
        finally:
            self._streams.discard(closed)
            first.cancel()
            ended.cancel()
            await asyncio.gather(first, ended, return_exceptions=True)
            await events.aclose()
        return response

    async def _break(self, http: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        fault = self.random.choice(("end", "drop", "half", "error"))
        self.faults.append(f"watch {fault}")
        match fault:
            case "drop":
                _drop(http)
            case "half":
                await response.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
                if self.random.random() < 0.5:
                    _drop(http)
            case "error":
                code = self.random.choice((410, 429, 500, 504))
                error = {"type": "ERROR", "object": _failure(code, "Chaos")}
                await response.write(json.dumps(error).encode() + b"\n")
            case _:
                pass
        return response


def _drop(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _shown(http: web.Request, shown: dict[str, Any]) -> dict[str, Any]:
    """An object or a list, or only its metadata if the request accepts that."""
    if "items" in shown:
        shown = {**shown, "items": [_shown(http, item) for item in shown["items"]]}
    if "as=PartialObjectMetadata" not in http.headers.get("Accept", ""):
        return shown
    kind = "PartialObjectMetadataList" if "items" in shown else "PartialObjectMetadata"
    names = {"apiVersion": "meta.k8s.io/v1", "kind": kind}
    return {**{key: shown[key] for key in ("metadata", "items") if key in shown}, **names}


def _failure(code: int, reason: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Status", "code": code, "reason": reason}


def _status(error: ApiError) -> dict[str, Any]:
    return {
        **_failure(error.status, error.reason),
        "message": str(error),
        "details": dict(error.details or {}),
    }
