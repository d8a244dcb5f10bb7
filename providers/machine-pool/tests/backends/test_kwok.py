"""KWOK, the process that renews the leases of simulated nodes: start, adopt, replace, stop."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from capelin.api.core import Lease, Node
from capelin.client import Client, ConfigError, Server, User, new_kubeconfig, safe_kubeconfig
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries, BinariesError, Component
from capelin_embedded.processes import AlreadySupervisedError, Process, kill_all
from capelin_machine_pool.api import Faults, Simulated
from capelin_machine_pool.backends import InstanceStatus, Workload
from capelin_machine_pool.backends.kwok import KwokProcesses
from capelin_machine_pool.backends.simulated import SimulatedBackend
from capelin_machine_pool.desired import Instance

pytestmark = pytest.mark.needs_programs("kwok")

CLUSTER = "demo"
RENEWED_AFTER = 20.0
"""Seconds after which KWOK renews a lease: a quarter of its eighty."""
KUBERNETES_WAITS = 50.0
"""Seconds without a renewal after which a Node is unready."""


class SimulatedMachines:
    """Simulated machines of a cluster whose API server is the test's."""

    def __init__(self, folder: Path, namespace: str, kubeconfig: bytes, workload: Client) -> None:
        self._folder = folder
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self._workload = workload
        self.backend = self.another()

    def another(self) -> SimulatedBackend:
        return SimulatedBackend(self._folder, Binaries())

    async def restart(self) -> None:
        """Drop the memory and the locks of the provider, as SIGKILL would."""
        await self.backend.kwok.release(ObjectKey(self.namespace, CLUSTER))
        self.backend = self.another()

    @property
    def folder(self) -> Path:
        return self._folder / f"{self.namespace}.{CLUSTER}"

    def kwok(self) -> int | None:
        found = Process.adopt(self.folder / "run", "kwok")
        return None if found is None else found.pid

    async def until_it_runs(self) -> int:
        """Wait for the KWOK process and return its id."""
        return await until(self.kwok)

    def machine(self, name: str, *, dies: int = 0) -> Instance:
        return Instance(
            key=ObjectKey(self.namespace, f"{self.namespace}-{name}"),
            cluster=CLUSTER,
            provider_id=f"capelin:///{self.namespace}/{CLUSTER}/{name}",
            version="v1.33.13",
            failure_domain=None,
            created=datetime.now(UTC),
            simulated=Simulated(
                startup_seconds=0,
                startup_jitter_seconds=0,
                faults=Faults(dies=dies, after_seconds=0),
            ),
        )

    async def ensure(self, machine: Instance) -> None:
        await self.look(machine)

    async def look(self, machine: Instance) -> InstanceStatus:
        workload = Workload(client=self._workload, kubeconfig=self.kubeconfig)
        observed = await self.backend.observe(machine, workload, self._workload)
        return await self.backend.apply(
            machine, observed, workload, self._workload, datetime.now(UTC)
        )

    async def until_ready(self, machine: Instance) -> Node:
        return await until(lambda: self._workload.get(Node, machine.key.name), is_ready)


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


@pytest.fixture
async def machines(
    client: Client, kubeconfig: Path, namespace: str, tmp_path: Path
) -> AsyncGenerator[SimulatedMachines]:
    machines = SimulatedMachines(
        tmp_path, namespace, await asyncio.to_thread(kubeconfig.read_bytes), client
    )
    yield machines
    await machines.backend.release(ObjectKey(namespace, CLUSTER))
    await kill_all(tmp_path)
    for node in (await client.list(Node)).items:
        if node.name.startswith(namespace):
            await client.delete(Node, node.name)


async def test_machine_becomes_a_ready_node(machines: SimulatedMachines, client: Client) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)
    node = await machines.until_ready(machine)
    assert node.spec.provider_id == machine.provider_id
    assert node.status.node_info.kubelet_version == "v1.33.13"

    lease = await until(
        lambda: client.find(Lease, node.name, "kube-node-lease"),
        lambda lease: lease is not None and lease.spec.renew_time is not None,
    )
    assert lease is not None
    assert lease.spec.lease_duration_seconds == 4 * RENEWED_AFTER
    # KWOK repeats a failed renewal when the next one is due, up to 4 % later each time.
    assert 2 * 1.04 * RENEWED_AFTER < KUBERNETES_WAITS


async def test_machine_survives_a_lost_status(
    machines: SimulatedMachines,
) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)
    slow = machine.simulated.model_copy(update={"startup_seconds": 3600})
    # After a move the machine has a new age, but its Node is unchanged.
    moved = replace(machine, simulated=slow, created=datetime.now(UTC))
    observed = await machines.look(moved)
    assert observed.running
    assert not observed.lost


@pytest.mark.integration
async def test_dead_machines_renew_no_lease(machines: SimulatedMachines, client: Client) -> None:
    dying = [machines.machine(f"m{number}", dies=100) for number in range(20)]

    async def renewed_at() -> list[datetime | None]:
        leases = [await client.get(Lease, one.key.name, "kube-node-lease") for one in dying]
        return [lease.spec.renew_time for lease in leases]

    async def are_silent() -> bool:
        looks = await asyncio.gather(*map(machines.look, dying))
        return not any(look.heartbeats for look in looks)

    await until(are_silent)
    # A renewal may be in flight.
    await asyncio.sleep(1)
    last = await renewed_at()
    await asyncio.sleep(1.2 * RENEWED_AFTER)
    assert await renewed_at() == last


async def test_restarted_provider_adopts_its_kwok(
    machines: SimulatedMachines,
) -> None:
    first, second = machines.machine("a"), machines.machine("b")
    await machines.ensure(first)
    await machines.until_ready(first)
    before = await machines.until_it_runs()
    await machines.restart()
    await machines.ensure(second)
    await machines.until_ready(second)
    assert machines.kwok() == before


async def test_restarted_kwok_holds_leases(machines: SimulatedMachines, client: Client) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)

    async def holder() -> str | None:
        lease = await client.find(Lease, machine.key.name, "kube-node-lease")
        return None if lease is None else lease.spec.holder_identity

    before = await until(holder)
    os.kill(await machines.until_it_runs(), signal.SIGKILL)
    await until(holder, lambda now: now not in {None, before})


async def test_a_failed_write_is_repeated(machines: SimulatedMachines) -> None:
    in_the_way = machines.folder / "stages.yaml"
    in_the_way.mkdir(parents=True, mode=0o700)
    machine = machines.machine("a")
    with pytest.raises(OSError, match=r"stages\.yaml"):
        await machines.ensure(machine)
    in_the_way.rmdir()
    await machines.ensure(machine)
    await machines.until_it_runs()


async def test_another_kubeconfig_starts_another_process(machines: SimulatedMachines) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)
    await machines.until_ready(machine)
    before = await machines.until_it_runs()
    machines.kubeconfig += b"\n# The same in other words is no reason to start anew."
    await machines.ensure(machine)
    assert machines.kwok() == before
    document = yaml.safe_load(machines.kubeconfig)
    document["contexts"][0]["context"]["namespace"] = "other"
    machines.kubeconfig = yaml.safe_dump(document).encode()
    await machines.ensure(machine)
    await until(machines.kwok, lambda now: now not in {None, before})
    later = machines.machine("b")
    await machines.ensure(later)
    await machines.until_ready(later)


async def test_a_kubeconfig_is_read_again_without_a_reconcile(machines: SimulatedMachines) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)
    await machines.until_ready(machine)
    before, refresh = await machines.until_it_runs(), machines.backend.kwok.refresh
    document = yaml.safe_load(machines.kubeconfig)
    contents: list[bytes | Exception | None] = [machines.kubeconfig, None, OSError("no"), b"no"]

    async def read(cluster: ObjectKey) -> bytes | None:
        assert cluster == ObjectKey(machines.namespace, CLUSTER)
        content = contents.pop(0)
        if isinstance(content, Exception):
            raise content
        return content

    while contents:
        await refresh(read)
        assert machines.kwok() == before
    document["contexts"][0]["context"]["namespace"] = "other"
    contents.append(yaml.safe_dump(document).encode())
    await refresh(read)
    await until(machines.kwok, lambda now: now not in {None, before})


async def test_a_provider_keeps_the_kwok_of_another_provider(
    machines: SimulatedMachines,
) -> None:
    machine, cluster = machines.machine("a"), ObjectKey(machines.namespace, CLUSTER)
    await machines.ensure(machine)
    await machines.until_ready(machine)
    before, first = await machines.until_it_runs(), machines.backend
    machines.backend = machines.another()
    for _ in range(2):
        with pytest.raises(AlreadySupervisedError):
            await machines.ensure(machine)
    await first.kwok.release(cluster)
    await machines.ensure(machine)
    assert first.clusters(machines.namespace) == [cluster]
    await first.release(cluster)
    assert machines.kwok() == before
    assert (machines.folder / "kubeconfig").exists()


@pytest.mark.parametrize("restarted", [False, True], ids=["same provider", "started again"])
async def test_a_release_removes_the_process_and_its_files(
    machines: SimulatedMachines, *, restarted: bool
) -> None:
    machine = machines.machine("a")
    await machines.ensure(machine)
    await machines.until_ready(machine)
    if restarted:
        await machines.restart()
    await machines.backend.release(ObjectKey(machines.namespace, CLUSTER))
    assert machines.kwok() is None
    assert not machines.folder.exists()


def with_program(kubeconfig: bytes, marker: Path, where: str) -> bytes:
    """A kubeconfig with an exec plugin for Go's parser and without one for PyYAML.

    In a merge key that comes after an explicit key, PyYAML prefers the explicit key, Go the merge.
    """
    document = yaml.safe_load(kubeconfig)
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/usr/bin/touch",
        "args": [str(marker)],
        "interactiveMode": "Never",
    }
    if where == "user":
        user = document["users"][0]["user"]
        document["users"][0]["user"] = {"exec": None, "MERGE": {"exec": program}, **user}
    else:
        context = document["contexts"][0]["context"]
        document["contexts"][0]["context"] = {**context, "MERGE": {"user": "evil"}}
        document["users"].append({"name": "evil", "user": {"exec": program}})
    return yaml.safe_dump(document, sort_keys=False).replace("MERGE:", "<<:").encode()


@pytest.mark.parametrize("where", ["user", "context"])
async def test_a_tenants_kubeconfig_runs_no_program(
    machines: SimulatedMachines, tmp_path: Path, where: str
) -> None:
    marker = tmp_path / "it ran"
    machines.kubeconfig = with_program(machines.kubeconfig, marker, where)
    with pytest.raises(ConfigError):
        await machines.ensure(machines.machine("a"))
    assert not (machines.folder / "kubeconfig").exists()
    assert machines.kwok() is None
    assert not marker.exists()


async def test_kwok_gets_the_parsed_kubeconfig_and_not_the_tenants_bytes(
    machines: SimulatedMachines,
) -> None:
    machines.kubeconfig += b"\n# What was not parsed is not handed on."
    machine = machines.machine("a")
    await machines.ensure(machine)
    await machines.until_ready(machine)
    written = await asyncio.to_thread((machines.folder / "kubeconfig").read_bytes)
    assert written == safe_kubeconfig(machines.kubeconfig, name=CLUSTER)
    assert b"#" not in written


async def test_a_node_that_the_api_server_cannot_read_is_an_invalid_configuration(
    machines: SimulatedMachines,
) -> None:
    machine = machines.machine("a")
    endless = machine.simulated.model_copy(update={"capacity": {"cpu": "1e99999999999999999999"}})
    with pytest.raises(Blocked) as blocked:
        await machines.ensure(replace(machine, simulated=endless))
    assert blocked.value.reason == "InvalidConfiguration"
    assert "spec.simulated" in str(blocked.value)


class SlowBinaries(Binaries):
    """Has no end for the first caller, and nothing for the others."""

    def __init__(self) -> None:
        self.callers = 0

    async def path(self, component: str | Component, version: str | None = None) -> Path:
        self.callers += 1
        if self.callers == 1:
            await asyncio.Event().wait()
        raise BinariesError(f"no {component} {version}")


async def test_cluster_does_not_wait_for_another(tmp_path: Path) -> None:
    binaries = SlowBinaries()
    processes = KwokProcesses(tmp_path, binaries)
    server = Server("https://10.0.0.1:6443")
    kubeconfig = new_kubeconfig(server, User(token="t"), cluster="one", username="one")
    first = asyncio.create_task(processes.ensure(ObjectKey("default", "slow"), kubeconfig))
    await until(lambda: binaries.callers == 1)
    async with asyncio.timeout(10):
        with pytest.raises(BinariesError):
            await processes.ensure(ObjectKey("default", "other"), kubeconfig)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_the_provider_restarts_a_failed_supervisor(
    machines: SimulatedMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await machines.ensure(machines.machine("a"))
    before = await machines.until_it_runs()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("capelin_embedded.processes.supervisor.next_steps", fails)
        os.kill(before, signal.SIGKILL)
        health = await until(machines.backend.health)
    assert f"KWOK of {machines.namespace}/{CLUSTER}" in health
    await until(machines.kwok, lambda now: now not in {None, before})
    assert machines.backend.health() is None
