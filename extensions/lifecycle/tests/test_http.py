"""The action that asks a service, with a service that listens."""

import json
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from capelin.api.core import Secret
from capelin.pki import KeyPair, issue, new_ca
from capelin_lifecycle.actions import CHECKS, RUNNERS
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict

from .factories import World, known

HOST = "127.0.0.1"
CA = new_ca("service", now=datetime.now(UTC))


@dataclass
class Service:
    """The responses of the service, and its requests."""

    url: str = ""
    answer: Callable[[], web.StreamResponse] = lambda: web.json_response({"phase": "Done"})
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    clients: list[Any] = field(default_factory=list[Any])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        transport = request.transport
        self.clients.append(transport and transport.get_extra_info("peercert"))
        return self.answer()


def pair(usage: Any) -> KeyPair:
    return issue(CA, common_name="service", usages=[usage], addresses=[HOST], now=datetime.now(UTC))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[Service]:
    made = pair("server")
    (tmp_path / "pair.pem").write_bytes(made.certificate_pem + made.private_key_pem)
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=CA.certificate_pem.decode()
    )
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(tmp_path / "pair.pem")
    service = Service()
    application = web.Application()
    application.router.add_post("/v1/clusters", service.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=context)
    await site.start()
    service.url = f"https://{HOST}:{runner.addresses[0][1]}/v1/clusters"
    yield service
    await runner.cleanup()


def policy(service: Service, **http: Any) -> KnownPolicy:
    trust = {"caBundle": CA.certificate_pem.decode(), "timeoutSeconds": 5}
    return known("cost", action={"http": {"url": service.url, **trust, **http}})


async def verdict_of(world: World, policy: KnownPolicy) -> Verdict:
    return await RUNNERS["http"].reconcile(world.run(policy))


async def test_a_service_decides_from_the_whole_cluster(service: Service) -> None:
    world = World()
    run = world.run(policy(service))
    service.answer = lambda: web.json_response(
        {"phase": "Waiting", "message": "over its budget", "retryAfterSeconds": 30, "more": 1}
    )
    outcome = await RUNNERS["http"].reconcile(run)
    assert (outcome.phase, outcome.message, outcome.retry_seconds) == (
        "Waiting",
        "over its budget",
        30,
    )
    service.answer = lambda: web.json_response({"phase": "Done"})
    assert (await RUNNERS["http"].reconcile(run)).phase == "Done"
    first, second = service.bodies
    assert first == second
    assert first["policy"] == {"namespace": "team", "name": "cost"}
    assert (first["hook"], first["fromVersion"], first["toVersion"]) == (
        "BeforeClusterUpgrade",
        "v1.33.13",
        "v1.34.4",
    )
    assert first["cluster"]["metadata"]["name"] == "demo"
    assert first["id"] == run.result.spec.id
    assert "Authorization" not in service.headers[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: web.Response(status=503), "responds with HTTP status 503"),
        (
            lambda: web.Response(status=302, headers={"Location": "https://elsewhere"}),
            "responds with HTTP status 302",
        ),
        (lambda: web.Response(text="x" * 70_000), "responds with more than 64 KiB"),
        (
            lambda: web.Response(text="yes"),
            "sent an invalid response (the guide describes the format)",
        ),
        (
            # A phase of results, and not of services: the action would never be looked at again.
            lambda: web.json_response({"phase": "Paused"}),
            "sent an invalid response (the guide describes the format)",
        ),
        (
            lambda: web.json_response({"phase": "Waiting", "retryAfterSeconds": 0}),
            "sent an invalid response (the guide describes the format)",
        ),
    ],
)
async def test_an_invalid_answer_keeps_the_policy_waiting(
    service: Service, answer: Callable[[], web.StreamResponse], message: str
) -> None:
    service.answer = answer
    outcome = await verdict_of(World(), policy(service))
    assert (outcome.phase, outcome.message) == ("Waiting", f"{service.url} {message}")
    assert len(service.bodies) == 1


async def test_a_policy_waits_for_an_unreachable_service(service: Service) -> None:
    gone = service.url.rpartition(":")[0] + ":1/v1/clusters"
    outcome = await verdict_of(World(), policy(service, url=gone))
    assert outcome.message == f"{gone} does not respond (no connection)"


async def test_a_service_with_an_untrusted_certificate_gets_no_request(service: Service) -> None:
    other = new_ca("other", now=datetime.now(UTC)).certificate_pem.decode()
    outcome = await verdict_of(World(), policy(service, caBundle=other))
    assert "its certificate is not trusted" in outcome.message
    assert not service.bodies


async def test_a_token_is_sent_and_not_shown(service: Service) -> None:
    world = World()
    configured = policy(service, token={"name": "cost", "key": "token"})
    assert (await verdict_of(world, configured)).message == "there is no Secret team/cost"
    world.client.add(Secret.of("cost", "team", data={"token": b"very-secret\n"}))
    service.answer = lambda: web.json_response({"phase": "Failed", "message": "no"})
    outcome = await verdict_of(world, configured)
    assert (outcome.phase, outcome.message) == ("Failed", "no")
    assert service.headers[0]["Authorization"] == "Bearer very-secret"
    other = policy(service, token={"name": "cost", "key": "absent"})
    assert (await verdict_of(world, other)).message == "Secret team/cost has no key absent"


@pytest.mark.parametrize("token", [b"\xff\xfe", b"two\r\nHeader: lines", "süß".encode()])
async def test_a_token_with_invalid_characters_is_never_sent(
    service: Service, token: bytes
) -> None:
    world = World()
    world.client.add(Secret.of("cost", "team", data={"token": token}))
    outcome = await verdict_of(world, policy(service, token={"name": "cost", "key": "token"}))
    assert (outcome.phase, outcome.message) == ("Waiting", "token of Secret cost cannot be a token")
    assert not service.bodies


async def test_the_extension_presents_its_client_certificate(service: Service) -> None:
    world = World()
    configured = policy(service, clientCertificate={"name": "client"})
    made = pair("client")
    world.client.add(Secret.of("client", "team", data={"tls.crt": made.certificate_pem}))
    assert (await verdict_of(world, configured)).message == "Secret team/client has no key tls.key"
    key = {"data": {"tls.key": "bm9uZQ=="}}
    await world.client.patch(Secret, "client", "team", key)
    assert "must contain a certificate and its key" in (await verdict_of(world, configured)).message
    whole = Secret.of(
        "client", "team", data={"tls.crt": made.certificate_pem, "tls.key": made.private_key_pem}
    )
    await world.client.patch(Secret, "client", "team", json.loads(json.dumps(whole.dump())))
    assert (await verdict_of(world, configured)).phase == "Done"
    assert service.clients[-1]["subject"] == ((("commonName", "service"),),)


def test_a_bundle_without_certificates_is_a_problem() -> None:
    wrong = known(action={"http": {"url": "https://a.example.com", "caBundle": "none"}})
    assert CHECKS["http"](wrong) == ["caBundle must contain certificates in PEM"]


async def test_no_request_reaches_services_on_the_machine_of_the_extension(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS")
    outcome = await verdict_of(World(), policy(service))
    reason = "loopback and link-local addresses are not allowed"
    assert outcome.message == f"{service.url} does not respond ({reason})"
    assert service.bodies == []


async def test_keys_are_not_written_to_disk(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a key is written to disk")

    client = pair("client")
    data = {"tls.crt": client.certificate_pem, "tls.key": client.private_key_pem}
    world = World()
    world.client.add(Secret.of("client", "team", data=data))
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    await verdict_of(world, policy(service, clientCertificate={"name": "client"}))
    assert len(service.clients) == 1
