"""Helpers of the tests on a cluster, tested without one."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest
from capelin.client import Config, Server
from capelin.pki import issue, new_ca
from capelin_control_plane.desired.control_plane import PROGRAMS
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_lifecycle.actions.approval import approval_verdict
from capelin_lifecycle.api import Approval
from capelin_lifecycle.policies.clusters import Occurrence

from .conformance_job import numbers_of_tests
from .hosted import Clients, Http1Load, met_the_end_of_a_leader
from .install_page import METHODS, PAGE, CommandFailedError, Shell, sections, with_values
from .kills import Change, planned_kills

NOW = datetime.now(UTC)
CA = new_ca("ca", now=NOW)
LEAF = issue(CA, common_name="api", usages=("server",), addresses=["127.0.0.1"], now=NOW)
ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


def test_a_plan_of_kills_depends_only_on_its_seed() -> None:
    assert planned_kills(7, 12) == planned_kills(7, 12)
    assert planned_kills(7, 12) != planned_kills(8, 12)


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_contains_every_target_and_every_change_in_a_possible_order(seed: int) -> None:
    kills = planned_kills(seed, 8)
    assert len(kills) == 8
    assert {kill.component for kill in kills} == {*PROGRAMS, None}
    changes = [kill.change for kill in kills if kill.change is not None]
    assert sorted(changes) == sorted(get_args(Change))
    assert changes.index("another API server") < changes.index("an API server less")
    assert all(kill.stops_provider for kill in kills if kill.component is None)


@pytest.mark.parametrize(
    ("answers", "failed", "closed"),
    [
        pytest.param([b""], 1, 0, id="a new connection"),
        pytest.param([ANSWER, b""], 0, 1, id="a kept connection"),
        pytest.param([ANSWER, ANSWER[:20]], 1, 0, id="within an answer"),
        pytest.param([ANSWER, ANSWER[:-2]], 1, 0, id="within its body"),
    ],
)
async def test_only_a_kept_connection_that_was_idle_may_end_before_an_answer(
    answers: Sequence[bytes], failed: int, closed: int, tmp_path: Path
) -> None:
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r")[0]))
                answer = left.pop(0) if left else ANSWER
                writer.write(answer)
                if answer != ANSWER:
                    break
        writer.close()

    (tmp_path / "pair").write_bytes(LEAF.certificate_pem + LEAF.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pair")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    config = Config(Server(f"https://127.0.0.1:{port}", ca=CA.certificate_pem))
    load = Http1Load(config, keeps=True)
    running = asyncio.create_task(load.run())
    await load.reaches(6)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    clients = Clients({"outside, HTTP/1.1, kept": load}, {})
    assert (len(clients.failed()), len(clients.closed())) == (failed, closed)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (500, "etcdserver: request timed out, possibly due to previous leader failure", True),
        (500, "etcdserver: leader changed", True),
        (500, "etcdserver: mvcc: database space exceeded", False),
        (404, "etcdserver: leader changed", False),
    ],
)
def test_requests_lost_by_a_leader_change(status: int, message: str, *, expected: bool) -> None:
    failure = (
        f'outside: POST /api/v1/configmaps: {status} {{"message":"{message}","code":{status}}}'
    )
    assert met_the_end_of_a_leader(failure) is expected


def test_a_skipped_test_is_a_failure() -> None:
    file = Path(__file__).with_name("test_kind_target.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(file)],
        env={**os.environ, "CAPELIN_E2E_KIND": "/absent/kind"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "the test was skipped, and none may be: " in done.stdout


def test_the_commands_of_a_method_omit_the_other_method() -> None:
    found = list(sections(PAGE.read_text()))
    titles = [section.title for section in found]
    assert len(titles) == len(set(titles))
    for method, other in zip(METHODS, reversed(METHODS), strict=True):
        own = [section.title for section in found if section.is_for(method)]
        assert f"Install with {method}" in own
        assert not any(f"with {other}" in title for title in own)


def test_values_replace_those_of_the_page() -> None:
    commands = "export A=1\nexport B=$A\necho A=1\n"
    assert with_values(commands, {"A": "2"}) == "export A=2\nexport B=$A\necho A=1\n"


async def test_a_shell_keeps_variables_and_stops_at_a_failure(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"PATH": os.environ["PATH"]})
    await shell.run("A='two words'")
    assert await shell.run('echo "$A"') == "two words\n"
    with pytest.raises(CommandFailedError, match="shown"):
        await shell.run("echo shown; false | cat; echo hidden")


_KUBECTL = """#!/bin/sh
case "$*" in
  *jsonpath*status.message*) echo "$MESSAGE" ;;
  "get lifecycleresults") echo Waiting ;;
  annotate*) echo "annotated: $4" ;;
esac
"""


async def test_the_page_approves_with_the_code_of_the_result(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL)
    kubectl.chmod(0o755)
    approver = "kubernetes-admin"
    hook = Occurrence("BeforeClusterUpgrade", "default", "demo", "uid")
    request = (Approval(approvers=[approver]), "upgrades", hook, "28def9e7")
    waiting = approval_verdict(*request, {}, since=NOW, now=NOW)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "MESSAGE": waiting.message,
        "APPROVER": approver,
        "NEXT_KUBERNETES_VERSION": TESTED_KUBERNETES[-1],
    }
    (section,) = [
        section
        for section in sections(PAGE.read_text())
        if section.title == "Control planes and workers"
    ]
    output = await Shell(tmp_path, environment).run(section.commands)
    (annotation,) = [line for line in output.splitlines() if line.startswith("annotated: ")]
    name, _, value = annotation.removeprefix("annotated: ").partition("=")
    approved = approval_verdict(*request, {name: value}, since=NOW, now=NOW)
    assert approved.phase == "Done", approved.message


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("SUCCESS! -- 31 Passed | 0 Failed | 0 Pending | 7012 Skipped", (31, 31, 0)),
        ("FAIL! -- 30 Passed | 1 Failed | 0 Pending | 7012 Skipped", (31, 30, 1)),
    ],
)
def test_numbers_of_tests_come_from_the_end_of_a_log(
    line: str, numbers: tuple[int, int, int]
) -> None:
    log = f"Ran 31 of 7043 Specs in 61.5 seconds\n{line}\n\nTest Suite ended\n"
    assert numbers_of_tests(log) == numbers
