"""Real control planes as processes: brought up, upgraded under load, killed, adopted, removed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from capelin.api.views.core import ConfigMap
from capelin.client import Client
from capelin.controller import Key
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin.embedded.processes import Process
from capelin.pki import new_ca, new_service_account_keys, validity_of
from capelin_control_plane.backends import Observed, Problem, Site
from capelin_control_plane.backends.processes import Processes
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import PROGRAMS, ControlPlane, Tuning

KEY = Key("default", "one")
OLD, NEW = KNOWN_KUBERNETES[0], KNOWN_KUBERNETES[-1]


def authorities(now: datetime) -> Authorities:
    return Authorities(
        ca=new_ca("kubernetes", now=now),
        etcd=new_ca("etcd-ca", now=now),
        proxy=new_ca("front-proxy-ca", now=now),
        service_account=new_service_account_keys(),
    )


def control_plane(version: str = OLD, replicas: int = 1) -> ControlPlane:
    return ControlPlane(
        namespace="default",
        cluster="one",
        version=version,
        replicas=replicas,
        etcd_replicas=1,
        host=None,
        port=6443,
        service_cidrs=("10.96.0.0/12",),
        pod_cidrs=(),
        service_domain="cluster.local",
        cert_sans=(),
        algorithm="ecdsa-p256",
        validity=timedelta(days=365),
        renew_before=timedelta(days=90),
        renew_made_before=None,
        rollout_after=None,
        tuning=dict.fromkeys(PROGRAMS, Tuning()),
        coredns=None,
        kube_proxy=None,
    )


@dataclass
class Rig:
    """A backend, and a control plane on it."""

    state: Path
    keys: Authorities
    backend: Processes
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    site: Site | None = None

    @classmethod
    def on(cls, state: Path) -> "Rig":
        woken = asyncio.Event()

        def wake(_: Key) -> None:
            woken.set()

        backend = Processes(state, Binaries(), wake)
        return cls(state, authorities(datetime.now(UTC)), backend, woken)

    async def until(self, wanted: ControlPlane, happened: Callable[[Observed], bool]) -> Observed:
        """Reconcile whenever something changes, until something is so."""
        while True:
            self.woken.clear()
            now = datetime.now(UTC)
            site = await self.backend.claim(wanted, self.keys, self.site and self.site.address)
            assert not isinstance(site, Problem), site
            self.site = site
            seen = await self.backend.move(KEY, site, wanted, self.keys, now)
            if happened(seen):
                return seen
            await self.woken.wait()

    @property
    def folder(self) -> Path:
        assert self.site is not None
        return self.state / self.site.address

    def client(self) -> Client:
        assert self.site is not None
        return Client(self.backend.workload(self.site), manager="test")


def settled(seen: Observed) -> bool:
    return seen.complete and seen.answers and all(part.ready for part in seen.parts)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig.on(tmp_path / "control-planes")
    yield rig
    if rig.site is not None:
        await rig.backend.remove(KEY, rig.site.address)
    assert list(rig.state.iterdir()) == []


@dataclass
class Load:
    """Reads and writes, each on a connection of its own, none of them repeated."""

    sent: int = 0
    failed: list[str] = field(default_factory=list[str])
    _sent: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def reaches(self, count: int) -> None:
        """Wait until so many requests were sent."""
        async with self._sent:
            await self._sent.wait_for(lambda: self.sent >= count)

    async def run(self, rig: Rig) -> None:
        """Ask until cancelled."""
        config = rig.backend.workload(rig.site) if rig.site else None
        assert config is not None
        async with Client(config, manager="load") as client:
            await client.apply(ConfigMap.of("load", "default", data={"n": "0"}))
            while True:
                async with self._sent:
                    self.sent += 2
                    self._sent.notify_all()
                await self._one(client.get(ConfigMap, "load", "default"))
                written = ConfigMap.of("load", "default", data={"n": str(self.sent)})
                await self._one(client.apply(written))

    async def _one(self, request: Coroutine[Any, Any, object]) -> None:
        try:
            await request
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            self.failed.append(repr(error))


@pytest.mark.timeout(300)
async def test_an_upgrade_under_load_fails_no_request(rig: Rig) -> None:
    await rig.until(control_plane(OLD, replicas=2), settled)
    load = Load()
    running = asyncio.create_task(load.run(rig))
    seen = await rig.until(control_plane(NEW, replicas=2), settled)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert {part.version for part in seen.of("kube-apiserver")} == {NEW}
    assert load.sent > 50
    assert load.failed == []


@pytest.mark.timeout(300)
async def test_what_dies_is_replaced_and_what_runs_is_adopted(rig: Rig) -> None:
    wanted = control_plane(NEW)
    await rig.until(wanted, settled)
    first = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    await rig.until(wanted, lambda seen: not settled(seen))
    await rig.until(wanted, settled)
    second = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert second is not None
    assert second.pid != first.pid

    await rig.backend.release(KEY)
    again = Rig(rig.state, rig.keys, Processes(rig.state, Binaries(), lambda _: rig.woken.set()))
    again.woken = rig.woken
    await again.until(wanted, settled)
    adopted = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert adopted is not None
    assert adopted.pid == second.pid
    rig.backend, rig.site = again.backend, again.site


@pytest.mark.timeout(300)
async def test_all_certificates_are_renewed_at_a_word_and_requests_go_on(rig: Rig) -> None:
    wanted = control_plane(NEW)
    await rig.until(wanted, settled)
    leaf = rig.folder / "pki" / "apiserver.pem"
    before = leaf.read_bytes()
    load = Load()
    running = asyncio.create_task(load.run(rig))
    await load.reaches(20)
    # A moment that is later than that of every certificate there is.
    asked = datetime.now(UTC) + timedelta(minutes=10)
    await rig.until(replace(wanted, renew_made_before=asked), settled)
    await load.reaches(load.sent + 20)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert leaf.read_bytes() != before
    assert validity_of(leaf.read_bytes()).not_before >= validity_of(before).not_before
    assert load.failed == []


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.timeout(300)
async def test_nobody_else_can_read_what_a_control_plane_keeps(rig: Rig) -> None:
    await rig.until(control_plane(NEW), lambda seen: seen.answers)
    assert rig.folder.stat().st_mode & 0o077 == 0
    for path in (rig.folder / "pki").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    process = Process.adopt(rig.folder / "run", "kube-apiserver-0")
    assert process is not None
    assert b"PRIVATE KEY" not in command_line(process.pid)


async def test_a_control_plane_whose_data_is_gone_is_not_made_anew(rig: Rig) -> None:
    site = await rig.backend.claim(control_plane(), rig.keys, "127.64.0.77")
    assert isinstance(site, Problem)
    assert site.reason == "DataMissing"
    rig.state.mkdir(exist_ok=True)
