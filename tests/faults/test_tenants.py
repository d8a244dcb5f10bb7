"""Tests of how the campaign of a hostile tenant judges its observations."""

import json

import pytest

from tests.faults.attacker import refusal
from tests.faults.attacks import outcome_of
from tests.faults.hostile import FORBIDDEN, TOKEN, HostileServers, Request, read_request
from tests.faults.tenants import TenantReport, broken_limits


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
def test_refusals_have_the_reason_or_the_admission_policy(answer: bytes, expected: str) -> None:
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
    assert outcome_of(json.dumps(answer)) == expected


def test_no_answer_is_not_an_open_gate() -> None:
    assert outcome_of("") == "no answer"


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
def test_hostile_servers_report_requests_that_capelin_must_not_send(
    address: str, request_: Request, problem: str | None
) -> None:
    servers = HostileServers()
    servers.receive("bomb", address, request_)
    assert servers.reached_by(request_.client) == 1
    assert [problem in text for text in servers.problems if problem] == [True] * bool(problem)
    assert len(servers.problems) == bool(problem)


def test_figures_above_their_limits_are_problems() -> None:
    report = TenantReport(1)
    report.seconds = {"LifecyclePolicy": [0.1] * 50, "Cluster": [0.1, 6.0]}
    report.memory = {"one": 100, "other": 513}
    assert broken_limits(report) == [
        "other used 513 MiB, more than 512",
        "changes of Cluster: p99 above 5 s",
    ]
