"""The process that keeps simulated nodes alive: started, adopted, replaced and stopped."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.views.core import Lease, Node
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.embedded.binaries import Binaries
from capelin.embedded.processes import AlreadySupervisedError, Process, kill_all
from capelin.testing.waiting import until
from capelin_machine_pool.api import Faults, Simulated
from capelin_machine_pool.backends.simulated import SimulatedMachines
from capelin_machine_pool.desired import WantedMachine

pytestmark = pytest.mark.needs_programs("kwok")

CLUSTER = "demo"
RENEWED_AFTER = 20.0
"""Seconds after which KWOK renews a lease: a quarter of its eighty."""
KUBERNETES_WAITS = 50.0
"""Seconds without a renewal after which a Node is unready."""


class Shoal:
    """Simulated machines of a cluster whose API server is the test's."""

    def __init__(self, folder: Path, namespace: str, kubeconfig: bytes, workload: Client) -> None:
        self._folder = folder
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self._workload = workload
        self.backend = self.another()

    def another(self) -> SimulatedMachines:
        return SimulatedMachines(self._folder, Binaries())

    async def restart(self) -> None:
        """Nothing in memory is left, nor any lock held, as after a kill of the provider."""
        await self.backend.kwok.let_go(ObjectKey(self.namespace, CLUSTER))
        self.backend = self.another()

    @property
    def folder(self) -> Path:
        return self._folder / f"{self.namespace}.{CLUSTER}"

    def kwok(self) -> int | None:
        found = Process.adopt(self.folder / "run", "kwok")
        return None if found is None else found.pid

    async def until_it_runs(self) -> int:
        """The process that keeps the nodes alive, as soon as there is one."""
        return await until(self.kwok)

    def machine(self, name: str, *, dies: int = 0) -> WantedMachine:
        return WantedMachine(
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

    async def ensure(self, machine: WantedMachine) -> None:
        await self.backend.ensure(
            machine,
            self._workload,
            kubeconfig=self.kubeconfig,
            was_running=await self._workload.find(Node, machine.key.name) is not None,
            now=datetime.now(UTC),
        )

    async def until_ready(self, machine: WantedMachine) -> Node:
        return await until(lambda: self._workload.get(Node, machine.key.name), is_ready)


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


@pytest.fixture
async def shoal(
    client: Client, kubeconfig: Path, namespace: str, tmp_path: Path
) -> AsyncGenerator[Shoal]:
    shoal = Shoal(tmp_path, namespace, await asyncio.to_thread(kubeconfig.read_bytes), client)
    yield shoal
    await shoal.backend.forget(ObjectKey(namespace, CLUSTER))
    await kill_all(tmp_path)
    for node in (await client.list(Node)).items:
        if node.name.startswith(namespace):
            await client.delete(Node, node.name)


async def test_a_machine_becomes_a_ready_node_with_a_lease(shoal: Shoal, client: Client) -> None:
    machine = shoal.machine("a")
    await shoal.ensure(machine)
    node = await shoal.until_ready(machine)
    assert node.spec.provider_id == machine.provider_id
    assert node.status.node_info.kubelet_version == "v1.33.13"

    lease = await until(
        lambda: client.find(Lease, node.name, "kube-node-lease"),
        lambda lease: lease is not None and lease.spec.renew_time is not None,
    )
    assert lease is not None
    assert lease.spec.lease_duration_seconds == 4 * RENEWED_AFTER
    # One that failed is tried again when the next is due, up to a twenty-fifth later each time.
    assert 2 * 1.04 * RENEWED_AFTER < KUBERNETES_WAITS


async def test_a_machine_runs_on_whose_status_was_lost_in_a_move(
    shoal: Shoal, client: Client
) -> None:
    machine = shoal.machine("a")
    await shoal.ensure(machine)
    slow = machine.simulated.model_copy(update={"startup_seconds": 3600})
    # Made anew on the other side, it has another age; its Node is as it was.
    moved = replace(machine, simulated=slow, created=datetime.now(UTC))
    seen = await shoal.backend.ensure(
        moved, client, kubeconfig=shoal.kubeconfig, was_running=False, now=datetime.now(UTC)
    )
    assert seen.running


@pytest.mark.integration
async def test_a_machine_that_dies_renews_its_lease_no_more(shoal: Shoal, client: Client) -> None:
    machine = shoal.machine("a", dies=100)

    async def renewed_at() -> datetime | None:
        lease = await client.find(Lease, machine.key.name, "kube-node-lease")
        return None if lease is None else lease.spec.renew_time

    await shoal.ensure(machine)
    await shoal.until_ready(machine)
    first = await renewed_at()
    await until(renewed_at, lambda last: last not in {None, first})
    await shoal.ensure(machine)
    # A renewal may be under way.
    await asyncio.sleep(1)
    last = await renewed_at()
    await asyncio.sleep(1.2 * RENEWED_AFTER)
    assert await renewed_at() == last


async def test_a_provider_that_starts_again_adopts_what_keeps_its_nodes_alive(shoal: Shoal) -> None:
    first, second = shoal.machine("a"), shoal.machine("b")
    await shoal.ensure(first)
    await shoal.until_ready(first)
    before = await shoal.until_it_runs()
    await shoal.restart()
    await shoal.ensure(second)
    await shoal.until_ready(second)
    assert shoal.kwok() == before


async def test_all_machines_of_a_cluster_share_a_process_that_comes_back(shoal: Shoal) -> None:
    await asyncio.gather(*(shoal.ensure(shoal.machine(name)) for name in "abc"))
    await shoal.until_ready(shoal.machine("a"))
    before = await shoal.until_it_runs()
    os.kill(before, signal.SIGKILL)
    await until(shoal.kwok, lambda now: now not in {None, before})
    later = shoal.machine("d")
    await shoal.ensure(later)
    await shoal.until_ready(later)


async def test_a_process_that_comes_back_has_its_nodes_leases_at_once(
    shoal: Shoal, client: Client
) -> None:
    machine = shoal.machine("a")
    await shoal.ensure(machine)

    async def holder() -> str | None:
        lease = await client.find(Lease, machine.key.name, "kube-node-lease")
        return None if lease is None else lease.spec.holder_identity

    before = await until(holder)
    os.kill(await shoal.until_it_runs(), signal.SIGKILL)
    await until(holder, lambda now: now not in {None, before})


async def test_what_could_not_be_written_is_tried_again(shoal: Shoal) -> None:
    in_the_way = shoal.folder / "stages.yaml"
    in_the_way.mkdir(parents=True, mode=0o700)
    machine = shoal.machine("a")
    with pytest.raises(OSError, match=r"stages\.yaml"):
        await shoal.ensure(machine)
    in_the_way.rmdir()
    await shoal.ensure(machine)
    await shoal.until_it_runs()


async def test_another_kubeconfig_makes_another_process(shoal: Shoal) -> None:
    machine = shoal.machine("a")
    await shoal.ensure(machine)
    await shoal.until_ready(machine)
    before = await shoal.until_it_runs()
    shoal.kubeconfig += b"\n"
    await shoal.ensure(machine)
    await until(shoal.kwok, lambda now: now not in {None, before})
    later = shoal.machine("b")
    await shoal.ensure(later)
    await shoal.until_ready(later)


async def test_a_process_that_another_provider_took_over_is_left_to_it(shoal: Shoal) -> None:
    machine, cluster = shoal.machine("a"), ObjectKey(shoal.namespace, CLUSTER)
    await shoal.ensure(machine)
    await shoal.until_ready(machine)
    before, first = await shoal.until_it_runs(), shoal.backend
    shoal.backend = shoal.another()
    for _ in range(2):
        with pytest.raises(AlreadySupervisedError):
            await shoal.ensure(machine)
    await first.kwok.let_go(cluster)
    await shoal.ensure(machine)
    assert first.clusters(shoal.namespace) == [cluster]
    await first.forget(cluster)
    assert shoal.kwok() == before
    assert (shoal.folder / "kubeconfig").exists()


@pytest.mark.parametrize("restarted", [False, True], ids=["same provider", "started again"])
async def test_the_last_machine_leaves_no_process_and_no_file(
    shoal: Shoal, *, restarted: bool
) -> None:
    machine = shoal.machine("a")
    await shoal.ensure(machine)
    await shoal.until_ready(machine)
    if restarted:
        await shoal.restart()
    await shoal.backend.forget(ObjectKey(shoal.namespace, CLUSTER))
    assert shoal.kwok() is None
    assert not shoal.folder.exists()
