"""A server that does not answer, or not in time, gets no requests for a while."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import yaml
from aiohttp import web
from capelin.api.core import Node, Secret
from capelin.client import (
    Backoff,
    CircuitBreaker,
    CircuitOpen,
    ClientOptions,
    NotFound,
    Unreachable,
    WorkloadClients,
)
from capelin.testing.fake_client import FakeClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_until_a_server_answers_again() -> None:
    clock = Clock()
    breaker: CircuitBreaker[str] = CircuitBreaker(
        Backoff(first_seconds=1, longest_seconds=4), clock
    )
    for seconds in (1, 2, 4, 4):
        breaker.failed("s", "gone")
        breaker.failed("s", "gone at the same time")
        assert breaker.remaining("s") == pytest.approx(seconds)
        clock.now += seconds - 0.1
        assert breaker.error("s") == "gone"
        clock.now += 0.1
        assert breaker.error("s") is None
        assert breaker.remaining("s") == 0
    breaker.succeeded("s")
    breaker.failed("s", "again")
    clock.now += 1
    assert breaker.error("s") is None
    assert Backoff().seconds(10_000) == 60


@asynccontextmanager
async def api_server(handler: Handler) -> AsyncGenerator[str]:
    """The address of a server that answers as the handler says."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port, *_ = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


class World:
    """A workload cluster `demo`, its clients and a clock that only the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.client = FakeClient()
        self.workloads = WorkloadClients(
            self.client, options=ClientOptions(timeout=0.5), clock=self.clock
        )

    async def publish(self, address: str) -> None:
        kubeconfig: dict[str, Any] = {
            "clusters": [{"name": "demo", "cluster": {"server": address}}],
            "users": [{"name": "demo", "user": {}}],
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
            "current-context": "demo",
        }
        content = yaml.safe_dump(kubeconfig).encode()
        await self.client.apply(Secret.of("demo-kubeconfig", "team", data={"value": content}))

    async def read(self) -> Node | None:
        async with self.workloads.client("demo", "team") as workload:
            return await workload.find(Node, "one")


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    world = World()
    yield world
    await world.workloads.close()


async def not_found(_: web.Request) -> web.Response:
    body = {"kind": "Status", "reason": "NotFound", "details": {"name": "one"}}
    return web.json_response(body, status=404)


async def test_a_silent_cluster_is_tried_again_only_after_a_pause(
    world: World, stack: AsyncExitStack
) -> None:
    requests = 0
    silent = True

    async def handler(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        if silent:
            await asyncio.Event().wait()
        return await not_found(request)

    await world.publish(await stack.enter_async_context(api_server(handler)))
    with pytest.raises(Unreachable, match="no answer within"):
        await world.read()
    with pytest.raises(CircuitOpen, match="no answer within") as error:
        await world.read()
    assert error.value.retry_seconds == pytest.approx(1)
    assert requests == 1
    world.clock.now += 1
    silent = False
    assert await world.read() is None
    assert await world.read() is None
    assert requests == 3


async def test_after_a_pause_one_user_tries_for_all(world: World, stack: AsyncExitStack) -> None:
    requests = 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        await asyncio.Event().wait()
        raise AssertionError

    await world.publish(await stack.enter_async_context(api_server(handler)))
    with pytest.raises(Unreachable):
        await world.read()
    for attempt in (2, 3):
        world.clock.now += attempt
        errors = await asyncio.gather(*(world.read() for _ in range(4)), return_exceptions=True)
        paused = [error for error in errors if isinstance(error, CircuitOpen)]
        assert [error.retry_seconds for error in paused] == [1] * 3
        assert requests == attempt


async def test_an_error_in_a_task_group_opens_the_circuit(world: World) -> None:
    await world.publish("http://127.0.0.1:1")

    async def read_all() -> None:
        async with world.workloads.client("demo", "team") as workload, asyncio.TaskGroup() as tasks:
            tasks.create_task(workload.find(Node, "one"))

    with pytest.raises(ExceptionGroup):
        await read_all()
    with pytest.raises(CircuitOpen):
        await world.read()


async def test_a_slow_answer_is_used_and_delays_the_next_request(
    world: World, stack: AsyncExitStack
) -> None:
    async def handler(request: web.Request) -> web.Response:
        world.clock.now += 0.3
        return await not_found(request)

    await world.publish(await stack.enter_async_context(api_server(handler)))
    assert await world.read() is None
    with pytest.raises(CircuitOpen, match="takes too long to answer"):
        await world.read()


async def test_a_body_that_comes_slowly_counts_as_slow(world: World, stack: AsyncExitStack) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=404)
        await response.prepare(request)
        await response.write(b'{"kind": "Status", "reason": "NotFound",')
        world.clock.now += 0.3
        await response.write(b' "details": {"name": "one"}}')
        return response

    await world.publish(await stack.enter_async_context(api_server(handler)))
    assert await world.read() is None
    with pytest.raises(CircuitOpen):
        await world.read()


async def test_an_error_of_the_api_server_is_an_answer(world: World, stack: AsyncExitStack) -> None:
    await world.publish(await stack.enter_async_context(api_server(not_found)))
    for _ in range(2):
        with pytest.raises(NotFound):
            async with world.workloads.client("demo", "team") as workload:
                await workload.get(Node, "one")


async def test_a_changed_kubeconfig_is_tried_at_once(world: World, stack: AsyncExitStack) -> None:
    await world.publish("http://127.0.0.1:1")
    with pytest.raises(Unreachable):
        await world.read()
    await world.publish(await stack.enter_async_context(api_server(not_found)))
    assert await world.read() is None
