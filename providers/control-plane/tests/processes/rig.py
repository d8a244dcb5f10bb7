"""A backend of processes without a management cluster around it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.pki import new_ca, new_service_account_keys
from capelin_control_plane.backends import reconcile_instances
from capelin_control_plane.backends.processes import ProcessesBackend, supervised
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint, Observed
from capelin_control_plane.keys.certificates import Authorities
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries, Binary, Component
from capelin_embedded.processes import Probe, marked_processes

from tests.load import Load

from ..factories import desired_control_plane  # noqa: TID252 - a folder without a name

KEY = ObjectKey("default", "one")
OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
_PAUSE_SECONDS = 0.02


def authorities(now: datetime) -> Authorities:
    return Authorities(
        ca=new_ca("kubernetes", now=now),
        etcd=new_ca("etcd-ca", now=now),
        proxy=new_ca("front-proxy-ca", now=now),
        service_account=new_service_account_keys(),
    )


def control_plane(version: str = OLD, replicas: int = 1) -> ControlPlane:
    return desired_control_plane(version, replicas=replicas)


@dataclass(frozen=True)
class Callers:
    """Clients that send requests to the endpoint of a control plane."""

    new_connections: Load
    """Connects for each request."""
    kept_connection: Load
    """Keeps one connection."""

    @property
    def loads(self) -> tuple[Load, Load]:
        return self.new_connections, self.kept_connection

    @property
    def failed(self) -> list[str]:
        return [*self.new_connections.failed, *self.kept_connection.failed]

    @property
    def served(self) -> int:
        # One request of each is in flight.
        return sum(load.sent - 1 for load in self.loads) - len(self.failed)

    async def make_progress(self, count: int = 20) -> None:
        """Wait until each client has sent this many more requests."""
        for load in self.loads:
            await load.reaches(load.sent + count)


class Idle(Binaries):
    """Programs that do nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._program = folder / "idle"
        self._program.write_text("#!/bin/sh\nexec sleep 1000\n")
        self._program.chmod(0o755)

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        return {str(name): Binary(str(name), None, self._program) for name in names}


@dataclass
class Rig:
    """A backend, and a control plane on it."""

    state: Path
    keys: Authorities
    backend: ProcessesBackend
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: Endpoint | None = None

    @classmethod
    def on(cls, state: Path, programs: Binaries | None = None) -> "Rig":
        """A rig with its state in a folder, and with the real binaries or the given ones."""
        woken = asyncio.Event()

        def wake(_: ObjectKey) -> None:
            woken.set()

        backend = ProcessesBackend(state, programs or Binaries(), wake)
        return cls(state, authorities(datetime.now(UTC)), backend, woken)

    async def allocate(self, desired: ControlPlane) -> Endpoint:
        """Let the backend find or choose the address of the control plane."""
        address = self.endpoint and self.endpoint.address
        self.endpoint = await self.backend.allocate(KEY, desired, self.keys, address)
        return self.endpoint

    async def reconcile(self, desired: ControlPlane) -> Observed:
        """Take one step."""
        desired = replace(desired, now=datetime.now(UTC))
        endpoint = await self.allocate(desired)
        return await reconcile_instances(self.backend, KEY, endpoint, desired)

    async def until(self, desired: ControlPlane, happened: Callable[[Observed], bool]) -> Observed:
        """Reconcile on each change until the condition is met."""
        while True:
            self.woken.clear()
            observed = await self.reconcile(desired)
            if happened(observed):
                return observed
            with suppress(TimeoutError):
                async with asyncio.timeout(None if observed.blocked is None else 1):
                    await self.woken.wait()

    @property
    def folder(self) -> Path:
        assert self.endpoint is not None
        return self.state / self.endpoint.address

    def pids(self) -> dict[str, int]:
        """Process ids of the control plane by name."""
        return {one.name: one.identity.pid for one in marked_processes(self.folder / "run")}

    @asynccontextmanager
    async def under_load(self, kept: type[Load] = Load) -> "AsyncGenerator[Callers]":
        """Run a client that connects for each request and one that keeps its connection.

        Args:
            kept: The client that keeps its connection.
        """
        assert self.endpoint is not None
        config = self.backend.client_config(self.endpoint)
        callers = Callers(
            new_connections=Load(config, pause=_PAUSE_SECONDS),
            kept_connection=kept(config, pause=_PAUSE_SECONDS, keeps=True),
        )
        running = [asyncio.create_task(load.run()) for load in callers.loads]
        try:
            await callers.make_progress()
            yield callers
        finally:
            for task in running:
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in ended), ended

    def client(self) -> Client:
        assert self.endpoint is not None
        return Client(self.backend.client_config(self.endpoint), manager="test")


def settled(observed: Observed) -> bool:
    return observed.complete and observed.answers and all(part.ready for part in observed.statuses)


@dataclass
class Roll:
    """Watches a rollout and counts the etcd members that were unready at the same time."""

    most_away: int = 0

    def is_over(self, observed: Observed) -> bool:
        away = sum(not member.ready for member in observed.of("etcd"))
        self.most_away = max(self.most_away, away)
        return settled(observed)


def all_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every running process as ready, and none as hanging: they serve nothing."""

    def probe(*_: object) -> Probe:
        async def ask() -> AsyncGenerator[str, None]:
            while True:
                yield ""

        return ask

    def never(*_: object) -> None: ...

    monkeypatch.setattr(supervised, "readiness", probe)
    monkeypatch.setattr(supervised, "reachability", probe)
    monkeypatch.setattr(supervised, "liveness", never)
