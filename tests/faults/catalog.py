"""The faults of a campaign, and their requirements."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from capelin_embedded.processes import Process

from tests.faults.interposer import ApiError
from tests.faults.world import ClusterUnderTest, World

T = TypeVar("T")

Inject = Callable[[T, Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault(Generic[T]):
    """A kind of fault."""

    name: str
    inject: Inject[T]
    weight: int = 1
    needs_root: bool = False
    needs_clock: bool = False


def _send(process: Process | None, number: signal.Signals) -> None:
    """Signal a process, unless it is just restarting."""
    if process is not None:
        process.signal(number)


def _any(cluster: ClusterUnderTest, component: str, random: Random) -> Process | None:
    names = cluster.instances(component)
    return cluster.instance(random.choice(names)) if names else None


def killed(component: str) -> Inject[ClusterUnderTest]:
    """SIGKILL an instance of a component of the control plane."""

    async def inject(cluster: ClusterUnderTest, random: Random) -> None:
        _send(_any(cluster, component, random), signal.SIGKILL)

    return inject


def killed_repeatedly(component: str, times: int) -> Inject[ClusterUnderTest]:
    """SIGKILL an instance several times, each time after its restart."""

    async def inject(cluster: ClusterUnderTest, random: Random) -> None:
        name = random.choice(cluster.instances(component))
        last = 0
        for _ in range(times):
            process = await _another(cluster, name, last)
            last = process.pid
            process.signal(signal.SIGKILL)

    return inject


async def _another(cluster: ClusterUnderTest, name: str, last: int) -> Process:
    async with asyncio.timeout(120):
        while True:
            process = cluster.instance(name)
            if process is not None and process.pid != last:
                return process
            await asyncio.sleep(0.05)


def hung(component: str) -> Inject[ClusterUnderTest]:
    """SIGSTOP an instance: it keeps its connections and answers nothing."""

    async def inject(cluster: ClusterUnderTest, random: Random) -> None:
        _send(_any(cluster, component, random), signal.SIGSTOP)

    return inject


def management_killed(name: str) -> Inject[World]:
    """SIGKILL a process of the management cluster."""

    async def inject(world: World, random: Random) -> None:  # noqa: ARG001 - all have one shape
        _send(world.process(name), signal.SIGKILL)

    return inject


async def management_hung(world: World, random: Random) -> None:
    """SIGSTOP the management API server for some seconds."""
    process = world.process("kube-apiserver")
    _send(process, signal.SIGSTOP)
    await asyncio.sleep(random.uniform(1, 4))
    if process is not None and process.is_running:
        process.signal(signal.SIGCONT)


async def kwok_killed(cluster: ClusterUnderTest, random: Random) -> None:  # noqa: ARG001
    """SIGKILL the process that renews the leases of nodes."""
    _send(cluster.kwok(), signal.SIGKILL)


async def member_wiped(cluster: ClusterUnderTest, random: Random) -> None:
    """Remove all data of one etcd member."""
    name = random.choice(cluster.instances("etcd"))
    process = cluster.instance(name)
    await asyncio.to_thread(shutil.rmtree, _data(cluster, name), ignore_errors=True)
    _send(process, signal.SIGKILL)


async def member_corrupted(cluster: ClusterUnderTest, random: Random) -> None:
    """Overwrite a part of one etcd member's database while it is down."""
    name = random.choice(cluster.instances("etcd"))
    process = cluster.instance(name)
    # The provider keeps earlier corrupt data for inspection, which would fill the small disk.
    for aside in _data(cluster, name).parent.glob("etcd-*.corrupt-*"):
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
    _send(process, signal.SIGSTOP)
    await asyncio.to_thread(_scramble, _data(cluster, name), random)
    _send(process, signal.SIGKILL)


def _data(cluster: ClusterUnderTest, member: str) -> Path:
    assert cluster.state_dir is not None
    return cluster.state_dir / member


def _scramble(folder: Path, random: Random) -> None:
    for path in [*folder.rglob("db"), *folder.rglob("*.wal")]:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            file.write(random.randbytes(min(size, 64 * 1024)))


async def disk_filled(world: World, random: Random) -> None:
    """Fill the disk to the last byte for some seconds."""
    path = world.environment.folder / "filler"
    try:
        await asyncio.to_thread(_fill, path)
        await asyncio.sleep(random.uniform(2, 6))
    finally:
        path.unlink(missing_ok=True)


def _fill(path: Path) -> None:
    block = b"\0" * (1 << 20)
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                if not file.write(block):
                    return
            except OSError:
                if len(block) == 1:
                    return
                block = block[: len(block) // 16] or b"\0"


def clock_jumped(offset: str) -> Inject[World]:
    """Change the clock of the providers and their supervisor for some seconds."""

    async def inject(world: World, random: Random) -> None:
        world.clock.set(offset)
        try:
            await asyncio.sleep(random.uniform(5, 10))
        finally:
            world.clock.set("+0")

    return inject


def api_failed(error: ApiError, share: float) -> Inject[World]:
    """Let a share of the providers' requests to the management API server fail for some time."""

    async def inject(world: World, random: Random) -> None:
        async with world.proxy.failing(error, share):
            await asyncio.sleep(random.uniform(4, 10))

    return inject


async def any_process_killed(cluster: ClusterUnderTest, random: Random) -> None:
    """SIGKILL any process of a control plane at any moment of a change."""
    names = cluster.instances()
    if names:
        _send(cluster.instance(random.choice(names)), signal.SIGKILL)


CLUSTER_FAULTS: tuple[Fault[ClusterUnderTest], ...] = (
    Fault("kube-apiserver killed", killed("kube-apiserver"), 4),
    Fault("kube-apiserver killed 3 times", killed_repeatedly("kube-apiserver", 3)),
    Fault("kube-apiserver hung", hung("kube-apiserver"), 3),
    Fault("etcd member killed", killed("etcd"), 4),
    Fault("etcd member hung", hung("etcd"), 2),
    Fault("etcd member wiped", member_wiped, 2),
    Fault("etcd member corrupted", member_corrupted, 2),
    Fault("kube-controller-manager killed", killed("kube-controller-manager"), 2),
    Fault("kube-scheduler killed", killed("kube-scheduler"), 2),
    Fault("relay killed", killed("relay"), 2),
    Fault("KWOK killed", kwok_killed, 2),
)
"""Faults of one cluster, which must stay usable."""

MANAGEMENT_FAULTS: tuple[Fault[World], ...] = (
    Fault("control plane provider killed", management_killed("control-plane-capelin"), 4),
    Fault("machine pool provider killed", management_killed("infrastructure-capelin"), 3),
    Fault("Cluster API core killed", management_killed("cluster-api")),
    Fault("management API server killed", management_killed("kube-apiserver"), 2),
    Fault("management etcd killed", management_killed("etcd")),
    Fault("management API server hung", management_hung, 2),
    Fault("API answers 500", api_failed("500", 0.7), 2),
    Fault("API answers 409", api_failed("409", 0.7), 2),
    Fault("API answers 429", api_failed("429", 0.7), 2),
    Fault("API does not answer", api_failed("hang", 0.5), 2),
    Fault("API connections break", api_failed("reset", 0.5), 2),
    Fault("API carries out and answers 500", api_failed("lost response", 0.5), 2),
    Fault("API ends watches with 410", api_failed("expired watches", 1.0)),
    Fault("clock 3 hours ahead", clock_jumped("+3h"), needs_clock=True),
    Fault("clock 3 hours behind", clock_jumped("-3h"), needs_clock=True),
    Fault("clock 300 days ahead", clock_jumped("+300d"), needs_clock=True),
    Fault("clock 30 days behind", clock_jumped("-30d"), needs_clock=True),
    Fault("disk full", disk_filled, 2, needs_root=True),
)
"""Faults of the management cluster, the providers or the machine, which affect all clusters."""

CHURN_FAULTS: tuple[Fault[ClusterUnderTest], ...] = (
    Fault("any process killed during a change", any_process_killed),
)
"""Faults of a cluster that is created, scaled, upgraded, renewed and deleted meanwhile."""
