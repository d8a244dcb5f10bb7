"""A backend of processes without a management cluster around it."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from capelin.client import Client
from capelin.controller import Key
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries, Binary
from capelin.embedded.processes.kernel import marked
from capelin.pki import new_ca, new_service_account_keys
from capelin.testing.load import Load
from capelin_control_plane.backends import Observed, Problem, Site
from capelin_control_plane.backends.processes import Processes
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import ControlPlane

from ..making import wanted  # noqa: TID252 - a folder of tests has no name to import it by

KEY, CLUSTER = Key("default", "one"), "one"
OLD, NEW = KNOWN_KUBERNETES[0], KNOWN_KUBERNETES[-1]


def authorities(now: datetime) -> Authorities:
    return Authorities(
        ca=new_ca("kubernetes", now=now),
        etcd=new_ca("etcd-ca", now=now),
        proxy=new_ca("front-proxy-ca", now=now),
        service_account=new_service_account_keys(),
    )


def control_plane(version: str = OLD, replicas: int = 1) -> ControlPlane:
    return wanted(version, replicas=replicas)


class Idle(Binaries):
    """Programs that do nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._program = folder / "idle"
        self._program.write_text("#!/bin/sh\nexec sleep 1000\n")
        self._program.chmod(0o755)

    async def fetch(self, names: Iterable[str]) -> dict[str, Binary]:
        return {name: Binary(name, None, self._program) for name in names}


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
            wanted = replace(wanted, as_of=now)
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

    def load(self) -> Load:
        """Somebody who asks what the control plane's endpoint can be asked."""
        assert self.site is not None
        return Load(self.backend.workload(self.site))

    def client(self) -> Client:
        assert self.site is not None
        return Client(self.backend.workload(self.site), manager="test")


def settled(seen: Observed) -> bool:
    return seen.complete and seen.answers and all(part.ready for part in seen.parts)
