"""Conformant extensions pass all rules. A broken one for each rule fails it."""

import asyncio
import re
import socket
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from capelin.runtime.client import ClientCertificate, Endpoint, EndpointError
from capelin.runtime.fixtures import sample_cluster
from capelin_conformance.extensions import RULES, check_extension
from capelin_conformance.extensions.content import plan_problem

from core.tests.runtime.client.hook_server import CA, credentials, listening, server_context

from .broken_servers import BROKEN, HOOKS, Plain

PROGRAM = Path(__file__).with_name("complete_extension.py")


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    return server_context(credentials(tmp_path / "served"))


@asynccontextmanager
async def served(server: Plain, context: ssl.SSLContext) -> AsyncGenerator[Endpoint]:
    async with listening(server.handle, context) as port:
        yield Endpoint("127.0.0.1", port, ca=CA.certificate_pem)


@asynccontextmanager
async def complete(folder: Path) -> AsyncGenerator[Endpoint]:
    """Our own extension in its own process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        "--host=127.0.0.1",
        "--port=0",
        "--probes-port=0",
        f"--cert-dir={credentials(folder)}",
        "--drain-seconds=0",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    while not (match := re.search(rb"https port (\d+)", line := await process.stderr.readline())):
        assert line, "the extension did not start"
    yield Endpoint("127.0.0.1", int(match[1]), ca=CA.certificate_pem)
    process.terminate()
    assert await process.wait() == 0


async def test_an_sdk_extension_passes_every_rule_for_every_hook(tmp_path: Path) -> None:
    async with complete(tmp_path) as address:
        report = await check_extension(address)
    assert {v.rule.name: v.problems for v in report.results if v.problems} == {}
    assert len(report.handlers) == 16
    assert not report.left_out


async def test_a_plain_server_passes_every_rule(context: ssl.SSLContext) -> None:
    async with served(Plain(), context) as address:
        report = await check_extension(address)
    assert {v.rule.name: v.problems for v in report.results if v.problems} == {}


@pytest.mark.parametrize(("kind", "rule", "words"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_server_fails_exactly_its_rule(
    context: ssl.SSLContext, kind: type[Plain], rule: str, words: str
) -> None:
    async with served(kind(), context) as address:
        report = await check_extension(address)
    assert report.failed == [rule]
    (result,) = [result for result in report.results if result.problems]
    assert any(words in problem for problem in result.problems), result.problems
    assert report.passed is result.rule.advice


async def test_rules_without_a_successful_response_are_untried(context: ssl.SSLContext) -> None:
    class NothingSucceeds(Plain):
        def answer(self, hook: str, request: dict[str, Any]) -> dict[str, Any]:
            return super().answer(hook, request) | {"status": "Failure", "message": "it is broken"}

    async with served(NothingSucceeds(), context) as address:
        report = await check_extension(address)
    assert report.failed == ["success"]
    outcomes = {result.rule.name: result.outcome for result in report.results}
    judged = {"patches", "variables", "upgrade-plans", "retry-after", "determinism"}
    assert {outcomes[name] for name in judged} == {"untried"}
    assert {outcomes[name] for name in ("discovery", "messages")} == {"ok"}


async def test_untrusted_certificate_is_the_only_finding(
    context: ssl.SSLContext,
) -> None:
    async with served(Plain(), context) as address:
        report = await check_extension(replace(address, ca=None))
        assert report.failed == ["tls"]
        elsewhere = replace(address, host="other.example.com", through=address.authority)
        assert (await check_extension(elsewhere)).failed == ["tls"]


async def test_a_server_without_tls_fails_only_the_tls_rule() -> None:
    runner = web.ServerRunner(web.Server(Plain().handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    report = await check_extension(Endpoint("127.0.0.1", runner.addresses[0][1]))
    await runner.cleanup()
    assert report.failed == ["tls"]


async def test_an_unreachable_server_fails_only_the_reachable_rule() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        report = await check_extension(Endpoint("127.0.0.1", taken.getsockname()[1]))
    assert report.failed == ["reachable"]
    assert "connection refused" in report.results[0].problems[0]


async def test_handlers_with_side_effects_can_be_skipped(context: ssl.SSLContext) -> None:
    async with served(Plain(), context) as address:
        report = await check_extension(address, pure_only=True)
    assert report.left_out == ("gate: it may have side effects",)


async def test_handlers_of_unknown_hooks_are_skipped(
    context: ssl.SSLContext,
) -> None:
    in_place = {"name": "place", "requestHook": {"apiVersion": HOOKS, "hook": "UpdateMachine"}}
    server = Plain()
    server.handlers = [*Plain.handlers, in_place]
    async with served(server, context) as address:
        report = await check_extension(address, cluster=replace(sample_cluster(), machine={}))
    assert report.failed == []
    (skipped,) = report.left_out
    assert skipped.startswith("place: a request of UpdateMachine needs the current and the desired")


async def test_every_rule_has_a_server_that_breaks_it() -> None:
    elsewhere = {"reachable", "tls", "quick-patches"}
    assert {rule.name for rule in RULES} == {rule for _, rule, _ in BROKEN.values()} | elsewhere


async def test_a_missing_client_certificate_is_an_error(tmp_path: Path) -> None:
    missing = ClientCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(EndpointError):
        await check_extension(Endpoint("127.0.0.1", 1), client_certificate=missing)


class Reordering(Plain):
    """Changes the order of its responses each time and omits their kind."""

    def __init__(self) -> None:
        self.backwards = False

    def answer(self, hook: str, request: dict[str, Any]) -> dict[str, Any]:
        response = super().answer(hook, request)
        del response["apiVersion"], response["kind"]
        if hook == "GeneratePatches":
            self.backwards = not self.backwards
            response["items"] = response["items"][:: -1 if self.backwards else 1]
        return response

    def steps(self) -> Any:
        path = "/spec/template/spec"
        steps = [{"op": "add", "path": f"{path}/{key}", "value": key} for key in ("a", "b")]
        return steps[::-1] if self.backwards else steps


async def test_equivalent_responses_pass_the_rules(context: ssl.SSLContext) -> None:
    async with served(Reordering(), context) as address:
        assert (await check_extension(address)).failed == []


@pytest.mark.parametrize(
    ("steps", "fine"),
    [
        (["v1.34.0"], False),
        (["v1.33.0", "v1.34.0"], True),
        (["v1.33.0", "v1.33.2", "v1.34.0"], True),
        (["v1.33.2", "v1.33.0", "v1.34.0"], False),
        (["v1.33.0"], False),
        ([], False),
        (["new", "v1.34.0"], False),
    ],
)
def test_an_upgrade_plan_increases_minor_by_minor(steps: list[str], fine: bool) -> None:
    assert (plan_problem("v1.32.1", "v1.34.0", steps) is None) is fine
