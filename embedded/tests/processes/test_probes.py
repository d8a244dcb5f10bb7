"""Liveness and readiness probes."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.pki import issue, new_ca
from capelin_embedded.processes import liveness_probe, readiness_probe

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(
    *answers: bytes, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[str, list[int]]]:
    """Sends these responses in order, on any number of connections."""
    remaining = iter(answers)
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                connections[-1] += 1
                answer = next(remaining)
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{port}/livez?exclude=etcd", connections


def answer(status: str, body: bytes = b"ok", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*chunks: bytes) -> bytes:
    """A chunked response, which Go servers send for long bodies."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n" + body


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer("200 OK"), ""),
        (answer("403 Forbidden"), ""),
        (answer("500 Internal Server Error", b"[+]ping ok\n[-]shoal failed"), "not yet: shoal"),
        (answer("503 Service Unavailable"), "it answers 503"),
        (b"shoal\r\n\r\n", "{url} does not answer"),
        (b"x" * 100_000 + b"\r\n\r\n", "{url} does not answer"),
        (b"", "{url} does not answer"),
        (b"HTTP/1.1 200 OK\r\n", "{url} did not answer for 0.2 s"),
    ],
)
async def test_a_server_is_alive_unless_it_fails_or_does_not_answer(
    raw: bytes, expected: str
) -> None:
    async with server(raw) as (url, _):
        probe = liveness_probe(url, within=0.2)
        assert await anext(probe) == expected.format(url=url)
        await probe.aclose()


async def test_probes_share_a_connection_and_reconnect_after_its_loss() -> None:
    good = answer("200 OK")
    closing = answer("200 OK", b"ok", "Connection: close")
    async with server(good, good, b"", good, closing, good) as (url, connections):
        probe = liveness_probe(url, within=5)
        assert [bool(await anext(probe)) for _ in range(6)] == [False, False, True, *[False] * 3]
        assert connections == [3, 2, 1]
        await probe.aclose()


async def test_a_server_with_an_untrusted_certificate_is_not_alive(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority, stranger = new_ca("shoal", now=now), new_ca("stranger", now=now)
    pair = issue(authority, common_name="a", usages=["server"], addresses=["127.0.0.1"], now=now)
    (tmp_path / "both.pem").write_bytes(pair.certificate_pem + pair.private_key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    ca = tmp_path / "ca.crt"
    good = answer("200 OK", b"x" * 50_000)
    async with server(good, good, tls=tls) as (url, connections):
        ca.write_bytes(authority.certificate_pem)
        probe = liveness_probe(url, ca=ca, within=5)
        assert [await anext(probe), await anext(probe), connections] == ["", "", [2]]
        await probe.aclose()
        ca.write_bytes(stranger.certificate_pem)
        probe = liveness_probe(url, ca=ca, within=5)
        assert await anext(probe) == f"{url} does not answer"
        await probe.aclose()


@pytest.mark.parametrize("years", [-10, 10])
async def test_wrong_clock_does_not_make_a_process_dead(tmp_path: Path, years: int) -> None:
    then = datetime.now(UTC) + timedelta(days=365 * years)
    authority = new_ca("shoal", now=then)
    pair = issue(authority, common_name="a", usages=["server"], addresses=["127.0.0.1"], now=then)
    (tmp_path / "both.pem").write_bytes(pair.certificate_pem + pair.private_key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate_pem)
    async with server(answer("200 OK"), tls=tls) as (url, _):
        probe = liveness_probe(url, ca=ca, within=5)
        assert await anext(probe) == ""
        await probe.aclose()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer("200 OK"), ""),
        (answer("401 Unauthorized", b"{}"), "it answers 401"),
        (chunked(b"[+]ping ok\n", b"[-]etcd failed: reason withheld\n"), "not yet: etcd"),
        (chunked().replace(b"0\r\n", b"shoal\r\n"), "{url} does not answer"),
        (b"", "{url} does not answer"),
    ],
)
async def test_only_a_healthy_server_is_ready(raw: bytes, expected: str, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = new_ca("shoal", now=now)
    pair = issue(
        authority, common_name="a", usages=["server", "client"], addresses=["127.0.0.1"], now=now
    )
    both, ca = tmp_path / "both.pem", tmp_path / "ca.crt"
    both.write_bytes(pair.certificate_pem + pair.private_key_pem)
    ca.write_bytes(authority.certificate_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(both)
    async with server(raw, answer("200 OK"), tls=tls) as (url, _):
        probe = readiness_probe(url, ca=ca, certificate=both, key=both)
        assert await anext(probe) == expected.format(url=url)
        assert await anext(probe) == ""
        await probe.aclose()


async def test_a_manager_is_ready_when_it_answers_200_over_plain_http() -> None:
    async with server(answer("503 Service Unavailable"), answer("200 OK")) as (url, connections):
        probe = readiness_probe(url)
        assert await anext(probe) == "it answers 503"
        assert await anext(probe) == ""
        await probe.aclose()
    assert connections == [2]


async def test_an_address_without_a_listener_is_not_alive() -> None:
    async with server() as (url, _):
        pass
    probe = liveness_probe(url, within=5)
    assert await anext(probe) == f"{url} does not answer"
    await probe.aclose()
