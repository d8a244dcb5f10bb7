"""Clusters move to another management cluster and back, and serve without interruption."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Namespace, Node, Secret
from capelin.client import Client, Config
from capelin.contract import ASLEEP, find_condition
from capelin.testing.waiting import until
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import (
    Environment,
    UpRequest,
    bring_up,
    remove_environment,
)
from capelin_embedded.processes import Process, kill_all, marked_processes, private_folder

from tests.load import Load

from .pools import Whole, cluster_manifests, condition, pool_manifests

pytestmark = pytest.mark.timeout(900)

NAME = "moved"
SHARED = "control-plane-capelin"
"""Both management clusters must find its processes in this folder. Machines need no shared folder:
each management cluster renews the leases of their Nodes with its own process."""
Run = Callable[..., Awaitable[str]]


@asynccontextmanager
async def environment(folder: Path, shared: Path, *providers: str) -> AsyncGenerator[Environment]:
    """A management cluster whose providers keep their processes in a shared folder."""
    environment = Environment(folder)
    request = UpRequest(
        kubernetes_version=TESTED_KUBERNETES[-1],
        providers=("kubeadm-bootstrap", *providers),
        durable=False,
    )
    environment.make_folders()
    (environment.workloads / SHARED).symlink_to(private_folder(shared / SHARED))
    try:
        await bring_up(environment, request)
        yield environment
    finally:
        await remove_environment(environment)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncGenerator[tuple[Environment, Environment]]:
    shared = tmp_path / "shared"
    try:
        async with (
            environment(tmp_path / "here", shared) as here,
            environment(tmp_path / "there", shared) as there,
        ):
            yield here, there
    finally:
        await kill_all(shared)


def client_of(environment: Environment) -> Client:
    return Client(Config.from_kubeconfig(environment.kubeconfig))


async def fingerprints(client: Client) -> dict[str, dict[str, bytes]]:
    """CAs and keys, which must not change during moves."""
    names = [f"{NAME}-{purpose}" for purpose in ("ca", "etcd", "proxy", "sa")]
    return {name: (await client.get(Secret, name, NAME)).data for name in names}


async def uids(workload: Client) -> dict[str, str]:
    """UIDs of the Nodes by name, to detect recreated ones."""
    return {node.name: node.uid for node in (await workload.list(Node)).items}


async def has_nodes(workload: Client, count: int) -> bool:
    return len(await uids(workload)) == count


def keeps_nodes_alive(environment: Environment) -> bool:
    """Whether a process for the cluster's simulated machines runs here."""
    folder = environment.workloads / "infrastructure-capelin" / f"{NAME}.{NAME}" / "run"
    return folder.exists() and Process.adopt(folder, "kwok") is not None


async def move(run: Run, source: Environment, target: Environment) -> None:
    """Move everything with the real clusterctl."""
    await run(
        source.kubeconfig,
        "clusterctl",
        "move",
        f"--kubeconfig={source.kubeconfig}",
        f"--to-kubeconfig={target.kubeconfig}",
        f"--namespace={NAME}",
    )


async def is_settled(client: Client) -> bool:
    """Whether the cluster and its control plane are available, complete and not paused."""
    cluster = await client.find(Cluster, NAME, NAME)
    mine = await client.find(CapelinControlPlane, NAME, NAME)
    if cluster is None or mine is None or mine.status is None:
        return False
    expected = {"Available": "True", "RollingOut": "False", "Paused": "False"}
    conditions = {type_: condition(mine, type_) for type_ in expected}
    return conditions == expected and condition(cluster, "Available") == "True"


@pytest.mark.needs_programs("clusterctl")
@pytest.mark.parametrize("machines", [pytest.param(0, marks=pytest.mark.representative), 2])
async def test_a_cluster_moves_there_and_back_and_serves_without_interruption(
    pair: tuple[Environment, Environment], run_program: Run, machines: int
) -> None:
    here, there = pair
    async with client_of(here) as source, client_of(there) as target:
        await source.apply(Namespace.of(NAME))
        manifests = cluster_manifests(NAME, NAME)
        if machines:
            manifests += pool_manifests(NAME, NAME, replicas=machines)
        for manifest in manifests:
            await source.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(source, NAME, NAME, 180, progress.append)
        made = await fingerprints(source)
        kubeconfig = await source.get(Secret, f"{NAME}-kubeconfig", NAME)
        config = Config.from_secret(kubeconfig.data["value"])
        async with Client(config) as workload:
            load = Load(config, pause=0.05)
            loading = asyncio.create_task(load.run())
            await until(lambda: has_nodes(workload, machines))
            nodes = await uids(workload)
            for one, other in ((here, there), (there, here)):
                client = target if other is there else source
                await move(run_program, one, other)
                await until(lambda client=client: is_settled(client))
                assert await fingerprints(client) == made
                if machines:
                    whole = Whole(client, workload, NAME, NAME)
                    await until(lambda whole=whole: whole.is_whole(machines, TESTED_KUBERNETES[-1]))
                    await until(lambda other=other: keeps_nodes_alive(other))
                await until(lambda one=one: not keeps_nodes_alive(one))
                assert await uids(workload) == nodes
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
            found = await workload.list(ConfigMap, "default")
        assert load.failed == []
        assert load.sent > 100
        assert load.written <= {item.metadata.name for item in found.items}

        await source.delete(Cluster, NAME, NAME)

        async def gone() -> bool:
            return await source.find(Cluster, NAME, NAME) is None

        await until(gone)


@pytest.mark.needs_programs("clusterctl")
async def test_a_sleeping_cluster_moves_and_wakes(
    pair: tuple[Environment, Environment], run_program: Run, tmp_path: Path
) -> None:
    here, there = pair

    def running() -> list[str]:
        folders = (tmp_path / "shared" / SHARED).glob("*/run")
        return [process.name for folder in folders for process in marked_processes(folder)]

    async def annotate(client: Client, annotation: str) -> None:
        patch = {"metadata": {"annotations": {annotation: datetime.now(UTC).isoformat()}}}
        await client.patch(CapelinControlPlane, NAME, NAME, patch)

    async def is_asleep(client: Client) -> bool:
        status = (await client.get(CapelinControlPlane, NAME, NAME)).status
        asleep = find_condition(status.conditions, ASLEEP) if status else None
        return asleep is not None and asleep.reason == ASLEEP and running() == []

    async with client_of(here) as source, client_of(there) as target:
        await source.apply(Namespace.of(NAME))
        for manifest in cluster_manifests(NAME, NAME):
            await source.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(source, NAME, NAME, 180, progress.append)
        kubeconfig = await source.get(Secret, f"{NAME}-kubeconfig", NAME)
        async with Client(Config.from_secret(kubeconfig.data["value"]), manager="test") as workload:
            await workload.apply(ConfigMap.of("kept", "default"))
            await annotate(source, SLEEP_ANNOTATION)
            await until(lambda: is_asleep(source))
            await target.apply(Namespace.of(NAME))
            await move(run_program, here, there)
            await until(lambda: is_asleep(target))
            await annotate(target, WAKE_ANNOTATION)
            await until(lambda: is_settled(target), within=120)
            assert await workload.find(ConfigMap, "kept", "default") is not None
