"""A silent or slow server gets no requests for a while."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from capelin.api.core import Node
from capelin.client import (
    CircuitOpen,
    Client,
    ClientOptions,
    Config,
    NotFound,
    Server,
    Unreachable,
    User,
    WorkloadClients,
)
from capelin.client.workload_clients import Circuit
from capelin.testing.fake_client import FakeClient

from tests.support.clock import MonotonicClock
from tests.support.web import api_server, kubeconfig_secret, not_found


def test_pauses_grow_until_a_server_answers_again() -> None:
    clock = MonotonicClock()
    circuit = Circuit(clock)
    for seconds in (1, 2, 4, 8, 16, 30, 30):
        circuit.failed(Unreachable("gone"))
        circuit.failed(Unreachable("gone at the same time"))
        assert circuit.remaining == pytest.approx(seconds)
        clock.advance(seconds - 0.1)
        assert circuit.remaining
        clock.advance(0.1)
        assert circuit.remaining == pytest.approx(0)
        assert str(circuit.last_error) == "gone"
        clock.advance(0.001)
    circuit.succeeded()
    assert circuit.last_error is None
    circuit.failed(Unreachable("again"))
    assert circuit.remaining == pytest.approx(1)


class Tenant:
    """A workload cluster `demo`, its clients and a clock that the test controls."""

    def __init__(self) -> None:
        self.clock = MonotonicClock()
        self.client = FakeClient()
        self.workloads = WorkloadClients(
            self.client, options=ClientOptions(timeout=0.5), clock=self.clock
        )

    async def publish(self, address: str) -> None:
        await self.client.apply(kubeconfig_secret("demo", "team", address))

    async def read(self) -> Node | None:
        async with self.workloads.client("demo", "team") as workload:
            return await workload.find(Node, "one")


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def tenant() -> AsyncGenerator[Tenant]:
    tenant = Tenant()
    yield tenant
    await tenant.workloads.close()


async def test_requests_to_a_silent_cluster_pause(tenant: Tenant, stack: AsyncExitStack) -> None:
    requests = 0
    silent = True

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if silent:
            await asyncio.Event().wait()
        return await not_found(request)

    await tenant.publish(await stack.enter_async_context(api_server(handler)))
    with pytest.raises(Unreachable, match="no answer within"):
        await tenant.read()
    with pytest.raises(CircuitOpen, match="no answer within") as error:
        await tenant.read()
    assert error.value.retry_seconds == pytest.approx(1)
    assert requests == 1
    tenant.clock.advance(1)
    silent = False
    assert await tenant.read() is None
    assert await tenant.read() is None
    assert requests == 3


async def test_only_one_user_tries_again_after_a_pause(
    tenant: Tenant, stack: AsyncExitStack
) -> None:
    requests = 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        await asyncio.Event().wait()
        raise AssertionError

    await tenant.publish(await stack.enter_async_context(api_server(handler)))
    with pytest.raises(Unreachable):
        await tenant.read()
    for attempt in (2, 3):
        tenant.clock.advance(attempt)
        errors = await asyncio.gather(*(tenant.read() for _ in range(4)), return_exceptions=True)
        paused = [error for error in errors if isinstance(error, CircuitOpen)]
        assert [error.retry_seconds for error in paused] == [1] * 3
        assert requests == attempt


async def test_an_error_in_a_task_group_opens_the_circuit(tenant: Tenant) -> None:
    await tenant.publish("http://127.0.0.1:1")

    async def read_all() -> None:
        async with (
            tenant.workloads.client("demo", "team") as workload,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(workload.find(Node, "one"))

    with pytest.raises(ExceptionGroup):
        await read_all()
    with pytest.raises(CircuitOpen):
        await tenant.read()


async def test_slow_answer_delays_the_next_request(tenant: Tenant, stack: AsyncExitStack) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        tenant.clock.advance(0.3)
        return await not_found(request)

    await tenant.publish(await stack.enter_async_context(api_server(handler)))
    assert await tenant.read() is None
    with pytest.raises(CircuitOpen, match="takes too long to answer"):
        await tenant.read()


async def test_slow_body_delays_the_next_request(tenant: Tenant, stack: AsyncExitStack) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=404)
        await response.prepare(request)
        await response.write(b'{"kind": "Status", "reason": "NotFound",')
        # The client has received the head of the response by then.
        await asyncio.sleep(0.1)
        tenant.clock.advance(0.3)
        await response.write(b' "details": {"name": "one"}}')
        return response

    await tenant.publish(await stack.enter_async_context(api_server(handler)))
    assert await tenant.read() is None
    with pytest.raises(CircuitOpen):
        await tenant.read()


async def test_failure_of_another_server_does_not_open_the_circuit(
    tenant: Tenant, stack: AsyncExitStack
) -> None:
    await tenant.publish(await stack.enter_async_context(api_server(not_found)))
    management = Client(Config(Server("http://127.0.0.1:1"), User()))
    stack.push_async_callback(management.close)
    with pytest.raises(Unreachable):
        async with tenant.workloads.client("demo", "team"):
            await management.find(Node, "one")
    assert await tenant.read() is None


async def test_api_errors_do_not_open_the_circuit(tenant: Tenant, stack: AsyncExitStack) -> None:
    await tenant.publish(await stack.enter_async_context(api_server(not_found)))
    for _ in range(2):
        with pytest.raises(NotFound):
            async with tenant.workloads.client("demo", "team") as workload:
                await workload.get(Node, "one")


async def test_a_changed_kubeconfig_ends_the_pause(tenant: Tenant, stack: AsyncExitStack) -> None:
    await tenant.publish("http://127.0.0.1:1")
    with pytest.raises(Unreachable):
        await tenant.read()
    await tenant.publish(await stack.enter_async_context(api_server(not_found)))
    assert await tenant.read() is None
