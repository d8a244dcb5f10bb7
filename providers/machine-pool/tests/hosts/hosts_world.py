"""Two management clusters, machines in a rack, and the workload clusters that they are nodes of."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Node
from capelin.client import (
    ApiError,
    Client,
    Conflict,
    NotFound,
    Request,
    Response,
    Unavailable,
)
from capelin.contract import CLUSTER_NAME_LABEL, DELETE_FOR_MOVE_ANNOTATION
from capelin.controller import Context, Recorder
from capelin.provider import Blocked
from capelin.testing.fake_client import Clock, FakeClient, cluster
from capelin.testing.fake_server import FakeServer
from capelin.versions import Version
from capelin_machine_pool.api import CapelinMachine, Hosts
from capelin_machine_pool.backends import Workload
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    HostState,
    Installation,
    JobState,
    TransportError,
    UpdateStep,
    next_bootstrap_step,
    next_clean_step,
    next_update_step,
)
from capelin_machine_pool.desired import FINALIZER, desired_instance
from capelin_machine_pool.hosts.api import CapelinHost, Power
from capelin_machine_pool.hosts.claims import holds
from capelin_machine_pool.hosts.facts import HostFacts
from capelin_machine_pool.reasons import Reason
from capelin_machine_pool.reconcilers import HostReconciler, MachineReconciler

from .objects import KEY, NAMESPACE, a_host, a_machine

HOSTS: Final = {f"host-{number}": f"10.0.0.{number}" for number in range(3)}
FOREIGN: Final = "10.0.0.9"
"""The address of a machine that is the node of a cluster of another user."""
TENANTS: Final = ("red", "blue")
ENDED: Final = JobState(alive=False, exit_code=0, sentinel=True)
FAILED: Final = JobState(alive=False, exit_code=1, output="problem: crictl pods failed")
DIFFERENCE: Final = "new file /etc/cni/net.d/10-kindnet.conflist"
_NODE_INFO: Final = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"),
)


class KilledError(BaseException):
    """The provider ends here."""


class MortalServer(FakeServer):
    """An API server that fails, or of which a client is killed before one of its writes."""

    writes_left: int | None = None
    failing: str = ""
    """The method of the next request about hosts that fails, during the work of machines."""
    fails: bool = False

    async def send(self, request: Request) -> Response:
        is_next = self.fails and request.method == self.failing
        if is_next and "/capelinhosts" in request.path:
            self.failing = ""
            raise Unavailable(503, "") if request.method == "GET" else Conflict(409, "")
        if request.method != "GET" and self.writes_left is not None:
            if self.writes_left == 0:
                raise KilledError
            self.writes_left -= 1
        return await super().send(request)


@dataclass
class Rack:
    """The machines behind the hosts, and what may happen to them."""

    tenants: dict[str, str] = field(default_factory=dict[str, str])
    """The cluster of each claim."""
    workloads: dict[str, FakeClient] = field(default_factory=dict[str, FakeClient])
    living: set[str] = field(default_factory=set[str])
    """Claims whose machine exists, in whatever management cluster."""
    lost: set[str] = field(default_factory=set[str])
    """Claims that only a person can end: their machine did not release the host."""
    confirmed: set[str] = field(default_factory=set[str])
    """Claims that a person has given up."""
    paused: set[str] = field(default_factory=set[str])
    """Paused clusters."""
    updating: set[str] = field(default_factory=set[str])
    """Claims whose update had begun before the pause."""
    secretless: set[str] = field(default_factory=set[str])
    """Machines without bootstrap data."""
    violations: list[str] = field(default_factory=list[str])
    """Events that must not happen. A visit would report an exception as its own failure."""

    def require(self, holds: object, violation: str) -> None:
        if not holds:
            self.violations.append(violation)


@dataclass
class RackMachine:
    """A machine as its scripts leave it."""

    rack: Rack
    marker: str | None = None
    tenant: str | None = None
    """The claim whose pods run on it."""
    node: str = ""
    kubelet: str = ""
    bootstrap: JobState | None = None
    update: JobState | None = None
    version: str | None = None
    clean: JobState | None = None
    baseline: str | None = None
    different: bool = False
    sticky: bool = False
    """Whether pods survive a clean-up, so that it fails."""
    failing: bool = False
    """Whether scripts fail."""
    unplugged: bool = False
    cleanings: int = 0

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

    @property
    def workload(self) -> FakeClient:
        return self.rack.workloads[self.rack.tenants[self.tenant or ""]]

    async def join(self, version: str) -> None:
        """Begin to be a Node."""
        await self.leave()
        self.kubelet = version
        await self.workload.create(Node.of(self.node))
        await self.report()

    async def report(self) -> None:
        """Report the version of the kubelet."""
        info = dict.fromkeys(_NODE_INFO, "") | {"kubeletVersion": self.kubelet}
        status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
        with suppress(NotFound):
            await self.workload.patch(
                Node, self.node, None, {"status": status}, subresource="status"
            )

    async def leave(self) -> None:
        with suppress(NotFound):
            await self.workload.delete(Node, self.node)

    async def reboot(self) -> None:
        """Scripts end at once, so none is interrupted."""


@dataclass(frozen=True)
class FakeBootstrap:
    """Decides as the real one does, and changes a machine as its scripts do."""

    uid: str
    name: str

    async def bootstrap(
        self, machine: RackMachine, config: Any, state: HostState, installation: Installation
    ) -> BootstrapStep:
        del config
        step = next_bootstrap_step(self.uid, state)
        if step is BootstrapStep.MARK:
            if machine.marker not in (None, self.uid) or machine.state.differences:
                return BootstrapStep.DIRTY
            machine.marker = self.uid
        if step is BootstrapStep.START and machine.bootstrap is None:
            machine.rack.require(
                machine.tenant is None, f"{self.uid} begins while {machine.tenant} runs"
            )
            machine.tenant, machine.node = self.uid, self.name.partition("/")[2]
            machine.bootstrap = FAILED if machine.failing else ENDED
            if not machine.failing:
                await machine.join(installation.version)
        return step

    async def update(
        self, machine: RackMachine, installation: Installation, state: HostState
    ) -> UpdateStep:
        step, version = (
            next_update_step(self.uid, installation.version, state),
            installation.version,
        )
        if step is UpdateStep.START:
            rack = machine.rack
            is_paused = rack.tenants[self.uid] in rack.paused and self.uid not in rack.updating
            rack.require(not is_paused, "an update begins while its Cluster is paused")
            steps = Version.parse(version).minor - Version.parse(machine.kubelet).minor
            rack.require(steps in {0, 1}, f"an update of {machine.kubelet} to {version} begins")
            machine.update, machine.version = FAILED if machine.failing else ENDED, version
            if not machine.failing:
                machine.kubelet = version
                await machine.report()
        return step

    async def clean(
        self, machine: RackMachine, state: HostState, commands: Any, *, retry: bool = False
    ) -> CleanStep:
        del commands
        step = next_clean_step(self.uid, state, retry=retry)
        if step is CleanStep.START and machine.marker == self.uid:
            rack = machine.rack
            may_end = self.uid not in rack.living or self.uid in rack.confirmed
            rack.require(may_end, f"the node of {self.uid} is wiped while its machine exists")
            machine.cleanings += 1
            if machine.sticky:
                machine.clean = FAILED
                return step
            if machine.node:
                await machine.leave()
            machine.marker = machine.tenant = None
            machine.bootstrap = machine.update = machine.clean = machine.version = None
        return step


def a_model_machine(name: str, tenant: str) -> CapelinMachine:
    """A machine that can be updated in place."""
    machine = a_machine(name, labels={CLUSTER_NAME_LABEL: tenant}, finalizers=[FINALIZER])
    hosts = Hosts(profile="Commands", install_commands=["install"])
    machine.spec = machine.spec.model_copy(update={"hosts": hosts, "version": "v1.33.13"})
    return machine


def a_model_host(name: str) -> CapelinHost:
    """A host that only its first visit shows."""
    return a_host(name, phase=None, address=HOSTS[name], power=Power(method="SSH"))


def claim_of(machine: CapelinMachine) -> str:
    """The identifier of the claim of a machine, which a move does not change."""
    return machine.spec.host.claim if machine.spec.host else machine.uid


class Provider:
    """A provider that runs."""

    def __init__(self) -> None:
        self.hosts = HostReconciler()
        self.machines = MachineReconciler({"Hosts": HostsBackend()})
        self.stack = AsyncExitStack()


class Management:
    """A management cluster with two providers."""

    def __init__(self, rack: Rack, clock: Clock) -> None:
        self.rack, self.clock = rack, clock
        self.server = MortalServer(clock)
        self.client = FakeClient(CapelinHost, CapelinMachine, clock=clock, server=self.server)
        recorder = Recorder(self.client, "test", "test", now=clock)
        self.ctx = Context(self.client, logging.getLogger(__name__), recorder)
        self.providers: list[Provider] = []
        self.is_moving = False
        """Whether clusterctl has paused the Clusters."""
        for name in TENANTS:
            self.client.add(cluster(name, NAMESPACE))

    async def hosts(self) -> list[CapelinHost]:
        return (await self.client.list(CapelinHost, NAMESPACE)).items

    async def machines(self) -> list[CapelinMachine]:
        return (await self.client.list(CapelinMachine, NAMESPACE)).items

    async def find_machine(self, name: str) -> CapelinMachine | None:
        return await self.client.find(CapelinMachine, name, NAMESPACE)

    async def reconcile(self, number: int) -> None:
        """Have one provider reconcile each object."""
        await self.reconcile_machines(number)
        for host in await self.hosts():
            with suppress(ApiError):
                await self.providers[number].hosts.reconcile(self.ctx, host)
            await self.idle(12)

    async def reconcile_machines(self, number: int) -> None:
        for machine in [] if self.is_moving else await self.machines():
            self.server.fails = True
            with suppress(ApiError, Blocked):
                await self.work(self.providers[number], machine)
            self.server.fails = False

    async def work(self, provider: Provider, machine: CapelinMachine) -> None:
        """Reconcile a machine, of which core has no objects: the backend does all."""
        if machine.metadata.deletion_timestamp is not None:
            await provider.machines.reconcile(self.ctx, machine)
            return
        tenant = machine.metadata.labels[CLUSTER_NAME_LABEL]
        if tenant in self.rack.paused:
            return
        backend, client = HostsBackend(), self.client
        instance = replace(desired_instance(machine, None), bootstrap_secret="data")
        await backend.allocate(instance, client)
        live = await client.get(CapelinMachine, machine.name, NAMESPACE)
        instance = replace(instance, host=live.spec.host)
        workload = Workload(client=self.rack.workloads[tenant], kubeconfig=b"")
        observed = await backend.observe(instance, workload, client)
        await backend.apply(instance, observed, workload, client, self.clock())

    async def idle(self, turns: int = 60) -> None:
        """Let visits continue."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def start(self) -> None:
        """Start a provider."""
        provider = Provider()
        self.providers.append(provider)
        await provider.stack.enter_async_context(provider.hosts.lifespan(self.ctx))

    async def stop(self) -> None:
        """Stop the provider that started first."""
        self.server.writes_left = None
        await self.providers.pop(0).stack.aclose()

    async def copy_to(self, other: "Management") -> None:
        """The first half of `clusterctl move`."""
        hosts, machines = await self.hosts(), await self.machines()
        for machine in machines:
            if machine.spec.host is None and any(holds(host, machine.uid) for host in hosts):
                self.rack.lost.add(machine.uid)
        for obj in [*hosts, *machines]:
            before = obj.metadata
            kept: Unstructured = {"name": obj.name, "namespace": NAMESPACE}
            kept |= {"labels": before.labels, "annotations": before.annotations}
            kept["finalizers"] = before.finalizers
            copied = type(obj).read({**obj.dump(), "metadata": kept, "status": None})
            await other.client.create(copied)
        for machine in await other.machines():
            self.note(machine)
        self.is_moving = other.is_moving = True

    async def delete_copied(self, other: "Management") -> None:
        """The second half: the old objects go, and providers look at each step."""
        annotated = {"annotations": {DELETE_FOR_MOVE_ANNOTATION: ""}}
        for obj in [*await self.hosts(), *await self.machines()]:
            kind = type(obj)
            for metadata in (annotated, {"finalizers": None}):
                await self.client.patch(kind, obj.name, NAMESPACE, {"metadata": metadata})
                await self.reconcile(0)
            with suppress(NotFound):
                await self.client.delete(kind, obj.name, NAMESPACE)
        await self.reconcile(0)
        assert not await self.hosts(), "a move leaves hosts behind"
        self.is_moving = other.is_moving = False

    def note(self, machine: CapelinMachine) -> None:
        """Count a machine as living."""
        self.rack.living.add(claim_of(machine))
        self.rack.tenants[claim_of(machine)] = machine.metadata.labels[CLUSTER_NAME_LABEL]

    async def pause(self, tenant: str, *, on: bool) -> None:
        await self.client.patch(Cluster, tenant, NAMESPACE, {"spec": {"paused": on}})


# Visits


async def _observe(machine: RackMachine) -> HostState:
    return machine.state


async def _take_baseline(machine: RackMachine, *, renew: bool) -> None:
    if machine.marker is None and (renew or machine.baseline is None):
        machine.baseline = "first"
        machine.different = machine.different and not renew


async def _facts(machine: RackMachine) -> HostFacts:
    del machine
    return HostFacts(clock=0)


async def _read_key(*_: Any) -> str:
    return KEY


@dataclass(frozen=True)
class Network:
    """The way to the machines of the rack, by their addresses."""

    rack: Rack
    machines: dict[str, RackMachine]

    async def target(self, client: Client, host: CapelinHost) -> Any:
        del client
        return SimpleNamespace(connect=partial(self._connect, self.machines[host.spec.address]))

    @asynccontextmanager
    async def _connect(self, machine: RackMachine, *_: Any) -> AsyncGenerator[RackMachine]:
        if machine.unplugged:
            raise TransportError("it does not answer")
        yield machine

    async def config(self, *_: Any, machine: str, **__: Any) -> CloudConfig:
        if machine in self.rack.secretless:
            raise Blocked(Reason.INVALID_BOOTSTRAP_DATA, "the Secret does not exist")
        return CloudConfig()

    def patch(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
        """Let visits reach these machines, and wait by this clock."""
        visits, reconciler, power = (
            "capelin_machine_pool.hosts.visits",
            "capelin_machine_pool.reconcilers.hosts",
            "capelin_machine_pool.hosts.power",
        )
        for path, value in {
            f"{visits}.observe": _observe,
            f"{visits}.observe_facts": _facts,
            f"{visits}.take_baseline": _take_baseline,
            f"{visits}.read_host_key": _read_key,
            f"{visits}.MachineBootstrap": FakeBootstrap,
            f"{visits}.time": SimpleNamespace(monotonic=seconds, time=lambda: 0.0),
            f"{reconciler}.ssh_target": self.target,
            f"{reconciler}.bootstrap_config": self.config,
            f"{power}.ssh_target": self.target,
            # Claims prefer hosts by their identifiers.
            "capelin.testing.fake_server.uuid4": map("uid-{}".format, count()).__next__,
        }.items():
            monkeypatch.setattr(path, value)
