"""Random requests, failures and moves: a host serves one machine at a time, and is then clean."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.client import Conflict, NotFound, Request, Response
from capelin.contract import DELETE_FOR_MOVE_ANNOTATION
from capelin.controller import Context, Recorder
from capelin.testing.fake_client import Clock, FakeClient, cluster
from capelin.testing.fake_server import FakeServer
from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    HostState,
    JobState,
    UpdateStep,
    next_bootstrap_step,
    next_clean_step,
    next_update_step,
)
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
)
from capelin_machine_pool.hosts.claims import (
    HostRequest,
    NoFreeHostError,
    change_claim,
    claim_host,
    holds,
    release_host,
)
from capelin_machine_pool.hosts.facts import HostFacts
from capelin_machine_pool.reconcilers import HostReconciler
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .objects import NAMESPACE, a_claim, a_host, a_machine

HOSTS = ("host-0", "host-1", "host-2")
NAMES = st.sampled_from(["one", "two", "three"])
TENANTS = ("red", "blue")
ENDED = JobState(alive=False, exit_code=0, sentinel=True)
FAILED = JobState(alive=False, exit_code=1, output="problem: crictl pods failed")
DIFFERENCE = "new file /etc/cni/net.d/10-kindnet.conflist"
PAUSES = st.booleans()


class KilledError(BaseException):
    """The provider ends here."""


class MortalServer(FakeServer):
    """An API server of which a client is killed before one of its writes."""

    writes_left: int | None = None

    async def send(self, request: Request) -> Response:
        if request.method != "GET" and self.writes_left is not None:
            if self.writes_left == 0:
                raise KilledError
            self.writes_left -= 1
        return await super().send(request)


@dataclass
class Rack:
    """The machines behind the hosts, and what may happen to them."""

    living: set[str] = field(default_factory=set[str])
    """Claims whose machine exists, in whatever management cluster."""
    confirmed: set[str] = field(default_factory=set[str])
    """Claims that a person has given up."""
    wiped: list[str] = field(default_factory=list[str])


@dataclass
class RackMachine:
    """A machine as its scripts leave it."""

    rack: Rack
    marker: str | None = None
    tenant: str | None = None
    """The claim whose pods run on it."""
    bootstrap: JobState | None = None
    update: JobState | None = None
    version: str | None = None
    clean: JobState | None = None
    baseline: str | None = None
    different: bool = False
    sticky: bool = False
    """Whether pods survive a clean-up, so that it fails."""

    @property
    def state(self) -> HostState:
        is_compared = self.marker is None and self.baseline is not None and self.different
        return HostState(
            boot_id="boot",
            hostname="host",
            marker=self.marker,
            bootstrap=self.bootstrap,
            update=self.update,
            update_version=self.version,
            clean=self.clean,
            baseline=self.baseline,
            differences=(DIFFERENCE,) if is_compared else (),
        )


@dataclass(frozen=True)
class FakeBootstrap:
    """Decides as the real one does, and changes a machine as its scripts do."""

    uid: str
    name: str

    async def bootstrap(self, machine: RackMachine, *rest: Any) -> BootstrapStep:
        step = next_bootstrap_step(self.uid, rest[1])
        if step is BootstrapStep.MARK:
            if machine.marker not in (None, self.uid) or machine.state.differences:
                return BootstrapStep.DIRTY
            machine.marker = self.uid
        if step is BootstrapStep.START and machine.bootstrap is None:
            assert machine.tenant is None, f"{self.uid} begins beside {machine.tenant}"
            machine.bootstrap, machine.tenant = ENDED, self.uid
        return step

    async def update(self, machine: RackMachine, installation: Any, state: HostState) -> UpdateStep:
        step = next_update_step(self.uid, installation.version, state)
        if step is UpdateStep.START:
            machine.update, machine.version = ENDED, installation.version
        return step

    async def clean(
        self, machine: RackMachine, state: HostState, commands: Any, *, retry: bool = False
    ) -> CleanStep:
        del commands
        step = next_clean_step(self.uid, state, retry=retry)
        if step is CleanStep.START and machine.marker == self.uid:
            rack = machine.rack
            may_end = self.uid not in rack.living or self.uid in rack.confirmed
            assert may_end, f"the node of {self.uid} is wiped while its machine exists"
            rack.wiped.append(self.uid)
            if machine.sticky:
                machine.clean = FAILED
                return step
            machine.marker = machine.tenant = None
            machine.bootstrap = machine.update = machine.clean = machine.version = None
        return step


class Management:
    """A management cluster with two providers."""

    def __init__(self, machines: dict[str, RackMachine], clock: Clock) -> None:
        self.machines, self.clock = machines, clock
        self.server = MortalServer(clock)
        self.client = FakeClient(CapelinHost, CapelinMachine, clock=clock, server=self.server)
        recorder = Recorder(self.client, "test", "test", now=clock)
        self.ctx = Context(self.client, logging.getLogger(__name__), recorder)
        self.providers: list[HostReconciler] = []
        self.stacks: list[AsyncExitStack] = []
        for name in TENANTS:
            self.client.add(cluster(name, NAMESPACE))

    async def hosts(self) -> list[CapelinHost]:
        return (await self.client.list(CapelinHost, NAMESPACE)).items

    async def reconcile(self, provider: int) -> None:
        for host in await self.hosts():
            with suppress(Conflict, NotFound):
                await self.providers[provider].reconcile(self.ctx, host)
            for _ in range(12):
                await asyncio.sleep(0)

    async def start(self) -> None:
        """Start a provider."""
        self.providers.append(HostReconciler())
        self.stacks.append(AsyncExitStack())
        await self.stacks[-1].enter_async_context(self.providers[-1].lifespan(self.ctx))

    async def stop(self) -> None:
        """Stop the provider that started first."""
        self.server.writes_left = None
        await self.stacks.pop(0).aclose()
        self.providers.pop(0)


class Hosts(RuleBasedStateMachine):
    """Two management clusters, three hosts and the machines of two tenants."""

    @initialize()
    def begin(self) -> None:
        self.runner, self.monkeypatch = asyncio.Runner(), pytest.MonkeyPatch()
        self.rack, self.seconds, self.number = Rack(), 0.0, 0
        self.machines = {name: RackMachine(self.rack) for name in HOSTS}
        self.clock = Clock()
        self.patch()
        self.clusters = [Management(self.machines, self.clock) for _ in range(2)]
        for management in self.clusters:
            for _ in range(2):
                self.run(management.start())
        self.home = 0
        self.copied = False
        for number, name in enumerate(HOSTS):
            host = a_host(name, phase=None, address=f"10.0.0.{number}")
            self.here.client.add(host)
        self.reconcile(0, 3)

    def patch(self) -> None:
        async def observe(machine: RackMachine) -> HostState:
            return machine.state

        async def take(machine: RackMachine, *, renew: bool) -> None:
            if machine.marker is None and (renew or machine.baseline is None):
                machine.baseline = "first"
                machine.different = machine.different and not renew

        async def facts(machine: RackMachine) -> HostFacts:
            del machine
            return HostFacts(clock=0)

        async def target(client: Any, host: CapelinHost) -> Any:
            del client
            machine = self.machines[HOSTS[int(host.spec.address[-1])]]

            @asynccontextmanager
            async def connect(*_: Any) -> AsyncGenerator[RackMachine]:
                yield machine

            return SimpleNamespace(connect=connect)

        async def config(*_: Any, **__: Any) -> CloudConfig:
            return CloudConfig()

        visits, hosts = (
            "capelin_machine_pool.hosts.visits",
            "capelin_machine_pool.reconcilers.hosts",
        )
        clock = SimpleNamespace(monotonic=lambda: self.seconds, time=lambda: 0.0)
        for path, value in {
            f"{visits}.observe": observe,
            f"{visits}.observe_facts": facts,
            f"{visits}.take_baseline": take,
            f"{visits}.MachineBootstrap": FakeBootstrap,
            f"{visits}.time": clock,
            f"{hosts}.ssh_target": target,
            f"{hosts}.bootstrap_config": config,
        }.items():
            self.monkeypatch.setattr(path, value)

    @property
    def here(self) -> Management:
        return self.clusters[self.home]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    # Providers

    @rule(provider=st.integers(0, 1), times=st.integers(1, 3))
    def reconcile(self, provider: int, times: int) -> None:
        for _ in range(times):
            self.seconds += 601
            self.clock.advance(601)
            for management in self.clusters:
                self.run(management.reconcile(provider))

    @rule(writes=st.integers(0, 4), provider=st.integers(0, 1))
    def kill(self, writes: int, provider: int) -> None:
        self.here.server.writes_left = writes
        with suppress(KilledError):
            self.run(self.here.reconcile(provider))
        self.run(self._restart())

    async def _restart(self) -> None:
        await self.here.stop()
        await self.here.start()

    # Machines

    @rule(name=NAMES, tenant=st.sampled_from(TENANTS), writes=st.sampled_from([None, 0, 1]))
    @precondition(lambda self: not self.copied)
    def create(self, name: str, tenant: str, writes: int | None) -> None:
        self.run(self._create(name, tenant, writes))

    async def _create(self, name: str, tenant: str, writes: int | None) -> None:
        client = self.here.client
        machine = await client.find(CapelinMachine, name, NAMESPACE)
        if machine is None:
            self.number += 1
            labels = {"claim": f"uid-{name}-{self.number}", "tenant": tenant}
            machine = await client.create(a_machine(name, labels=labels))
        claim_id = machine.metadata.labels["claim"]
        self.rack.living.add(claim_id)
        tenant = machine.metadata.labels["tenant"]
        claim = a_claim(name, id=claim_id, cluster=tenant, version="v1.33.13", profile="Commands")
        self.here.server.writes_left = writes
        with suppress(NoFreeHostError, Conflict, KilledError):
            await claim_host(client, machine, HostRequest(claim=claim))
        self.here.server.writes_left = None

    @rule(name=NAMES)
    @precondition(lambda self: not self.copied)
    def delete(self, name: str) -> None:
        self.run(self._delete(name))

    async def _delete(self, name: str) -> None:
        client = self.here.client
        machine = await client.find(CapelinMachine, name, NAMESPACE)
        if machine is None:
            return
        claim_id = machine.metadata.labels["claim"]
        self.rack.living.discard(claim_id)
        for host in await self.here.hosts():
            if holds(host, claim_id):
                with suppress(Conflict):
                    await release_host(client, host, self.clock())
        held = [host for host in await self.here.hosts() if holds(host, claim_id)]
        if not held:
            await client.delete(CapelinMachine, name, NAMESPACE)

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        """The machine is missing here, as after a restore: its node may be in use."""
        with suppress(NotFound):
            self.run(self.here.client.delete(CapelinMachine, name, NAMESPACE))

    @rule(name=NAMES)
    def update(self, name: str) -> None:
        self.run(self._update(name))

    async def _update(self, name: str) -> None:
        for host in await self.here.hosts():
            claim = host.spec.claim
            if claim is not None and claim.machine == name and claim.released_at is None:
                newer = claim.model_copy(update={"update_version": "v1.34.4"})
                with suppress(Conflict):
                    await change_claim(self.here.client, host, newer)

    # Persons

    @rule(host=st.sampled_from(HOSTS), annotation=st.sampled_from(["clean", "power", "renew"]))
    def annotate(self, host: str, annotation: str) -> None:
        """A request that names no claim: it must not wipe a node."""
        names = {
            "clean": CLEAN_AGAIN_ANNOTATION,
            "power": POWER_CYCLE_ANNOTATION,
            "renew": RENEW_BASELINE_ANNOTATION,
        }
        self.run(self._patch(host, {"metadata": {"annotations": {names[annotation]: ""}}}))

    @rule(host=st.sampled_from(HOSTS))
    def confirm(self, host: str) -> None:
        """A person gives up exactly the claim that the host shows."""
        self.run(self._confirm(host))

    async def _confirm(self, name: str) -> None:
        host = await self.here.client.find(CapelinHost, name, NAMESPACE)
        if host is not None and host.spec.claim is not None:
            claim = host.spec.claim.id
            self.rack.confirmed.add(claim)
            await self._patch(name, {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: claim}}})

    @rule(host=st.sampled_from(HOSTS), on=PAUSES)
    def maintain(self, host: str, *, on: bool) -> None:
        self.run(self._patch(host, {"spec": {"maintenance": on}}))

    @rule(tenant=st.sampled_from(TENANTS), on=PAUSES)
    def pause(self, tenant: str, *, on: bool) -> None:
        patch = {"spec": {"paused": on}}
        self.run(self.here.client.patch(Cluster, tenant, NAMESPACE, patch))

    @rule(host=st.sampled_from(HOSTS), domain=st.sampled_from(["east", "west"]))
    def edit(self, host: str, domain: str) -> None:
        self.run(self._patch(host, {"spec": {"failureDomain": domain}}))

    async def _patch(self, name: str, patch: dict[str, Any]) -> None:
        with suppress(NotFound):
            await self.here.client.patch(CapelinHost, name, NAMESPACE, patch)

    # Machines in the rack

    @rule(host=st.sampled_from(HOSTS), on=PAUSES)
    def stick(self, host: str, *, on: bool) -> None:
        self.machines[host].sticky = on

    @rule(host=st.sampled_from(HOSTS), on=PAUSES)
    def differ(self, host: str, *, on: bool) -> None:
        self.machines[host].different = on

    # Moves

    @rule()
    @precondition(lambda self: not self.copied)
    def copy(self) -> None:
        """The first half of `clusterctl move`."""
        self.run(self._copy())
        self.copied = True

    async def _copy(self) -> None:
        there = self.clusters[1 - self.home].client
        machines = (await self.here.client.list(CapelinMachine, NAMESPACE)).items
        for obj in [*await self.here.hosts(), *machines]:
            kept = {"name": obj.name, "namespace": NAMESPACE, "labels": obj.metadata.labels}
            kept["annotations"] = obj.metadata.annotations
            copied = type(obj).read({**obj.dump(), "metadata": kept, "status": None})
            await there.create(copied)

    @rule()
    @precondition(lambda self: self.copied)
    def delete_copied(self) -> None:
        """The second half: the old objects go."""
        self.run(self._delete_copied())
        self.copied, self.home = False, 1 - self.home

    async def _delete_copied(self) -> None:
        client = self.here.client
        moved = {DELETE_FOR_MOVE_ANNOTATION: ""}
        machines = (await client.list(CapelinMachine, NAMESPACE)).items
        for obj in [*await self.here.hosts(), *machines]:
            metadata = {"annotations": moved, "finalizers": None}
            await client.patch(type(obj), obj.name, NAMESPACE, {"metadata": metadata})
            with suppress(NotFound):
                await client.delete(type(obj), obj.name, NAMESPACE)
        await self.here.reconcile(0)
        assert not await self.here.hosts(), "a move leaves hosts behind"

    # Properties

    @invariant()
    def free_hosts_are_clean(self) -> None:
        if not hasattr(self, "rack"):
            return
        for host in self.run(self.here.hosts()):
            machine = self.machines[host.name]
            if host.status and host.status.phase == "Free" and host.spec.claim is None:
                assert machine.tenant is None, f"{host.name} is Free and runs {machine.tenant}"

    def teardown(self) -> None:
        if not hasattr(self, "rack"):
            return
        try:
            self.run(self._all_end())
        finally:
            for management in self.clusters:
                for _ in range(2):
                    self.run(management.stop())
            self.monkeypatch.undo()
            self.runner.close()

    async def _all_end(self) -> None:
        """Remove what only persons can remove, and require that each claim ends."""
        if self.copied:
            await self._delete_copied()
            self.copied, self.home = False, 1 - self.home
        for name in ("one", "two", "three"):
            await self._delete(name)
        for machine in self.machines.values():
            machine.sticky = machine.different = False
        phases: list[str | None] = []
        for _ in range(20):
            for host in await self.here.hosts():
                await self._patch(host.name, {"spec": {"maintenance": False}})
                if host.status and host.status.phase == "Broken":
                    await self._confirm(host.name)
                    if host.spec.claim is None:
                        request = {"annotations": {CLEAN_AGAIN_ANNOTATION: ""}}
                        await self._patch(host.name, {"metadata": request})
            self.seconds += 601
            self.clock.advance(601)
            await self.here.reconcile(0)
            hosts = await self.here.hosts()
            phases = [host.status.phase if host.status else None for host in hosts]
            if set(phases) == {"Free"} and all(host.spec.claim is None for host in hosts):
                return
        raise AssertionError(phases)


profile = settings()
Hosts.TestCase.settings = settings(
    stateful_step_count=30 if profile.derandomize else 50,
    max_examples=12 if profile.derandomize else profile.max_examples,
    suppress_health_check=(HealthCheck.too_slow,),
)
TestHosts = Hosts.TestCase
