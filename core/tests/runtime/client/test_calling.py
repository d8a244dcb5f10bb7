"""Hook calls over real connections."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from capelin.pki import new_ca
from capelin.runtime import Catalog, Deprecation, Hook, Request, Response
from capelin.runtime.client import (
    ClientCertificate,
    Connections,
    DiscoveryError,
    Endpoint,
    EndpointError,
    NoResponseError,
    RefusedError,
    call,
    discover,
    endpoint_of,
)
from capelin.runtime.client.http import MAX_RESPONSE_BYTES
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    BeforeClusterCreate,
    BeforeClusterCreateResponse,
    Discovery,
    ExtensionHandler,
)

from .hook_server import CA, NOW, Server, bound, credentials, listening, server_context

HOOK = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
DISCOVERY = Discovery.id.path()
GATE = BeforeClusterCreate.id.path("gate")
CREATE = {"cluster": {"metadata": {"name": "demo"}}, "settings": {"a": "request"}}


def handler(name: str, hook: str = "BeforeClusterCreate", **more: Any) -> dict[str, Any]:
    return {"name": name, "requestHook": {"apiVersion": HOOK, "hook": hook}, **more}


def discovery_response(*handlers: dict[str, Any]) -> dict[str, Any]:
    return {"status": "Success", "handlers": list(handlers)}


def endpoint(server: Server) -> Endpoint:
    return endpoint_of(server.config().spec.client_config)


async def call_gate(server: Server, seconds: float = 10) -> BeforeClusterCreateResponse:
    async with Connections() as connections:
        return await call(
            connections,
            endpoint(server),
            BeforeClusterCreate,
            CREATE,
            handler="gate",
            seconds=seconds,
        )


async def test_a_call_matches_that_of_cluster_api(server: Server) -> None:
    server.responses[GATE] = {"status": "Success", "message": "closed", "retryAfterSeconds": 30}
    response = await call_gate(server, seconds=7)
    assert (response.message, response.retry_after_seconds) == ("closed", 30)
    (request,), (body,) = server.requests, server.bodies
    assert (request.method, request.query_string) == ("POST", "timeout=7s")
    assert not {"Content-Type", "Accept", "Cookie"} & set(request.headers)
    assert body == {"apiVersion": HOOK, "kind": "BeforeClusterCreateRequest", **CREATE}


async def test_discover_returns_handlers_or_lists_all_problems(server: Server) -> None:
    async with Connections() as connections:

        async def discovered() -> list[ExtensionHandler]:
            return await discover(connections, endpoint(server), name="ext", catalog=CLUSTER_API)

        server.responses[DISCOVERY] = discovery_response(handler("gate", timeoutSeconds=7))
        (gate,) = await discovered()
        assert (gate.name, gate.timeout_seconds) == ("gate", 7)
        assert server.bodies == [{"apiVersion": HOOK, "kind": "DiscoveryRequest"}]
        server.responses[DISCOVERY] = discovery_response(
            handler("Gate"), handler("slow", timeoutSeconds=60)
        )
        with pytest.raises(DiscoveryError) as error:
            await discovered()
    assert len(error.value.problems) == 2
    assert "the handlers of ext are invalid: 'Gate' is not a valid handler name" in str(error.value)


async def broken_status(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=500, text="x" * 600)


async def redirecting(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": GATE})


async def endless(_: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def hanging_up(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def boundless(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(MAX_RESPONSE_BYTES // 2**20 + 1):
        await response.write(b" " * 2**20)
    return response


async def words(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="fine")


FAILURES = [
    (broken_status, "status", "gate responded with status 500: '" + "x" * 512 + "...'"),
    (redirecting, "redirect", "gate redirects (status 307)"),
    (endless, "timeout", "does not respond (no response in 1 s)"),
    (
        hanging_up,
        "unreachable",
        "(it closed the connection, perhaps because it requires a client certificate)",
    ),
    (boundless, "unreadable", "above 20 MiB"),
    (words, "unreadable", "not JSON"),
]


@pytest.mark.parametrize(("respond", "failure", "words"), FAILURES)
async def test_a_failed_call_raises_its_cause(
    server: Server, respond: Any, failure: str, words: str
) -> None:
    server.responses[GATE] = respond
    with pytest.raises(NoResponseError) as error:
        # 21 MiB take seconds on a busy machine.
        await call_gate(server, seconds=1 if failure == "timeout" else 30)
    assert error.value.failure_kind == failure
    assert words in str(error.value)


@pytest.mark.parametrize("status", ["Failure", "Perhaps"])
async def test_any_status_except_success_is_an_error(server: Server, status: str) -> None:
    server.responses[GATE] = {"status": status, "message": "closed"}
    with pytest.raises(RefusedError, match="closed"):
        await call_gate(server)


async def test_a_refused_connection_raises_unreachable() -> None:
    with bound() as port:
        closed = Endpoint("127.0.0.1", port.getsockname()[1], ca=CA.certificate_pem)
        async with Connections() as connections:
            with pytest.raises(NoResponseError, match="connection refused") as error:
                await post(connections, closed)
    assert error.value.failure_kind == "unreachable"


@pytest.mark.parametrize("has_certificate", [False, True])
async def test_the_error_mentions_a_missing_or_untrusted_client_certificate(
    tmp_path: Path, has_certificate: bool
) -> None:
    context = server_context(credentials(tmp_path / "server"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=new_ca("another", now=NOW).certificate_pem.decode())
    own = credentials(tmp_path / "client")
    certificate = ClientCertificate(own / "tls.crt", own / "tls.key") if has_certificate else None
    async with listening(Server().handle, context) as port, Connections(certificate) as connections:
        with pytest.raises(NoResponseError) as error:
            await post(connections, Endpoint("127.0.0.1", port, ca=CA.certificate_pem))
    hint = "does not trust the" if has_certificate else "requires a"
    assert f"{hint} client certificate" in str(error.value)


async def test_an_unaccepted_connection_raises_unreachable() -> None:
    with bound() as port, ExitStack() as waiting:
        port.listen(0)
        # Fill the queue, so that the next connection gets no response.
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(port.getsockname())
        full = Endpoint("127.0.0.1", port.getsockname()[1], ca=CA.certificate_pem)
        async with Connections() as connections:
            with pytest.raises(NoResponseError, match="no connection in time") as error:
                # The two timeouts differ by a tenth of this, which is enough for a busy machine.
                await connections.post(full, DISCOVERY, b"{}", seconds=5)
    assert error.value.failure_kind == "unreachable"


async def test_discovery_of_a_deprecated_hook_logs_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = Catalog()

    @zoo.hook(
        "zoo.example.com/v1beta1",
        tag="Zoo",
        summary="Feeds",
        deprecated=Deprecation("1.16", date(2026, 8, 1), replaced_by="v1"),
    )
    class Feed(Hook[Request, Response]):
        """Feeds."""

    hook = {"apiVersion": Feed.id.api_version, "hook": "Feed"}
    server.responses[DISCOVERY] = discovery_response({"name": "a", "requestHook": hook})
    async with Connections() as connections:
        await discover(connections, endpoint(server), name="ext", catalog=zoo)
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    words = "a.ext serves a deprecated hook: Feed zoo.example.com/v1beta1"
    assert warning.getMessage().startswith(words)


async def post(connections: Connections, address: Endpoint) -> int:
    response = await connections.post(address, DISCOVERY, b"{}", seconds=10)
    return response.status


@asynccontextmanager
async def another_port(
    server: Server, folder: Path, change: Callable[[ssl.SSLContext], None]
) -> AsyncGenerator[Endpoint]:
    """Another port of the same server with its own TLS settings."""
    context = server_context(folder)
    change(context)
    async with listening(server.handle, context) as port:
        yield Endpoint("127.0.0.1", port, ca=CA.certificate_pem)


async def test_an_untrusted_certificate_fails_the_call(server: Server) -> None:
    async with Connections() as connections:
        address = Endpoint("127.0.0.1", server.port, ca=CA.certificate_pem)
        assert await post(connections, address) == 200
        with pytest.raises(NoResponseError, match="certificate is not trusted") as error:
            await post(connections, replace(address, ca=None))
    assert error.value.failure_kind == "untrusted"


async def test_a_call_through_a_tunnel_verifies_the_service_name(
    server: Server, tmp_path: Path
) -> None:
    named = credentials(tmp_path / "named", names=("gate.guards.svc",))
    async with another_port(server, named, lambda _: None) as other, Connections() as connections:
        address = Endpoint("gate.guards.svc", ca=CA.certificate_pem, through=other.authority)
        assert await post(connections, address) == 200
        assert server.requests[-1].headers["Host"] == "gate.guards.svc"
        with pytest.raises(NoResponseError, match="not trusted"):
            await post(connections, replace(address, host="other.guards.svc"))


async def test_a_renewed_client_certificate_is_loaded(server: Server, tmp_path: Path) -> None:
    mine = credentials(tmp_path / "mine")
    certificate = ClientCertificate(mine / "tls.crt", mine / "tls.key")

    def demand(context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=CA.certificate_pem.decode())

    served = credentials(tmp_path / "other")
    async with (
        another_port(server, served, demand) as address,
        Connections(certificate) as connections,
    ):
        shown: set[int] = set()

        async def serial() -> None:
            assert await post(connections, address) == 200
            transport = server.requests[-1].transport
            assert transport
            shown.add(transport.get_extra_info("peercert")["serialNumber"])

        await serial()
        await serial()
        assert len(shown) == 1
        credentials(tmp_path / "mine")
        await serial()
        assert len(shown) == 2
        async with Connections() as anonymous:
            with pytest.raises(NoResponseError):
                await post(anonymous, address)
        certificate.key.unlink()
        with pytest.raises(EndpointError, match="cannot read the client certificate"):
            await post(connections, address)
