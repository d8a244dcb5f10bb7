"""SIGKILL hits the machine pool provider again and again while a pool scales and rolls.

`CAPELIN_TEST_KILL_SEEDS=7,8,9` sets the seeds, `CAPELIN_TEST_KILL_MACHINES=20` the machines.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import aiohttp
import pytest
from capelin.api.capi import MachinePool
from capelin.api.core import Node
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import (
    Environment,
    UpRequest,
    bring_up,
    remove_environment,
    supervisor_process,
)
from capelin_embedded.processes import Process

from .pools import OLDER, VERSION, Whole, is_ready, pool_manifests, whole_cluster

pytestmark = pytest.mark.timeout(900)

PROVIDER = "infrastructure-capelin"
SEEDS = [int(seed) for seed in os.environ.get("CAPELIN_TEST_KILL_SEEDS", "1").split(",")]
MACHINES = int(os.environ.get("CAPELIN_TEST_KILL_MACHINES", "4"))
SURGE, UNAVAILABLE = 1, 1
LIVES = (0.0, 2.0)
"""Seconds of the provider's life, in three of four cases after it starts to work."""


@pytest.fixture(scope="module")
async def environment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Environment]:
    """A management cluster without supervisor and machine pool provider."""
    environment = Environment(tmp_path_factory.mktemp("kills") / "kills")
    request = UpRequest(
        kubernetes_version=TESTED_KUBERNETES[-1], providers=("kubeadm-bootstrap",), durable=False
    )
    try:
        await bring_up(environment, request)
        # Only the other processes keep running: a supervisor would restart the provider.
        await end(supervisor_process(environment))
        await end(Process.adopt(environment.processes, PROVIDER))
        yield environment
    finally:
        await remove_environment(environment)


async def end(process: Process | None) -> None:
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()


class Provider:
    """The provider as a process that the test kills and restarts."""

    def __init__(self, environment: Environment) -> None:
        self.state = environment.workloads / PROVIDER
        self.kills = 0
        self._kubeconfig = environment.credentials / PROVIDER / "kubeconfig"
        self._log = environment.folder / "provider.log"
        self._address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "capelin_machine_pool"),
                *(f"--kubeconfig={self._kubeconfig}", f"--state-folder={self.state}"),
                *("--metrics-address=0", f"--health-address={self._address}"),
                stderr=log,
            )

    async def kill(self) -> None:
        assert self._process is not None
        assert self._process.returncode is None, "the provider ended by itself"
        self._process.kill()
        await self._process.wait()

    async def is_killed_again_and_again(self, random: Random) -> None:
        while True:
            if random.random() < 0.75:
                await until(self._is_at_work)
            await asyncio.sleep(random.uniform(*LIVES))
            await self.kill()
            self.kills += 1
            await self.start()

    async def _is_at_work(self) -> bool:
        with suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{self._address}/readyz") as answer,
            ):
                return answer.status == 200
        return False

    def folder(self, whole: Whole) -> Path:
        return self.state / f"{whole.namespace}.{whole.name}"

    def kwok(self, whole: Whole) -> Process | None:
        return Process.adopt(self.folder(whole) / "run", "kwok")


@asynccontextmanager
async def killed(provider: Provider, random: Random) -> AsyncGenerator[None]:
    """Kill the provider repeatedly within the context. At the end it runs."""
    async with asyncio.TaskGroup() as tasks:
        killing = tasks.create_task(provider.is_killed_again_and_again(random))
        yield
        killing.cancel()
    await provider.kill()
    await provider.start()


class Observer:
    """Watches every change of every Node, to notice even a short lack of Nodes."""

    def __init__(self) -> None:
        self.least = 0
        """The required number of ready Nodes."""
        self.ready: set[str] = set()
        self.too_few: list[tuple[int, int]] = []

    async def watch(self, whole: Whole) -> None:
        async for event in whole.workload.watch(Node):
            if event.type != "DELETED" and is_ready(event.object):
                self.ready.add(event.object.name)
            else:
                self.ready.discard(event.object.name)
            if len(self.ready) < self.least:
                self.too_few.append((len(self.ready), self.least))


@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_of_the_provider_neither_remove_too_many_machines_nor_leave_any(
    environment: Environment, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - a seed that failed has to fail again
    provider, observer = Provider(environment), Observer()
    await provider.start()
    name = f"kills-{seed}"
    async with (
        Client(Config.from_kubeconfig(environment.kubeconfig)) as management,
        whole_cluster(management, name) as whole,
        asyncio.TaskGroup() as tasks,
    ):
        watching = tasks.create_task(observer.watch(whole))
        await try_with_kills(whole, provider, observer, random)
        watching.cancel()
    assert observer.too_few == []
    assert provider.kills >= 5
    await provider.kill()


async def try_with_kills(
    whole: Whole, provider: Provider, observer: Observer, random: Random
) -> None:
    """Create a pool, roll it, revert the roll, scale down and delete it."""
    rolling = {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}
    async with killed(provider, random):
        for manifest in quick(whole, {"rollingUpdate": rolling}):
            await whole.management.apply(manifest)
        await until(lambda: whole.is_whole(MACHINES, OLDER), within=240)
        observer.least = MACHINES - UNAVAILABLE
        await whole.upgrade(VERSION)
        await until(lambda: has(whole, VERSION))
        await whole.upgrade(OLDER)
        await until(lambda: whole.is_whole(MACHINES, OLDER), within=240)
        await whole.upgrade(VERSION)
        await until(lambda: has(whole, VERSION))
        observer.least = MACHINES // 2 - UNAVAILABLE
        await whole.scale(MACHINES // 2)
        await until(lambda: whole.is_whole(MACHINES // 2, VERSION), within=240)
    await until(lambda: whole.is_whole(MACHINES // 2, VERSION), within=60)
    assert provider.kwok(whole) is not None
    observer.least = 0
    async with killed(provider, random):
        await whole.management.delete(MachinePool, "workers", whole.namespace)
        await until(lambda: is_gone(whole, provider), within=240)


def quick(whole: Whole, spec: dict[str, object]) -> list[dict[str, object]]:
    """A pool without drain, which takes core up to twenty seconds per machine."""
    manifests = pool_manifests(
        whole.name, whole.namespace, replicas=MACHINES, version=OLDER, spec=spec
    )
    annotations = {"machine.cluster.x-k8s.io/exclude-node-draining": ""}
    manifests[-1]["spec"]["template"]["metadata"] = {"annotations": annotations}
    return manifests


async def has(whole: Whole, version: str) -> bool:
    """Whether a machine of a version exists, so that a roll is in progress."""
    return any(one.status.node_info.kubelet_version == version for one in await whole.nodes())


async def is_gone(whole: Whole, provider: Provider) -> bool:
    """Whether all objects of a pool are deleted."""
    left = [*await whole.machines(), *await whole.instances(), *await whole.nodes()]
    return not left and provider.kwok(whole) is None and not provider.folder(whole).exists()
