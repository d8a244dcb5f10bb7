"""Answers of an etcd whose image a tenant chose."""

import gzip
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from capelin_control_plane.etcd.api import EtcdApi, MembershipError, connect

TRUST = ssl.create_default_context()

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
BOMB = gzip.compress(bytes(64 << 20), 1)


@asynccontextmanager
async def etcd_that_answers(answer: Answer) -> AsyncGenerator[EtcdApi]:
    application = web.Application()
    application.router.add_post("/v3/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    try:
        await site.start()
        host, port = runner.addresses[0][:2]
        async with connect(f"http://{host}:{port}", TRUST) as api:
            yield api
    finally:
        await runner.cleanup()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * (64 << 10))


async def packed(_: web.Request) -> web.Response:
    return web.Response(body=BOMB, headers={"Content-Encoding": "gzip"})


def of(content: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(content)

    return answer


@pytest.mark.parametrize(
    "answer",
    [endless, packed, of({}), of([]), of("x"), of({"header": [], "raftIndex": "x"})],
    ids=["endless", "packed", "empty", "list", "text", "types"],
)
async def test_an_answer_that_etcd_does_not_give_is_an_error(answer: Answer) -> None:
    async with etcd_that_answers(answer) as api:
        for call in (api.status, api.members, api.last_revision):
            with pytest.raises(MembershipError, match="does not answer"):
                await call()


async def test_a_message_of_the_server_is_short() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"message": "x" * 10_000}, status=500)

    async with etcd_that_answers(refuse) as api:
        with pytest.raises(MembershipError) as refused:
            await api.members()
    assert len(str(refused.value)) < 500


async def test_a_revision_without_an_end_is_an_error() -> None:
    async def revision(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        pair = {"key": "aw==", "value": "x" * (4 << 20), "mod_revision": "7"}
        part = {"result": {"fragment": True, "events": [{"kv": pair}]}}
        while True:
            await response.write(json.dumps(part).encode() + b"\n")

    async with etcd_that_answers(revision) as api:
        with pytest.raises(MembershipError, match="revision 7 is too large"):
            await anext(api.changes(7))
