"""A pool of 1,000 simulated machines through the real core, and 10,000 in one object."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import CustomResourceDefinition, Node
from capelin.client import Client, ClientOptions, Config, NotServed
from capelin.contract import CLUSTER_NAME_LABEL, reference_to, update_conditions
from capelin.controller import Context, Recorder
from capelin.provider import InfraMachineStatus, Initialization
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.management import Environment
from capelin_embedded.processes import Process
from capelin_embedded.testing.administrator import cluster_api_crds
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.desired import pool_machine, revision_of
from capelin_machine_pool.provider import provider
from capelin_machine_pool.reconcilers import MachinePoolReconciler
from capelin_machine_pool.status import machine_conditions

from tests.bench.rows import Row
from tests.bench.running import Bench, cpu_seconds, management
from tests.integration.pools import (
    POOL,
    Whole,
    cluster_manifests,
    condition,
    is_ready,
    pool_manifests,
    whole_cluster,
)
from tests.support.kernel import memory

PROVIDER = "infrastructure-capelin"
NO_PROXY = {"kubeProxy": {"enabled": False}}
"""kube-proxy adds a pod per Node without any use here: a third of the API server's load."""
MANY, FEW = 1000, 10
MOST = 10_000
MINUTES = 4
SETTLING, REST = 30.0, 120.0
"""Seconds before the measurement of a pool at rest, and its length."""
OURS = ("capelinmachines", "capelinmachinepools", "machines", "machinepools", "clusters", "secrets")


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        async with (
            management(home, ["kubeadm-bootstrap"], durable=False) as bench,
            whole_cluster(bench.client, "many", addons=NO_PROXY) as whole,
        ):
            for manifest in pool_manifests(whole.name, whole.namespace, replicas=FEW):
                await bench.client.apply(manifest)
            await until(lambda: are_ready(whole, FEW))
            rows = await up_and_down(bench, whole)
        return [*rows, *await most_in_one_pool(Path(home) / "most")]


async def up_and_down(bench: Bench, whole: Whole) -> list[Row]:
    """Scale from a few machines to many and back."""
    used = all_cpu_seconds(bench.environment)
    began = time.monotonic()
    await whole.scale(MANY)
    await until(lambda: are_ready(whole, MANY))
    up = time.monotonic() - began
    shares = used_since(used, all_cpu_seconds(bench.environment))
    at_rest = await requests_per_second(bench.client)
    began = time.monotonic()
    await whole.scale(FEW)
    await until(lambda: are_ready(whole, FEW))
    down = time.monotonic() - began
    later = used_since(used, all_cpu_seconds(bench.environment))
    return [
        Row(
            name=f"{FEW} to {MANY} machines, each with its Machine Ready",
            measured=up,
            unit="s",
            at_most=60 * MINUTES,
            comparison=f"CPU seconds: {shares}",
        ),
        Row(
            name=f"{MANY} to {FEW} machines, no Node left",
            measured=down,
            unit="s",
            comparison=f"CPU seconds in all: {later}",
        ),
        Row(
            name=f"{MANY} machines at rest: requests about them to the API server",
            measured=at_rest,
            unit="/s",
            at_most=1,
        ),
        Row(
            name=f"provider, {MANY} machines and back: most memory",
            measured=memory(bench.pid(PROVIDER), "VmHWM") / 2**20,
            unit="MiB",
            at_most=150,
        ),
    ]


async def requests_per_second(client: Client) -> float:
    """Requests to the management cluster about our kinds, their Machines and Clusters, and Secrets.

    Watches are not counted. Cluster API's core reads these kinds from its own cache.
    """
    await asyncio.sleep(SETTLING)
    before = await requests_of_ours(client)
    await asyncio.sleep(REST)
    return (await requests_of_ours(client) - before) / REST


async def requests_of_ours(client: Client) -> float:
    text: str = await client.request("GET", "/metrics")
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("apiserver_request_total{")
        and 'verb="WATCH"' not in line
        and any(f'resource="{resource}"' in line for resource in OURS)
    )


async def most_in_one_pool(folder: Path) -> list[Row]:
    """Seconds of a reconcile of a pool with the maximum of machines."""
    server = await ApiServer.prepare(folder, Settings(durable=False))
    try:
        await server.start()
        config = Config.from_kubeconfig(server.kubeconfig)
        async with Client(config, options=ClientOptions(qps=0, connections=20)) as client:
            pool = await with_most_machines(client)
            recorder = Recorder(client, "bench", "bench", now=lambda: datetime.now(UTC))
            at = Context(client, logging.getLogger(__name__), recorder)
            first = await timed(MachinePoolReconciler().reconcile(at, await pool()))
            listed = len((await pool()).spec.provider_id_list)
            second = await timed(MachinePoolReconciler().reconcile(at, await pool()))
    finally:
        await server.stop()
    name = f"a look at a pool of {MOST} machines"
    return [
        Row(name=f"{name}: provider ids listed", measured=listed, unit="", at_least=MOST),
        Row(name=f"{name}, all of them new", measured=first, unit="s"),
        Row(name=f"{name}, at rest", measured=second, unit="s"),
    ]


async def with_most_machines(client: Client) -> Callable[[], Awaitable[CapelinMachinePool]]:
    """A pool with all machines running, and no controllers."""
    core = [f"{kind}.cluster.x-k8s.io" for kind in ("clusters", "machines", "machinepools")]
    for definition in (*await cluster_api_crds(*core), *provider().crds):
        await client.apply(dict(definition), resource=CustomResourceDefinition.resource)
    machine_pool, pool = await a_pool(client)
    revision = revision_of(pool, machine_pool, {})

    async def make(number: int) -> None:
        one = pool_machine(
            pool,
            machine_pool,
            "most",
            name=f"{POOL}-{number:06}",
            revision=revision,
            failure_domain=None,
        )
        made = await client.create(one)
        conditions = update_conditions(
            [],
            machine_conditions(InstanceStatus(running=True)),
            now=datetime.now(UTC),
            generation=1,
        )
        status = InfraMachineStatus(
            conditions=conditions, initialization=Initialization(provisioned=True), ready=True
        )
        await client.apply_status(made.model_copy(update={"status": status}))

    for start in range(0, MOST, 100):
        await asyncio.gather(*(make(number) for number in range(start, start + 100)))
    return lambda: client.get(CapelinMachinePool, POOL, "default")


async def a_pool(client: Client) -> tuple[MachinePool, CapelinMachinePool]:
    """A pool and its owner in the state that core leaves when the cluster is ready."""
    while True:
        try:
            await client.list(CapelinMachinePool)
            await client.list(MachinePool)
            break
        except NotServed:
            await asyncio.sleep(0.1)
    cluster = cluster_manifests("most", "default")[0]
    await client.create(cluster, resource=Cluster.resource)
    done = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
    status = {"status": {"initialization": done}}
    await client.patch(Cluster.resource, "most", "default", status, subresource="status")
    _, ours, theirs = pool_manifests("most", "default", replicas=MOST)
    theirs["spec"]["template"]["spec"]["bootstrap"] = {"dataSecretName": "data"}
    made = await client.create(theirs, resource=MachinePool.resource)
    machine_pool = MachinePool.read(made)
    ours["metadata"]["labels"] = {CLUSTER_NAME_LABEL: "most"}
    ours["metadata"]["ownerReferences"] = [reference_to(machine_pool, controller=True).dump()]
    await client.create(ours, resource=CapelinMachinePool.resource)
    return machine_pool, await client.get(CapelinMachinePool, POOL, "default")


async def timed(work: Awaitable[object]) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began


async def are_ready(whole: Whole, count: int) -> bool:
    """Whether exactly this many machines exist on every level, all ready."""
    pool = await whole.pool()
    if pool.status.ready_replicas != count or len(pool.status.node_refs) != count:
        return False
    nodes = (await whole.workload.list(Node)).items
    machines = (await whole.management.list(Machine, whole.namespace)).items
    instances = (await whole.management.list(CapelinMachine, whole.namespace)).items
    return (
        len(nodes) == len(machines) == len(instances) == count
        and all(map(is_ready, nodes))
        and all(condition(machine, "Ready") == "True" for machine in machines)
    )


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Check every two seconds, since each check uses the measured CPU."""
    while not await happened():  # noqa: ASYNC110 - it happens elsewhere
        await asyncio.sleep(2)


def all_cpu_seconds(environment: Environment) -> dict[str, float]:
    """The CPU seconds of every process of an environment, by name."""
    found: dict[str, float] = {}
    for record in environment.folder.rglob("*.process"):
        process = Process.adopt(record.parent, record.stem)
        if process is not None:
            where = "" if record.parent == environment.processes else "workload "
            found[f"{where}{record.stem}"] = cpu_seconds(process.pid)
    return found


def used_since(before: dict[str, float], now: dict[str, float]) -> str:
    """CPU seconds by process, largest first, without those below one second."""
    used = {name: seconds - before.get(name, 0.0) for name, seconds in now.items()}
    most = sorted(used.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds:.0f}" for name, seconds in most if seconds >= 1)
