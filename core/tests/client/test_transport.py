from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin.api import Resource
from capelin.api.core import Secret
from capelin.client import (
    ApiError,
    Client,
    ClientOptions,
    Config,
    Conflict,
    Impersonation,
    NotFound,
    Server,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unreadable,
    User,
)
from capelin.pki import KeyPair, issue, new_ca

if TYPE_CHECKING:
    from core.tests.client.conftest import Scripted, Serve

HASTY = ClientOptions(timeout=0.2)
MAPS = Resource("", "v1", "ConfigMap", "configmaps")
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}}


async def test_one_connection_carries_many_requests(server: Scripted) -> None:
    server.then(*[server.reply(200, MAP)] * 20)
    async with server.client() as client:
        for _ in range(20):
            assert await client.get(MAPS, "a", "b") == MAP
    assert server.connections == 1


async def test_a_read_is_repeated_when_the_connection_breaks(server: Scripted) -> None:
    server.then(server.hang_up, server.hang_up, server.reply(200, MAP))
    async with server.client() as client:
        assert await client.get(MAPS, "a", "b") == MAP


async def test_a_read_is_repeated_when_its_response_is_truncated(server: Scripted) -> None:
    truncated = server.stream(b'{"kind": "Conf', ending=server.hang_up)
    server.then(truncated, server.reply(200, MAP))
    async with server.client() as client:
        assert await client.get(MAPS, "a", "b") == MAP


async def test_a_lost_create_is_not_repeated(server: Scripted) -> None:
    server.then(server.hang_up, server.reply(201, MAP))
    async with server.client() as client:
        with pytest.raises(Unreachable, match="does not answer"):
            await client.create(MAP, resource=MAPS)
    assert len(server.requests) == 1


@pytest.mark.parametrize("uid", [None, "1"])
async def test_lost_deletion_is_repeated_only_with_a_uid(server: Scripted, uid: str | None) -> None:
    server.then(server.hang_up, server.failure(404, "NotFound"))
    async with server.client() as client:
        if uid is None:
            with pytest.raises(Unreachable):
                await client.delete(MAPS, "a", "b")
        else:
            assert not await client.delete(MAPS, "a", "b", uid=uid)
    assert len(server.requests) == (1 if uid is None else 2)


async def test_a_lost_apply_is_repeated(server: Scripted) -> None:
    server.then(server.hang_up, server.reply(200, MAP))
    async with server.client() as client:
        assert await client.apply(MAP, resource=MAPS) == MAP
    assert len(server.requests) == 2


async def test_a_request_is_repeated_after_the_retry_after_header(server: Scripted) -> None:
    busy = server.failure(429, "TooManyRequests", Retry_After="0")
    server.then(busy, busy, server.reply(201, MAP))
    async with server.client() as client:
        assert await client.create(MAP, resource=MAPS) == MAP
    assert len(server.requests) == 3


async def test_a_retry_after_beyond_the_timeout_fails_at_once(server: Scripted) -> None:
    server.then(server.failure(503, "ServiceUnavailable", Retry_After="3600"))
    async with server.client(timeout=60) as client, asyncio.timeout(30):
        with pytest.raises(Unavailable, match="it is ServiceUnavailable"):
            await client.get(MAPS, "a", "b")


async def test_a_server_error_without_retry_after_is_final(server: Scripted) -> None:
    server.then(server.failure(500, "InternalError"), server.reply(200, MAP))
    async with server.client() as client:
        with pytest.raises(ApiError, match="it is InternalError") as caught:
            await client.get(MAPS, "a", "b")
    assert caught.value.status == 500


async def test_a_rejected_eviction_is_not_repeated(server: Scripted) -> None:
    server.then(server.failure(429, "TooManyRequests", Retry_After="0"))
    async with server.client() as client:
        with pytest.raises(TooManyRequests):
            await client.evict("pod", "default")
    assert len(server.requests) == 1


async def test_a_request_to_a_silent_server_times_out(server: Scripted) -> None:
    server.then(server.stay_silent)
    async with server.client(timeout=0.1) as client:
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await client.get(MAPS, "a", "b")


async def test_a_timeout_raises_the_last_error_of_the_server(server: Scripted) -> None:
    server.then(server.failure(429, "TooManyRequests", Retry_After="0"), server.stay_silent)
    async with server.client(timeout=0.5) as client:
        with pytest.raises(TooManyRequests):
            await client.get(MAPS, "a", "b")


async def test_a_refused_connection_names_the_address() -> None:
    async with Client(Config(Server("http://127.0.0.1:1")), options=HASTY) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get(MAPS, "a", "b")
    assert "http://127.0.0.1:1" in str(caught.value)
    assert "connection refused" in str(caught.value)


async def test_the_error_names_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    async with Client(
        Config(Server("http://capelin.invalid")), options=ClientOptions(timeout=2)
    ) as client:
        with pytest.raises(Unreachable, match="its name is not known"):
            await client.get(MAPS, "a", "b")


async def test_an_error_page_of_a_proxy_becomes_a_short_message(server: Scripted) -> None:
    server.then(server.reply(502, b"<html>\n bad   gateway</html>", Content_Type="text/html"))
    server.then(server.reply(502, b'["bad"]'))
    async with server.client() as client:
        with pytest.raises(Unavailable, match="status 502: <html> bad gateway</html>"):
            await client.get(MAPS, "a", "b")
        with pytest.raises(Unavailable, match=r'status 502: \["bad"\]'):
            await client.get(MAPS, "a", "b")


async def test_an_unreadable_response_is_an_error(server: Scripted) -> None:
    server.then(server.reply(200, b"[]"), server.reply(200, b"<html>"))
    async with server.client() as client:
        for _ in range(2):
            with pytest.raises(Unreadable, match="sent an unreadable ConfigMap"):
                await client.get(MAPS, "a", "b")


async def test_an_unreadable_field_is_named_without_its_value(server: Scripted) -> None:
    metadata = {"name": "a", "namespace": "b"}
    server.then(server.reply(200, {"metadata": metadata, "data": {"key": "?geheim?"}}))
    async with server.client() as client:
        with pytest.raises(Unreadable, match=r"sent an unreadable Secret \(data\.key: ") as caught:
            await client.get(Secret, "a", "b")
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


async def test_a_redirect_is_not_followed(server: Scripted) -> None:
    server.then(server.reply(302, Location="/elsewhere"))
    async with server.client(User(token="secret")) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(MAPS, "a", "b")
    assert caught.value.status == 302
    assert len(server.requests) == 1


async def test_a_rejected_token_is_read_again_from_its_file(
    server: Scripted, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server.then(server.reply(200, MAP), server.failure(401, "Unauthorized"), server.reply(200, MAP))
    async with server.client(User(token_file=file)) as client:
        await client.get(MAPS, "a", "b")
        file.write_text("new\n")
        await client.get(MAPS, "a", "b")
    shown = [request.header("Authorization") for request in server.requests]
    assert shown == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_rejected_static_token_is_not_sent_again(server: Scripted) -> None:
    server.then(server.failure(401, "Unauthorized"))
    async with server.client(User(token="only-this-one")) as client:
        with pytest.raises(Unauthorized) as caught:
            await client.create(MAP, resource=MAPS)
    assert len(server.requests) == 1
    assert "only-this-one" not in repr(caught.value)


async def test_basic_authentication_and_impersonation_are_headers(server: Scripted) -> None:
    server.then(server.reply(200, MAP))
    user = User(
        username="ann",
        password="x",
        impersonate=Impersonation("bob", "7", ("g1", "g2"), {"scope": ("a", "b")}),
    )
    async with server.client(user) as client:
        await client.get(MAPS, "a", "b")
    sent = server.requests[0].headers
    assert ("authorization", "Basic YW5uOng=") in sent
    assert [pair for pair in sent if pair[0].startswith("impersonate-")] == [
        ("impersonate-user", "bob"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "g1"),
        ("impersonate-group", "g2"),
        ("impersonate-extra-scope", "a"),
        ("impersonate-extra-scope", "b"),
    ]


async def test_a_warning_is_logged_once(server: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    server.then(*[server.reply(200, MAP, Warning='299 - "v1alpha1 is old"')] * 2)
    with caplog.at_level(logging.WARNING, "capelin.client"):
        async with server.client() as client:
            await client.get(MAPS, "a", "b")
            await client.get(MAPS, "a", "b")
    assert [record.getMessage() for record in caplog.records] == ["v1alpha1 is old"]


async def test_the_rate_limit_spreads_requests(server: Scripted) -> None:
    server.then(*[server.reply(200, MAP)] * 6)
    clock = asyncio.get_running_loop().time
    async with server.client(qps=50, burst=1) as client:
        began = clock()
        await asyncio.gather(*(client.get(MAPS, "a", "b") for _ in range(6)))
        assert clock() - began >= 0.099


async def test_concurrent_requests_are_limited(server: Scripted) -> None:
    server.then(*[server.stay_silent] * 10)
    async with server.client(connections=3) as client:
        waiting = [asyncio.create_task(client.get(MAPS, "a", "b")) for _ in range(10)]
        async with server.received:
            await server.received.wait_for(lambda: len(server.requests) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.connections == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_request_that_waits_for_its_next_attempt_holds_no_slot(server: Scripted) -> None:
    busy = server.failure(429, "TooManyRequests", Retry_After="30")
    server.then(busy, server.reply(200, MAP))
    async with server.client(connections=1, timeout=60) as client:
        first = asyncio.create_task(client.get(MAPS, "a", "b"))
        async with server.received:
            await server.received.wait_for(lambda: len(server.requests) == 1)
        async with asyncio.timeout(10):
            assert await client.get(MAPS, "a", "b") == MAP
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_closed_client_fails_requests(server: Scripted) -> None:
    client = server.client()
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.get(MAPS, "a", "b")


async def test_close_ends_running_requests(server: Scripted) -> None:
    half = server.stream(b'{"kind":', ending=server.stay_silent)
    server.then(half, server.stay_silent)
    client = server.client()
    reading = [asyncio.create_task(client.get(MAPS, "a", "b")) for _ in range(2)]
    async with server.received:
        await server.received.wait_for(lambda: len(server.requests) == 2)
    await client.close()
    for ended in await asyncio.gather(*reading, return_exceptions=True):
        assert isinstance(ended, RuntimeError | Unreachable)


async def test_connect_fails_without_a_server() -> None:
    with pytest.raises(Unreachable):
        await Client.connect(Config(Server("http://127.0.0.1:1")), options=HASTY)


async def test_delete_returns_false_for_a_missing_object(server: Scripted) -> None:
    server.then(server.failure(404, "NotFound"), server.failure(409, "Conflict"))
    async with server.client() as client:
        assert await client.delete(MAPS, "a", "b") is False
        with pytest.raises(Conflict):
            await client.delete(MAPS, "a", "b", uid="other")


@pytest.mark.parametrize(("name", "namespace"), [("", "b"), ("a", ""), ("..", "b"), ("a", None)])
async def test_unsafe_name_is_rejected(server: Scripted, name: str, namespace: str | None) -> None:
    async with server.client() as client:
        with pytest.raises(ValueError, match="ConfigMap"):
            await client.delete(MAPS, name, namespace)
    assert server.requests == []


async def test_names_are_quoted(server: Scripted) -> None:
    server.then(server.failure(404, "NotFound"))
    async with server.client() as client:
        with pytest.raises(NotFound):
            await client.get(MAPS, "a/../b?c", "d")
    assert server.requests[0].target == "/api/v1/namespaces/d/configmaps/a%2F..%2Fb%3Fc"


async def test_requests_go_through_the_proxy(server: Scripted) -> None:
    server.then(server.reply(200, MAP))
    config = Config(Server("http://capelin.invalid:6443", proxy=server.address))
    async with Client(config) as client:
        assert await client.get(MAPS, "a", "b") == MAP
    target = "http://capelin.invalid:6443/api/v1/namespaces/b/configmaps/a"
    assert server.requests[0].target == target


async def test_the_error_contains_the_status_of_a_rejecting_proxy(server: Scripted) -> None:
    server.then(*[server.reply(407)] * 10)
    config = Config(Server("https://capelin.invalid:6443", proxy=server.address))
    async with Client(config) as client:
        with pytest.raises(Unreachable, match="its proxy answered with status 407"):
            await client.create(MAP, resource=MAPS)


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return new_ca("test", now=datetime.now(UTC))


@pytest.fixture
def kubernetes(authority: KeyPair, tmp_path: Path) -> ssl.SSLContext:
    """A server's TLS context, valid only for the name `kubernetes`."""
    names, now = ("kubernetes",), datetime.now(UTC)
    leaf = issue(authority, common_name="api", usages=("server",), dns_names=names, now=now)
    file = tmp_path / "tls.pem"
    file.write_bytes(leaf.certificate_pem + leaf.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    return tls


async def test_a_server_must_have_the_expected_name(
    serve: Serve, kubernetes: ssl.SSLContext, authority: KeyPair
) -> None:
    server = await serve(kubernetes)
    server.then(server.reply(200, MAP), server.reply(200, MAP))
    ca = authority.certificate_pem
    async with Client(Config(Server(server.address, ca))) as client:
        with pytest.raises(Unreachable, match="IP address mismatch"):
            await client.get(MAPS, "a", "b")
    named = Server(server.address, ca, tls_server_name="kubernetes")
    for trusting in (named, Server(server.address, verify=False)):
        async with Client(Config(trusting)) as client:
            assert await client.get(MAPS, "a", "b") == MAP


async def test_a_server_without_tls_is_an_error() -> None:
    async def shout(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with Client(Config(Server(f"https://127.0.0.1:{port}"))) as client:
            with pytest.raises(Unreachable, match="no TLS with it: "):
                await client.get(MAPS, "a", "b")


async def test_an_unfinished_tls_handshake_times_out(server: Scripted) -> None:
    address = server.address.replace("http:", "https:")
    options = ClientOptions(connect_timeout=0.05)
    async with Client(Config(Server(address)), options=options) as client:
        with pytest.raises(Unreachable, match="no connection in time"):
            await client.get(MAPS, "a", "b")
