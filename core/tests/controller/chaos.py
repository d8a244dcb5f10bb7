"""A `FakeServer` behind HTTP that fails like a real API server, chosen by a seed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from aiohttp import web
from capelin.client import ApiError, Request
from capelin.testing.fake_server import FakeServer

from tests.support.web import api_server

_BOOKMARK_SECONDS = 0.05
_STATUSES = (401, 403, 429, 500, 504)


class Chaos:
    """Answers requests. While `is_wild`, it fails some of them.

    Requests of watches fail often. Those of reconciles fail seldom, because a failed reconcile runs
    again, which would hide a missed event.
    """

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.random = Random(0)  # noqa: S311 - chooses faults
        self.is_wild = False
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
        is_kopf = http.headers.get("User-Agent") == "capelin"
        if self._happens(0.3):
            await asyncio.sleep(self.random.uniform(0, 0.02))
        if self._happens(0.3 if is_kopf else 0.02):
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
        whole = json.loads(response.body)
        if "items" in whole:
            whole["items"] = [_shown(http, item) for item in whole["items"]]
        return web.json_response(whole)

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
                status = {"kind": "Status", "code": 410, "reason": "Expired"}
                return web.json_response(status, status=410 if "limit" in http.query else 504)
            case _:
                code = self.random.choice(_STATUSES)
                status = {"kind": "Status", "code": code, "reason": "Chaos"}
                return web.json_response(status, status=code)

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
                else:
                    event = {
                        "type": "BOOKMARK",
                        "object": {"metadata": {"resourceVersion": version}},
                    }
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
                error = {"type": "ERROR", "object": {"kind": "Status", "code": code}}
                await response.write(json.dumps(error).encode() + b"\n")
            case _:
                pass
        return response


def _drop(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _shown(http: web.Request, item: dict[str, Any]) -> dict[str, Any]:
    if "PartialObjectMetadata" not in http.headers.get("Accept", ""):
        return item
    return {"metadata": item["metadata"]}


def _status(error: ApiError) -> dict[str, Any]:
    return {
        "kind": "Status",
        "code": error.status,
        "reason": error.reason,
        "message": str(error),
        "details": dict(error.details or {}),
    }
