"""Tenants cannot make a manager connect to its own machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import (
    AddressRefusedError,
    Client,
    ClientOptions,
    Config,
    ConfigError,
    Destinations,
    Server,
    WorkloadClients,
    guarded_connector,
    safe_kubeconfig,
)

if TYPE_CHECKING:
    from core.tests.client.conftest import Scripted

NONE = Destinations()
REFUSED = "loopback and link-local addresses are not allowed"


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)


@pytest.fixture
def internal(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that resolves to this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **keywords: Any) -> Any:
        return resolve("127.0.0.1" if host == "internal.test" else host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return "internal.test"


def kubeconfig(server: str, extra: str = "") -> bytes:
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{server}'{extra}}}}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\n"
    ).encode()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.100.1.1",
        "0.0.0.0",  # noqa: S104 - Linux connects to this machine
        "169.254.169.254",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_addresses_of_this_machine_are_rejected(address: str) -> None:
    assert not NONE.allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "::ffff:168.63.129.16",
        "fd00:c1::a9fe:a9fe",
        "fd00:ec2::254",
        "fd20:ce::254",
    ],
)
def test_metadata_services_of_clouds_are_rejected(address: str) -> None:
    assert not NONE.allows(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "8.8.8.8", "fd00::1", "2001:db8::1"])
def test_other_addresses_are_allowed(address: str) -> None:
    assert NONE.allows(address)


def test_networks_can_be_allowed() -> None:
    wider = Destinations.from_environ({"CAPELIN_ALLOWED_NETWORKS": "127.64.0.0/10, ::1/128, "})
    allowed = {address: wider.allows(address) for address in ("127.64.3.9", "127.0.0.1", "::1")}
    assert allowed == {"127.64.3.9": True, "127.0.0.1": False, "::1": True}
    with pytest.raises(ConfigError, match="has to list networks such as"):
        Destinations.from_environ({"CAPELIN_ALLOWED_NETWORKS": "localhost"})


@pytest.mark.parametrize("path", ["?ignored=", "#", "/internal?x=1", "/a#b", "\\@evil.test", "\n"])
def test_a_server_with_more_than_a_path_is_rejected(path: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of an API server"):
        Server(f"https://10.0.0.1:6443{path}")
    with pytest.raises(ConfigError, match="is not the address of an API server"):
        Config.from_secret(kubeconfig("https://10.0.0.1:6443/internal?ignored="))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "169.254.169.254"])
async def test_a_kubeconfig_of_a_tenant_cannot_name_this_machine(host: str) -> None:
    secret = Secret.of("evil-kubeconfig", "b", data={"value": kubeconfig(f"https://{host}:6443")})
    clients = WorkloadClients(_management())
    with pytest.raises(ConfigError, match=f"secret b/evil-kubeconfig: .* {REFUSED}"):
        async with clients.client("evil", "b", secret=secret):
            pass


@pytest.mark.parametrize("name", ["internal.test", "localhost"])
async def test_name_of_this_machine_is_rejected(server: Scripted, internal: str, name: str) -> None:
    port = server.address.rpartition(":")[2]
    options = ClientOptions(destinations=NONE)
    async with Client(Config(Server(f"http://{name}:{port}")), options=options) as client:
        with pytest.raises(ConfigError, match=f"{name}:{port} is not allowed: {REFUSED}"):
            await client.get(ConfigMap, "a", "b")
        with pytest.raises(ConfigError, match=REFUSED):
            await anext(client.watch(ConfigMap, since="1"))
    assert (server.connections, internal) == (0, "internal.test")


async def test_allowed_network_is_used(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    server.then(server.reply(200, {"gitVersion": "v1.34.4"}))
    secret = Secret.of("good-kubeconfig", "b", data={"value": kubeconfig(server.address)})
    clients = WorkloadClients(_management())
    async with clients.client("good", "b", secret=secret) as client:
        assert await client.request("GET", "/version") == {"gitVersion": "v1.34.4"}
    await clients.close()


async def test_a_proxy_of_a_tenant_is_rejected() -> None:
    content = kubeconfig("https://10.0.0.1:6443", ", proxy-url: 'http://10.0.0.2:3128'")
    secret = Secret.of("evil-kubeconfig", "b", data={"value": content})
    clients = WorkloadClients(_management())
    with pytest.raises(ConfigError, match="has a proxy-url, which is not allowed"):
        async with clients.client("evil", "b", secret=secret):
            pass


async def test_texts_of_a_tenant_s_server_are_not_in_errors(server: Scripted) -> None:
    server.then(server.reply(403, b"internal-admin-console: db password is hunter2"))
    everywhere = Destinations.from_environ({"CAPELIN_ALLOWED_NETWORKS": "127.0.0.0/8"})
    async with server.client(destinations=everywhere) as client:
        with pytest.raises(Exception, match="answered with status 403") as caught:
            await client.get(ConfigMap, "a", "b")
    assert "hunter2" not in str(caught.value)


async def test_texts_of_a_tenant_s_server_are_not_logged(
    server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    server.then(server.reply(200, {"gitVersion": "v1.34.4"}, Warning='299 - "password"'))
    everywhere = Destinations.from_environ({"CAPELIN_ALLOWED_NETWORKS": "127.0.0.0/8"})
    async with server.client(destinations=everywhere) as client:
        assert await client.request("GET", "/version") == {"gitVersion": "v1.34.4"}
    assert "password" not in caplog.text


async def test_connector_checks_resolved_addresses(server: Scripted, internal: str) -> None:
    port = server.address.rpartition(":")[2]
    async with aiohttp.ClientSession(connector=guarded_connector(NONE)) as session:
        for host in (internal, "127.0.0.1", "localhost"):
            with pytest.raises(aiohttp.ClientConnectorError) as caught:
                await session.post(f"http://{host}:{port}/", allow_redirects=False)
            assert isinstance(caught.value.os_error, AddressRefusedError)
    assert server.connections == 0


def test_a_kubeconfig_for_other_programs_has_no_query() -> None:
    with pytest.raises(ConfigError, match="is not the address of an API server"):
        safe_kubeconfig(kubeconfig("https://10.0.0.1:6443?a=b"))


def _management() -> Any:
    class Management:
        manager = "test"

    return Management()
