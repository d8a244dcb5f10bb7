"""Random requests, failures and moves: a host serves one machine at a time, and is then clean."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from capelin.client import AlreadyExists, NotFound
from capelin.testing.fake_client import Clock, FakeClient
from capelin_machine_pool.api import CapelinMachine, HostReference
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
)
from capelin_machine_pool.hosts.claims import holds, is_free
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .hosts_world import (
    ENDED,
    FOREIGN,
    HOSTS,
    TENANTS,
    KilledError,
    Management,
    Network,
    Rack,
    RackMachine,
    a_model_host,
    a_model_machine,
    claim_of,
)
from .objects import NAMESPACE

NAMES = ("one", "two")
MACHINE = st.integers(0, 1)
CHOSEN = st.sampled_from(list(HOSTS))
ON = st.sampled_from([True, False, False])
THEN = st.integers(0, 3)
"""How many times a provider reconciles after an event."""
REQUESTS = {
    "clean": CLEAN_AGAIN_ANNOTATION,
    "power": POWER_CYCLE_ANNOTATION,
    "renew": RENEW_BASELINE_ANNOTATION,
}


class HostsMachine(RuleBasedStateMachine):
    """Two management clusters, two hosts and the machines of two tenants."""

    @initialize(machines=st.integers(0, 2))
    def begin(self, machines: int) -> None:
        self.runner, self.monkeypatch = asyncio.Runner(), pytest.MonkeyPatch()
        self.rack, self.seconds, self.clock = Rack(), 0.0, Clock()
        self.rack.workloads = {name: FakeClient(clock=self.clock) for name in TENANTS}
        self.machines = {it: RackMachine(self.rack) for it in (*HOSTS.values(), FOREIGN)}
        foreign = self.machines[FOREIGN]
        foreign.marker = foreign.tenant = "foreign"
        foreign.bootstrap = ENDED
        Network(self.rack, self.machines).patch(self.monkeypatch, lambda: self.seconds)
        self.clusters = [Management(self.rack, self.clock) for _ in range(2)]
        for management in self.clusters:
            for _ in range(2):
                self.run(management.start())
        self.home = 0
        self.broken: set[str] = set()
        """Uids of Broken hosts without a machine, which only a person releases."""
        for name in HOSTS:
            self.here.client.add(a_model_host(name))
        for _ in range(machines):
            self.create("red", 0)
        self.reconcile(0, 4)

    @property
    def here(self) -> Management:
        return self.clusters[self.home]

    @property
    def there(self) -> Management:
        return self.clusters[1 - self.home]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    # Providers

    @rule(provider=st.integers(0, 1), times=st.integers(1, 3), seconds=st.sampled_from([3, 601]))
    def reconcile(self, provider: int, times: int, seconds: int = 601) -> None:
        for _ in range(times):
            self.seconds += seconds
            self.clock.advance(seconds)
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

    @rule(tenant=st.sampled_from(TENANTS), then=THEN)
    @precondition(lambda self: not self.here.is_moving)
    def create(self, tenant: str, then: int) -> None:
        names = {machine.name for machine in self.run(self.here.machines())}
        for name in [name for name in NAMES if name not in names][:1]:
            self.here.note(self.run(self.here.client.create(a_model_machine(name, tenant))))
        self.reconcile(0, then)

    def _name(self, number: int) -> str:
        """The name of a machine that exists, if any does."""
        names = [machine.name for machine in self.run(self.here.machines())] or NAMES
        return names[number % len(names)]

    @rule(number=MACHINE, failing=st.sampled_from(["", "GET", "PATCH"]), then=THEN)
    @precondition(lambda self: not self.here.is_moving)
    def delete(self, number: int, failing: str, then: int) -> None:
        """Delete a machine. The next such request about hosts may fail."""
        self.run(self._delete(self._name(number)))
        self.here.server.failing = failing
        self.reconcile(0, then)
        self.here.server.failing = ""

    async def _delete(self, name: str) -> None:
        if (machine := await self.here.find_machine(name)) is not None:
            self.rack.living.discard(claim_of(machine))
            await self.here.client.delete(CapelinMachine, name, NAMESPACE)

    @rule(number=MACHINE, then=THEN)
    def lose(self, number: int, then: int) -> None:
        """The machine is missing here, as after a restore: its node may be in use."""
        self.run(self._lose(self._name(number)))
        self.reconcile(0, then)

    async def _lose(self, name: str) -> None:
        if (machine := await self.here.find_machine(name)) is not None:
            self.rack.lost |= {claim_of(machine), machine.uid}
            kept = {"metadata": {"finalizers": None}}
            with suppress(NotFound):
                await self.here.client.patch(CapelinMachine, name, NAMESPACE, kept)
                await self.here.client.delete(CapelinMachine, name, NAMESPACE)

    @rule(
        number=MACHINE,
        version=st.sampled_from(["v1.34.4", "v1.35.0"]),
        failing=st.booleans(),
        then=THEN,
    )
    def update(self, number: int, version: str, then: int, *, failing: bool) -> None:
        name, patch = self._name(number), {"spec": {"version": version}}
        for machine in self.machines.values():
            machine.failing = failing
        with suppress(NotFound):
            self.run(self.here.client.patch(CapelinMachine, name, NAMESPACE, patch))
        self.reconcile(0, then)

    # Persons

    @rule(host=CHOSEN, request=st.sampled_from(list(REQUESTS)), then=THEN)
    def annotate(self, host: str, request: str, then: int) -> None:
        """A request that names no claim: it must not wipe a node."""
        self.run(self._patch(host, {"metadata": {"annotations": {REQUESTS[request]: ""}}}))
        self.reconcile(0, then)

    @rule(host=CHOSEN)
    def confirm(self, host: str) -> None:
        """A person gives up exactly the claim that the host shows."""
        self.run(self._confirm(host))

    async def _confirm(self, name: str) -> None:
        host = await self.here.client.find(CapelinHost, name, NAMESPACE)
        if host is not None and host.spec.claim is not None:
            claim = host.spec.claim.id
            self.rack.confirmed.add(claim)
            await self._patch(name, {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: claim}}})

    @rule(host=CHOSEN)
    @precondition(lambda self: not self.here.is_moving)
    def insist(self, host: str) -> None:
        """A person repeats a clean-up that fails, and waits for none of the two."""
        self.run(self._insist(host))

    async def _insist(self, name: str) -> None:
        for _ in range(2):
            host = await self.here.client.find(CapelinHost, name, NAMESPACE)
            if host is None or host.status is None or host.status.phase != "Broken":
                return
            claim, machine = host.spec.claim, self.machines[host.spec.address]
            is_own = claim is None or (claim.released_at is not None and claim.id == machine.marker)
            if machine.unplugged or not machine.sticky or machine.marker is None or not is_own:
                return
            before = machine.cleanings
            await self._patch(name, {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: ""}}})
            for _ in range(8):
                await self._reconcile_soon()
                live = await self.here.client.get(CapelinHost, name, NAMESPACE)
                if CLEAN_AGAIN_ANNOTATION not in live.metadata.annotations:
                    break
            assert machine.cleanings > before, "a requested clean-up does not begin"

    async def _reconcile_soon(self) -> None:
        self.seconds += 3
        self.clock.advance(3)
        await self.here.reconcile(0)
        await self.here.idle()

    @rule(host=CHOSEN, on=ON)
    def maintain(self, host: str, *, on: bool) -> None:
        self.run(self._patch(host, {"spec": {"maintenance": on}}))

    @rule(tenant=st.sampled_from(TENANTS), on=ON, then=THEN)
    def pause(self, tenant: str, then: int, *, on: bool) -> None:
        """Pause a Cluster when a provider has reconciled its machines, but not yet their hosts."""
        self.run(self.here.reconcile_machines(0))
        self.run(self._pause(tenant, on=on))
        self.reconcile(0, then)

    async def _pause(self, tenant: str, *, on: bool) -> None:
        for management in self.clusters:
            await management.idle()
            await management.pause(tenant, on=on)
        hosts = [host for it in self.clusters for host in await it.hosts()]
        (self.rack.paused.add if on else self.rack.paused.discard)(tenant)
        self.rack.updating = {
            host.spec.claim.id
            for host in hosts
            if host.spec.claim and host.status and host.status.phase == "Updating"
        }

    @rule(host=CHOSEN, domain=st.sampled_from(["east", "west"]))
    def edit(self, host: str, domain: str) -> None:
        self.run(self._patch(host, {"spec": {"failureDomain": domain}}))

    @rule(host=CHOSEN, then=THEN)
    def forget_key(self, host: str, then: int) -> None:
        """The machine has another key, which the provider learns."""
        self.run(self._patch(host, {"spec": {"hostKeys": [], "trustOnFirstUse": True}}))
        self.reconcile(0, then)

    @rule(is_foreign=st.booleans(), cycles=st.booleans(), then=THEN)
    def readdress(self, then: int, *, is_foreign: bool, cycles: bool) -> None:
        """Another address, which the API server allows only without a claim."""
        self.run(self._readdress(is_foreign=is_foreign))
        if cycles:
            self.annotate("host-0", "power", 0)
        self.reconcile(0, then)

    async def _readdress(self, *, is_foreign: bool) -> None:
        host = await self.here.client.find(CapelinHost, "host-0", NAMESPACE)
        if host is not None and host.spec.claim is None and not self.here.is_moving:
            address = FOREIGN if is_foreign else HOSTS["host-0"]
            await self._patch("host-0", {"spec": {"address": address}})

    @rule(host=CHOSEN)
    @precondition(lambda self: not self.here.is_moving)
    def remove(self, host: str) -> None:
        with suppress(NotFound):
            self.run(self.here.client.delete(CapelinHost, host, NAMESPACE))

    @rule(host=CHOSEN)
    @precondition(lambda self: not self.here.is_moving)
    def add(self, host: str) -> None:
        with suppress(AlreadyExists):
            self.run(self.here.client.create(a_model_host(host)))

    @rule(name=st.sampled_from(NAMES))
    def delete_secret(self, name: str) -> None:
        self.rack.secretless.add(name)

    async def _patch(self, name: str, patch: dict[str, Any]) -> None:
        with suppress(NotFound):
            patched = await self.here.client.patch(CapelinHost, name, NAMESPACE, patch)
            if CLEAN_AGAIN_ANNOTATION in patched.metadata.annotations:
                self.broken.discard(patched.uid)

    # Machines in the rack

    @rule(
        address=st.sampled_from(list(HOSTS.values())),
        trouble=st.sampled_from(["sticky", "different", "unplugged"]),
        on=ON,
    )
    def trouble(self, address: str, trouble: str, *, on: bool) -> None:
        setattr(self.machines[address], trouble, on)

    # Moves

    @rule()
    @precondition(lambda self: not self.here.is_moving)
    def copy(self) -> None:
        objects = [*self.run(self.here.hosts()), *self.run(self.here.machines())]
        # clusterctl moves nothing that is being deleted.
        if all(obj.metadata.deletion_timestamp is None for obj in objects):
            self.run(self.here.copy_to(self.there))

    @rule()
    @precondition(lambda self: self.here.is_moving)
    def delete_copied(self) -> None:
        self.run(self.here.delete_copied(self.there))
        self.home = 1 - self.home

    # Properties

    @invariant()
    def nothing_is_violated(self) -> None:
        if hasattr(self, "rack"):
            assert self.rack.violations == []

    @invariant()
    def free_hosts_are_clean(self) -> None:
        if not hasattr(self, "rack"):
            return
        for host in self.run(self.here.hosts()):
            machine = self.machines[host.spec.address]
            is_broken = host.status is not None and host.status.phase == "Broken"
            is_asked = CLEAN_AGAIN_ANNOTATION in host.metadata.annotations
            if is_broken and host.spec.claim is None and not is_asked:
                self.broken.add(host.uid)
            if is_free(host):
                assert host.uid not in self.broken, f"{host.name} was Broken"
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
        if self.here.is_moving:
            await self.here.delete_copied(self.there)
            self.home = 1 - self.home
        for tenant in TENANTS:
            await self._pause(tenant, on=False)
        for machine in self.machines.values():
            machine.sticky = machine.different = machine.failing = machine.unplugged = False
        for _ in range(6):
            await self._pass()
        for host in await self.here.hosts():
            await self._require_ready(host)
        for name in NAMES:
            await self._delete(name)
        await self._all_become_free()

    async def _all_become_free(self) -> None:
        phases: list[str | None] = []
        for _ in range(20):
            for name in HOSTS:
                with suppress(AlreadyExists):
                    await self.here.client.create(a_model_host(name))
            for host in await self.here.hosts():
                await self._help(host)
            await self._readdress(is_foreign=False)
            await self._pass()
            hosts = await self.here.hosts()
            phases = [host.status.phase if host.status else None for host in hosts]
            if set(phases) == {"Free"} and all(host.spec.claim is None for host in hosts):
                self.nothing_is_violated()
                return
        raise AssertionError(phases)

    async def _pass(self) -> None:
        self.seconds += 601
        self.clock.advance(601)
        await self.here.reconcile(0)
        await self.here.idle()

    async def _require_ready(self, host: CapelinHost) -> None:
        """A bootstrap that was successful needs nothing any more."""
        claim, machine = host.spec.claim, self.machines[host.spec.address]
        if claim is None or not holds(host, machine.marker or "") or machine.bootstrap != ENDED:
            return
        owner = await self.here.find_machine(claim.machine)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return
        if owner.spec.host == HostReference(name=host.name, claim=claim.id):
            phase = host.status.phase if host.status else None
            assert phase in {"Ready", "Updating"}, f"{host.name} is in use and {phase}"

    async def _help(self, host: CapelinHost) -> None:
        """Do as the conditions of a host suggest."""
        await self._patch(host.name, {"spec": {"maintenance": False}})
        claim = host.spec.claim
        if host.status is None or host.status.phase != "Broken":
            return
        if claim is not None and claim.released_at is None:
            assert claim.id in self.rack.lost, f"the machine of {claim.id} did not release it"
            await self._confirm(host.name)
        else:
            await self._patch(
                host.name, {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: ""}}}
            )


profile = settings()
HostsMachine.TestCase.settings = settings(
    stateful_step_count=30 if profile.derandomize else 50,
    max_examples=12 if profile.derandomize else profile.max_examples,
    suppress_health_check=(HealthCheck.too_slow,),
)
TestHosts = HostsMachine.TestCase
