"""Real control planes as processes: start, upgrade under load, kill, adopt, delete."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.pki import issue, new_ca, validity_of
from capelin.provider import Blocked
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes import ProcessesBackend, instance_status
from capelin_control_plane.backends.processes.components import api_server_port
from capelin_control_plane.desired.control_plane import ComponentSettings
from capelin_control_plane.desired.instances import Observed
from capelin_embedded.binaries import Binaries
from capelin_embedded.processes import Process

from tests.load import trust

from .rig import KEY, NEW, OLD, Rig, control_plane, settled

SLACK = float(os.environ.get("CAPELIN_TEST_SLACK", "6"))
"""Factor by which an upgrade may be slower than on an idle machine.

Measured on an idle machine: 11 and 13 s, with 110 and 106 requests per second. While other tests
run: up to 40 s. `CAPELIN_TEST_SLACK=1` checks the target.
"""
UPGRADE_SECONDS = 15.0 * SLACK
REPLACED_SECONDS = 10.0 * SLACK
"""Mostly the time until an API server is ready. Measured on a busy machine: 28 s."""
SERVED_A_SECOND = 50.0 / SLACK


@pytest.mark.representative
@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_an_upgrade_under_load_fails_no_request(rig: Rig) -> None:
    await rig.until(control_plane(OLD, replicas=2), settled)
    async with rig.under_load() as callers:
        began, before = time.monotonic(), callers.served
        observed = await rig.until(control_plane(NEW, replicas=2), settled)
        took = time.monotonic() - began
        served = callers.served - before
    assert {part.version for part in observed.of("kube-apiserver")} == {NEW}
    assert callers.new_connections.failed == []
    # A stopping server closes kept connections. HTTP/1.1 cannot announce that, so a request in
    # the same millisecond fails.
    lost = callers.kept_connection.failed
    assert len(lost) <= len(observed.of("kube-apiserver"))
    assert all("Error(" in error or "shutting down" in error for error in lost), lost
    assert served / took >= SERVED_A_SECOND, f"{served} requests in {took:.1f} s"
    assert took < UPGRADE_SECONDS


@pytest.mark.timeout(300)
async def test_a_stopping_server_answers_on_open_connections(rig: Rig) -> None:
    # Longer than the default: a busy machine needs time to look.
    patient = {"kube-apiserver": ComponentSettings(arguments={"shutdown-delay-duration": "2m"})}
    desired = control_plane(NEW)
    desired = replace(desired, settings={**desired.settings, **patient})
    await rig.until(desired, settled)
    assert rig.endpoint is not None
    config = rig.backend.client_config(rig.endpoint)
    connected = await asyncio.open_connection(
        rig.endpoint.host, rig.endpoint.port, ssl=trust(config)
    )
    later = replace(desired, rollout_after=datetime.now(UTC))
    replaced = asyncio.create_task(rig.until(later, settled))

    async def is_to_go() -> bool:
        try:
            server = (rig.folder.name, api_server_port(0))
            direct = await asyncio.open_connection(*server, ssl=trust(config))
            return b" 200 OK" not in await answered(*direct, "/readyz")
        except OSError:
            return True

    await until(is_to_go)
    assert b" 200 OK" in await answered(*connected, "/version")
    replaced.cancel()
    with suppress(asyncio.CancelledError):
        await replaced


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
    """The response on an open connection."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.timeout(300)
async def test_dead_processes_are_replaced_and_running_ones_are_adopted(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    first = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert first is not None
    assert_private(rig, first)
    killed = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    await rig.until(desired, lambda observed: not settled(observed))
    await rig.until(desired, settled)
    assert time.monotonic() - killed < REPLACED_SECONDS
    second = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert second is not None
    assert second.pid != first.pid

    await rig.backend.release(KEY)
    again = Rig(
        rig.state, rig.keys, ProcessesBackend(rig.state, Binaries(), lambda _: rig.woken.set())
    )
    again.woken = rig.woken
    await again.until(desired, settled)
    adopted = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert adopted is not None
    assert adopted.pid == second.pid
    rig.backend, rig.endpoint = again.backend, again.endpoint


def assert_private(rig: Rig, process: Process) -> None:
    """No other user can read the keys of a control plane."""
    for path in (rig.folder, *(rig.folder / "pki").iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    assert b"PRIVATE KEY" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_an_api_server_that_rejects_requests_is_not_ready_until_it_serves(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    assert rig.endpoint is not None
    endpoint, before = rig.endpoint, rig.pids()
    # Like after a wrong clock: the certificates have another validity or another CA.
    now = datetime.now(UTC)
    foreign = issue(new_ca("other", now=now), common_name="admin", usages=["client"], now=now)
    admin = rig.folder / "pki" / "admin.pem"
    admin.write_bytes(foreign.certificate_pem + foreign.private_key_pem)

    def look() -> Awaitable[Observed]:
        return rig.backend.observe(KEY, endpoint, desired)

    observed = await until(look, lambda observed: not observed.answers)
    (server,) = observed.of("kube-apiserver")
    assert server.unready == "it answers 401"
    await rig.until(desired, settled)
    assert rig.pids() == before


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_hanging_processes_are_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_status, "PERIOD_SECONDS", 0.3)
    monkeypatch.setattr(instance_status, "TIMEOUT_SECONDS", 0.5)
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    before = rig.pids()
    assert len(before) == 5
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)

    def are_replaced(observed: Observed) -> bool:
        now = rig.pids()
        return settled(observed) and all(now.get(name) != pid for name, pid in before.items())

    await rig.until(desired, are_replaced)


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_the_relay_closes_connections_to_a_stopped_api_server_within_seven_seconds(
    rig: Rig,
) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    assert rig.endpoint is not None
    reader, writer = await asyncio.open_connection(rig.endpoint.host, rig.endpoint.port)
    os.kill(rig.pids()["kube-apiserver-0"], signal.SIGSTOP)
    stopped_at = time.monotonic()
    assert await reader.read() == b""
    writer.close()
    # 4.25 s on an idle machine. Without the fast check it is at least 18 s.
    assert time.monotonic() - stopped_at < 7
    await rig.until(desired, settled)


@pytest.mark.representative
@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_renewal_of_all_certificates_fails_no_request(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    leaf = rig.folder / "pki" / "apiserver.pem"
    before = leaf.read_bytes()
    async with rig.under_load() as callers:
        # Later than the issue of every certificate.
        moment = datetime.now(UTC) + timedelta(minutes=10)
        await rig.until(replace(desired, renew_issued_before=moment), settled)
        await callers.make_progress()
    assert leaf.read_bytes() != before
    assert validity_of(leaf.read_bytes()).not_before >= validity_of(before).not_before
    assert callers.failed == []


async def test_a_control_plane_with_missing_data_is_not_recreated(rig: Rig) -> None:
    with pytest.raises(Blocked) as blocked:
        await rig.backend.allocate(KEY, control_plane(), rig.keys, "127.64.0.77")
    assert blocked.value.reason == "DataMissing"
    rig.state.mkdir(exist_ok=True)
