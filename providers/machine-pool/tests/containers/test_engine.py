"""The client of the container engine, and commands in containers."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from capelin_machine_pool.backends.containers import ContainerTransport
from capelin_machine_pool.bootstrap import TransportError
from capelin_machine_pool.containers.engine import (
    SOCKETS,
    Engine,
    EngineError,
    gateway_of,
    read_frames,
    socket_of,
)

from tests.support.fake_engine import FakeEngine, fake_engine

BODY = {"Image": "node", "Labels": {"one": "two"}}


@pytest.fixture
def state() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def engine(state: FakeEngine) -> AsyncGenerator[Engine]:
    async with fake_engine(state) as client:
        yield client


async def test_container_is_created_started_and_removed(engine: Engine) -> None:
    created = await engine.create(BODY, "one")
    found = await engine.find("one")
    assert found is not None
    assert (found.id, found.state, found.labels) == (created, "created", {"one": "two"})
    await engine.start(created)
    found = await engine.find("one")
    assert found is not None
    assert (found.state, found.addresses) == ("running", ("172.17.0.2",))
    await engine.remove(created)
    assert await engine.find("one") is None
    await engine.remove(created)


async def test_containers_are_found_by_a_label(engine: Engine) -> None:
    await engine.create(BODY, "one")
    await engine.create({"Image": "node", "Labels": {}}, "two")
    assert await engine.labelled("one") == {"one": "two"}


async def test_conflict_has_the_message_of_the_engine(engine: Engine) -> None:
    await engine.create(BODY, "one")
    with pytest.raises(EngineError, match="the name one is in use") as raised:
        await engine.create(BODY, "one")
    assert raised.value.status == 409


async def test_command_gets_its_input_and_returns_both_outputs(
    engine: Engine, state: FakeEngine
) -> None:
    state.run = lambda command, stdin: (7, stdin * 2, command.encode())
    await engine.start(await engine.create(BODY, "one"))
    content = bytes(range(256)) * 1000
    result = await ContainerTransport(engine, "one").run("true", stdin=content, max_output=10**6)
    assert (result.exit_code, result.output, result.errors) == (7, content * 2, b"true")


async def test_command_in_a_stopped_container_is_an_error(engine: Engine) -> None:
    await engine.create(BODY, "one")
    with pytest.raises(TransportError, match="is not running"):
        await ContainerTransport(engine, "one").run("true")


async def test_output_is_bounded(engine: Engine, state: FakeEngine) -> None:
    state.run = lambda _, __: (0, bytes(1001), b"")
    await engine.start(await engine.create(BODY, "one"))
    with pytest.raises(TransportError, match="prints more than 1000 bytes"):
        await ContainerTransport(engine, "one").run("true", max_output=1000)


async def test_cut_connection_is_an_error(engine: Engine, state: FakeEngine) -> None:
    await engine.start(await engine.create(BODY, "one"))
    state.cut_at = len(state.requests) + 1
    with pytest.raises(TransportError, match="ended"):
        await ContainerTransport(engine, "one").run("true")


async def test_missing_engine_is_explained() -> None:
    socket = "/run/no-engine.sock"
    with pytest.raises(EngineError, match=f"engine answers at {socket}: No such file"):
        await Engine(socket).version()


async def test_version_and_images(engine: Engine, state: FakeEngine) -> None:
    state.images = {"localhost/node:v1"}
    assert await engine.version() == "Fake 1.0"
    assert await engine.has_image("localhost/node:v1")
    assert not await engine.has_image("localhost/node:v2")


@pytest.mark.parametrize("content", [b"\1\0\0\0\0\0\0\5abc", b"\1\0\0", b"HTTP/1.1 400"])
async def test_incomplete_or_foreign_frames_are_errors(content: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    with pytest.raises((EngineError, asyncio.IncompleteReadError)):
        await read_frames(reader, 100)


@pytest.mark.parametrize(
    ("configs", "gateway"),
    [
        ([{"Subnet": "fc00::/64"}, {"Subnet": "10.1.0.0/24", "Gateway": "10.1.0.9"}], "10.1.0.9"),
        ([{"Subnet": "172.17.0.0/16"}], "172.17.0.1"),
        ([], None),
    ],
)
def test_gateway_is_the_first_address_unless_the_engine_names_it(
    configs: list[dict[str, str]], gateway: str | None
) -> None:
    assert gateway_of(configs) == gateway


def test_docker_host_names_the_socket() -> None:
    assert socket_of({"DOCKER_HOST": "unix:///run/user/1/podman.sock"}) == "/run/user/1/podman.sock"
    assert socket_of({}) in SOCKETS
