"""The faults of a campaign: what each breaks, and what has to be well again afterwards."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from capelin.embedded.processes import Process

from tests.faults.world import World

Inject = Callable[[World, Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One way to break something."""

    name: str
    inject: Inject
    weight: int = 1
    nodes: bool = False
    """Whether nodes may be away for a while, and have to be back."""
    needs_root: bool = False


def _send(process: Process | None, number: signal.Signals) -> None:
    """Signal a process, unless it is being restarted in this moment."""
    if process is not None:
        process.signal(number)


def killed(component: str) -> Inject:
    """SIGKILL an instance of a component of the control plane."""

    async def inject(world: World, random: Random) -> None:
        _send(world.instance(random.choice(world.instances(component))), signal.SIGKILL)

    return inject


def killed_repeatedly(component: str, times: int) -> Inject:
    """SIGKILL an instance as soon as it is back, some times in a row."""

    async def inject(world: World, random: Random) -> None:
        name = random.choice(world.instances(component))
        last = 0
        for _ in range(times):
            process = await _another(world, name, last)
            last = process.pid
            process.signal(signal.SIGKILL)

    return inject


async def _another(world: World, name: str, last: int) -> Process:
    async with asyncio.timeout(120):
        while True:
            process = world.instance(name)
            if process is not None and process.pid != last:
                return process
            await asyncio.sleep(0.05)


def hung(component: str) -> Inject:
    """SIGSTOP an instance: it keeps its connections and answers nothing."""

    async def inject(world: World, random: Random) -> None:
        _send(world.instance(random.choice(world.instances(component))), signal.SIGSTOP)

    return inject


def management_killed(name: str) -> Inject:
    """SIGKILL a process of the management cluster."""

    async def inject(world: World, random: Random) -> None:  # noqa: ARG001 - all have one shape
        _send(world.management(name), signal.SIGKILL)

    return inject


async def management_hung(world: World, random: Random) -> None:
    """Have the management API server answer nobody for some seconds."""
    process = world.management("kube-apiserver")
    _send(process, signal.SIGSTOP)
    await asyncio.sleep(random.uniform(1, 4))
    if process is not None and process.is_running:
        process.signal(signal.SIGCONT)


async def kwok_killed(world: World, random: Random) -> None:  # noqa: ARG001 - all have one shape
    """SIGKILL the process that keeps the nodes alive."""
    _send(world.kwok(), signal.SIGKILL)


async def member_wiped(world: World, random: Random) -> None:
    """Remove all data of one etcd member."""
    name = random.choice(world.instances("etcd"))
    process = world.instance(name)
    await asyncio.to_thread(shutil.rmtree, world.state_dir / name, ignore_errors=True)
    _send(process, signal.SIGKILL)


async def member_corrupted(world: World, random: Random) -> None:
    """Overwrite a part of one etcd member's database while it is down."""
    name = random.choice(world.instances("etcd"))
    process = world.instance(name)
    _send(process, signal.SIGSTOP)
    await asyncio.to_thread(_scramble, world.state_dir / name, random)
    _send(process, signal.SIGKILL)


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


FAULTS = (
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
    Fault("KWOK killed", kwok_killed, 2, nodes=True),
    Fault("control plane provider killed", management_killed("control-plane-capelin"), 4),
    Fault("machine pool provider killed", management_killed("infrastructure-capelin"), 3),
    Fault("Cluster API core killed", management_killed("cluster-api"), 1),
    Fault("management API server killed", management_killed("kube-apiserver"), 2),
    Fault("management etcd killed", management_killed("etcd"), 1),
    Fault("management API server hung", management_hung, 2),
    Fault("disk full", disk_filled, 2, needs_root=True),
)
