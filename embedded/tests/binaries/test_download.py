import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin.pki import issue, new_ca
from capelin_embedded.binaries.download import UnreachableError, open_web

if TYPE_CHECKING:
    from .conftest import Registry

    Serve = Callable[..., Awaitable[Registry]]


async def status_of(url: str, **environment: str) -> int:
    async with open_web(environment) as web, web.get(url, {}) as response:
        return response.status


async def test_requests_use_the_proxy_of_the_environment(registry: "Registry") -> None:
    registry.documents["/there"] = b"here"
    assert await status_of("http://registry.example/there", HTTP_PROXY=registry.url) == 200
    ((_, headers),) = registry.requests
    assert headers["Host"] == "registry.example"


async def test_the_error_for_a_silent_proxy_contains_no_password() -> None:
    proxy = "http://me:secret@127.0.0.1:1"
    with pytest.raises(UnreachableError, match=r"^the proxy for a\.example does not answer$"):
        await status_of("http://a.example/", HTTP_PROXY=proxy)


async def test_the_error_contains_the_status_of_a_rejecting_proxy(registry: "Registry") -> None:
    registry.broken = True
    with pytest.raises(UnreachableError, match=r"^the proxy for a\.example answers 4\d\d$"):
        await status_of("https://a.example/", HTTPS_PROXY=registry.url)


async def test_requests_do_not_use_netrc_passwords(
    registry: "Registry", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    await status_of(registry.url)
    ((_, headers),) = registry.requests
    assert "Authorization" not in headers


async def test_a_request_to_an_untrusted_server_fails(
    registry: "Registry", serve: "Serve", tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    pair = issue(
        new_ca("unknown", now=now),
        common_name="registry",
        addresses=["127.0.0.1"],
        usages=["server"],
        now=now,
    )
    (tmp_path / "pair").write_bytes(pair.certificate_pem + pair.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pair")
    await serve(registry, tls)
    with pytest.raises(UnreachableError, match=r"does not answer \(its certificate is not trust"):
        await status_of(registry.url)


async def test_the_error_names_an_unknown_host() -> None:
    with pytest.raises(UnreachableError, match=r"^a\.invalid does not .*cannot be resolved\)$"):
        await status_of("https://a.invalid/")


async def test_a_connection_to_a_silent_host_times_out(
    registry: "Registry", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.download._CONNECT", 1e-9)
    with pytest.raises(UnreachableError, match=r"\(no connection within 1e-09 s\)$"):
        await status_of(registry.url)
