"""What the tests on a cluster rely on, without one."""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest
from capelin.client import Config, Server
from capelin.pki import issue, new_ca
from capelin_control_plane.desired import PROGRAMS

from .hosted import Clients, Http1Load, met_the_end_of_a_leader
from .kills import Change, planned_kills

NOW = datetime.now(UTC)
CA = new_ca("ca", now=NOW)
LEAF = issue(CA, common_name="api", usages=("server",), addresses=["127.0.0.1"], now=NOW)
ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


def test_a_seed_plans_the_same_kills_each_time_and_another_one_others() -> None:
    assert planned_kills(7, 12) == planned_kills(7, 12)
    assert planned_kills(7, 12) != planned_kills(8, 12)


@pytest.mark.parametrize("seed", range(50))
def test_every_target_is_killed_and_every_change_made_in_an_order_that_works(seed: int) -> None:
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
def test_only_what_etcds_leader_cost_is_taken_for_that(
    status: int, message: str, *, expected: bool
) -> None:
    failure = (
        f'outside: POST /api/v1/configmaps: {status} {{"message":"{message}","code":{status}}}'
    )
    assert met_the_end_of_a_leader(failure) is expected
