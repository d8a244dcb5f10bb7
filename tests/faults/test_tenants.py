"""Verdicts of the campaign of a hostile tenant."""

import asyncio
import json
import re
from random import Random

import pytest
from capelin.api import ObjectMeta
from capelin.api.core import ConfigMap
from capelin.testing.fake_client import FakeClient

from tests.faults.attacker import Attack, Attacker, Evidence, refusal, rounds
from tests.faults.attacks import ATTACKS, outcome_of
from tests.faults.honest import Watched
from tests.faults.hostile import (
    ALLOWED,
    FORBIDDEN,
    TOKEN,
    HostileServers,
    Request,
    hostile_servers,
    read_request,
)
from tests.faults.tenant_report import TenantReport, broken_limits


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"reason": "Invalid", "message": "spec.action: too deep"}', "422 Invalid"),
        (
            b'{"reason": "Invalid", "message": "ValidatingAdmissionPolicy \'a-b\' with binding"}',
            "422 a-b",
        ),
        (b'{"message": "no reason"}', "422"),
        (b"[" * 100_000, "422"),
        (b"upstream failed", "422"),
    ],
)
def test_a_refusal_names_its_reason_or_admission_policy(answer: bytes, expected: str) -> None:
    assert refusal(422, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"status": "Success", "retryAfterSeconds": 0}, "let through"),
        ({"status": "Success"}, "let through"),
        ({"status": "Success", "retryAfterSeconds": 10}, "blocks"),
        ({"status": "Failure", "message": "another Cluster"}, "fails"),
        ({"error": "too large"}, "no response of a hook"),
        ([], "no response of a hook"),
    ],
)
def test_outcome_of_a_forged_call(answer: object, expected: str) -> None:
    assert outcome_of(200, json.dumps(answer)) == expected


def test_a_missing_answer_or_an_error_is_not_an_open_gate() -> None:
    assert outcome_of(0, "") == "no answer"
    assert outcome_of(413, "") == "HTTP 413"


def test_requests_have_path_client_and_token() -> None:
    head = (
        b"GET /api?x=1 HTTP/1.1\r\nHost: a\r\nUser-Agent: capelin/1\r\nauthorization: Bearer t\r\n"
    )
    assert read_request(head + b"\r\n") == Request("/api?x=1", "capelin", "t")


def test_tls_handshakes_are_not_requests() -> None:
    assert read_request(b"\x16\x03\x01\x02\x00\r\n\r\n") is None


@pytest.mark.parametrize(
    ("address", "request_", "problem"),
    [
        ("127.0.0.1", Request("/api", "capelin", TOKEN), None),
        (FORBIDDEN, Request("/api", "manager", TOKEN), None),
        (FORBIDDEN, Request("/api", "capelin", TOKEN), "connected to 127.0.0.2"),
        ("127.0.0.1", Request("/redirected", "capelin", ""), "followed a redirect"),
        ("127.0.0.1", Request("/api", "capelin", "other"), "token"),
    ],
)
def test_forbidden_requests_reported(address: str, request_: Request, problem: str | None) -> None:
    servers = HostileServers()
    servers.receive("bomb", address, request_)
    assert servers.reached_by(request_.client) == 1
    assert [problem in text for text in servers.problems if problem] == [True] * bool(problem)
    assert len(servers.problems) == bool(problem)


@pytest.mark.parametrize(("client", "is_answered"), [("capelin", True), ("manager", False)])
def test_only_capelin_gets_endless_answers(client: str, is_answered: bool) -> None:
    async def answer() -> bytes:
        async with hostile_servers() as servers:
            reader, writer = await asyncio.open_connection(ALLOWED, servers.ports["endless"])
            writer.write(f"GET /api HTTP/1.1\r\nUser-Agent: {client}/1\r\n\r\n".encode())
            line = await reader.readline()
            writer.close()
            return line

    assert asyncio.run(answer()).startswith(b"HTTP/1.1 200") == is_answered


async def nothing(_: Attacker) -> None:
    """No attack."""


KINDS = tuple(Attack(f"kind-{number}", nothing, ("too large",)) for number in range(5))


def finished_report() -> TenantReport:
    """The report of a campaign within its limits."""
    report = TenantReport(1, 3, Evidence(KINDS[:2]))
    report.attacked = {"LifecyclePolicy": [0.1] * 50}
    report.memory = {"one": 100}
    for number, figure in enumerate(report.evidence.figures.values()):
        figure.begin(number)
        figure.stopped.add("answer")
    return report


def test_a_report_within_its_limits_has_no_problems() -> None:
    assert broken_limits(finished_report()) == []


def test_figures_above_their_limits_are_problems() -> None:
    report = finished_report()
    report.attacked["Cluster"] = [0.1, 6.0]
    report.memory["other"] = 513
    assert broken_limits(report) == [
        "other used 513 MiB, more than 512",
        "changes of Cluster: p99 above 5 s",
    ]


def test_attacks_that_reach_no_limit_or_are_rare_are_problems() -> None:
    report = finished_report()
    first, second = report.evidence.figures.values()
    first.stopped.clear()
    second.begin(182)
    assert broken_limits(report) == [
        "kind-1 did not occur for 181 s",
        "kind-0 never reached a limit",
    ]


def test_a_campaign_without_attacks_or_changes_has_problems() -> None:
    assert broken_limits(TenantReport(1, 3, Evidence(KINDS[:1]))) == [
        "no change of an honest tenant was measured",
        "kind-0 did not occur",
    ]


def test_each_kind_of_attack_occurs_in_each_round() -> None:
    order = rounds(KINDS, Random(1))  # noqa: S311 - the same order every time
    taken = [[next(order) for _ in KINDS] for _ in range(3)]
    assert [set(attacks) for attacks in taken] == [set(KINDS)] * 3
    assert taken[0] != taken[1]


def test_texts_about_objects_count_for_their_attack() -> None:
    evidence = Evidence(KINDS)
    for name in ("kind-1-17", "kind-1-17", "kind-1-18", "demo"):
        evidence.add_about(name, "the response is too large")
    evidence.add_about("kind-2-3", "waiting")
    assert {name: len(figure.stopped) for name, figure in evidence.figures.items()} == {
        **{kind.name: 0 for kind in KINDS},
        "kind-1": 2,
    }
    assert evidence.figures["kind-2"].texts == {"waiting": 1}


def test_kinds_of_attacks_have_unique_names_that_are_valid_for_objects() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z-]{1,40}", name) for name in names)


def test_an_early_version_counts_from_its_arrival() -> None:
    async def arrivals() -> list[float]:
        watched = Watched(FakeClient(), "team")
        watched.note(ConfigMap, ConfigMap(metadata=ObjectMeta(name="first")), 3.0)
        waiting = asyncio.create_task(watched.until(ConfigMap, lambda item: item.name == "second"))
        await asyncio.sleep(0)
        watched.note(ConfigMap, ConfigMap(metadata=ObjectMeta(name="second")), 5.0)
        first = await watched.until(ConfigMap, lambda item: item.name == "first")
        return [first, await waiting]

    assert asyncio.run(arrivals()) == [3.0, 5.0]
