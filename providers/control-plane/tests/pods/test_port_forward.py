"""A pod's port through the API server, against a server that answers as it does."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer
from capelin.client import Config, Server
from capelin.pki import issue, new_ca
from capelin.testing.waiting import until
from capelin_control_plane.backends.pods.membership import forwarded_port

PORT = 2379


async def echo(request: web.Request) -> web.WebSocketResponse:
    """Repeats what it is sent, after the port on either channel."""
    assert request.path == "/api/v1/namespaces/default/pods/one-etcd-0/portforward"
    assert request.query["ports"] == str(PORT)
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    for channel in (0, 1):
        await socket.send_bytes(bytes([channel]) + PORT.to_bytes(2, "little"))
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            if message.data == b"\0fail":
                await socket.send_bytes(b"\x01the pod is gone")
                break
            await socket.send_bytes(message.data)
    return socket


def pods() -> web.Application:
    app = web.Application()
    app.router.add_get("/{tail:.*}", echo)
    return app


@pytest.fixture
async def config() -> AsyncGenerator[Config]:
    async with TestServer(pods()) as server:
        yield Config(server=Server(address=str(server.make_url("/"))))


async def test_a_forwarded_port_transfers_data_without_the_channel_prefix(config: Config) -> None:
    async with forwarded_port(config, "default", "one-etcd-0", PORT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"shoal")
        assert await reader.readexactly(5) == b"shoal"
        writer.close()


async def test_an_error_of_the_pod_closes_the_connection(config: Config) -> None:
    async with forwarded_port(config, "default", "one-etcd-0", PORT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"fail")
        assert await reader.read() == b""
        writer.close()


async def test_the_port_closes_with_its_connections(config: Config) -> None:
    async with asyncio.timeout(20):
        async with forwarded_port(config, "default", "one-etcd-0", PORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"shoal")
            assert await reader.readexactly(5) == b"shoal"
        assert await reader.read() == b""
    writer.close()


async def test_a_closed_connection_closes_the_stream_to_the_pod(config: Config) -> None:
    async with forwarded_port(config, "default", "one-etcd-0", PORT) as port:
        before = asyncio.all_tasks()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"shoal")
        assert await reader.readexactly(5) == b"shoal"
        writer.close()
        await until(lambda: asyncio.all_tasks() <= before)


async def test_a_kubeconfig_names_the_host_in_the_certificate(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ca = new_ca("test", now=now)
    leaf = issue(ca, common_name="api", usages=("server",), dns_names=("kubernetes",), now=now)
    file = tmp_path / "tls.pem"
    file.write_bytes(leaf.certificate_pem + leaf.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    server = TestServer(pods(), scheme="https")
    await server.start_server(ssl=tls)
    async with server:
        named = Server(str(server.make_url("/")), ca.certificate_pem, tls_server_name="kubernetes")
        async with forwarded_port(Config(named), "default", "one-etcd-0", PORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"shoal")
            assert await reader.readexactly(5) == b"shoal"
            writer.close()


async def test_a_kubeconfig_names_a_proxy() -> None:
    async with TestServer(pods()) as proxy:
        # The proxy answers instead of a host that does not exist.
        behind = Server("http://capelin.invalid", proxy=str(proxy.make_url("/")))
        async with forwarded_port(Config(behind), "default", "one-etcd-0", PORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"shoal")
            assert await reader.readexactly(5) == b"shoal"
            writer.close()
