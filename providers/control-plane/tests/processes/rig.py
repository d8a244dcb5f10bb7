"""A backend of processes without a management cluster around it, and load on what it makes."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from capelin.api.views.core import ConfigMap
from capelin.client import Client
from capelin.controller import Key
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin.embedded.processes.kernel import marked
from capelin.pki import new_ca, new_service_account_keys
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
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seen.problem is None else 1):
                    await self.woken.wait()

    @property
    def folder(self) -> Path:
        assert self.site is not None
        return self.state / self.site.address

    def pids(self) -> dict[str, int]:
        """Everything that runs of the control plane."""
        return {one.name: one.identity.pid for one in marked(self.folder / "run")}

    def client(self) -> Client:
        assert self.site is not None
        return Client(self.backend.workload(self.site), manager="test")


def settled(seen: Observed) -> bool:
    return seen.complete and seen.answers and all(part.ready for part in seen.parts)


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
