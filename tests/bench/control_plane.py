"""Control planes on processes with the real Cluster API core, compared with bare processes."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from capelin.api import Resource
from capelin.api.capi import Cluster
from capelin.client import Client
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.processes import Command

from tests.bench.rows import Row
from tests.bench.running import Bench, cpu_seconds, management, proportional_memory

VERSION = TESTED_KUBERNETES[-1]
KIND = Resource(
    "controlplane.cluster.x-k8s.io", "v1alpha1", "CapelinControlPlane", "capelincontrolplanes"
)
PROVIDER = "control-plane-capelin"
ONE_BY_ONE = 5
AT_ONCE = 10
MANY = 20
SETTLING = 30.0
REST = 60.0


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        bare = [await bare_start(Path(home) / f"bare{number}", 1) for number in range(ONE_BY_ONE)]
        bare_at_once = await bare_start(Path(home) / "bare-at-once", AT_ONCE)
        async with management(home) as bench:
            before = Usage.of([bench.pid(PROVIDER)])
            single = [await initialized(bench, [f"one{n}"]) for n in range(ONE_BY_ONE)]
            rows = [
                *started("one control plane", median(single), median(bare)),
                *started(
                    f"{AT_ONCE} control planes at once",
                    await initialized(bench, [f"ten{n}" for n in range(AT_ONCE)]),
                    bare_at_once,
                ),
            ]
            return [*rows, *await idle_usage(bench, before)]


def started(what: str, took: float, bare: float) -> list[Row]:
    """The time to initialized, also in relation to a bare start."""
    return [
        Row(name=f"{what}: applied to initialized", measured=took, unit="s"),
        Row(
            name=f"{what}: times the bare start",
            measured=took / bare,
            unit="",
            at_most=1.5,
            comparison=f"only etcd and API server: {bare:.2f} s",
        ),
    ]


async def bare_start(folder: Path, count: int) -> float:
    """The start time of only etcd and API server until /readyz."""
    servers = [await bare_server(folder / str(number)) for number in range(count)]
    began = time.monotonic()
    await asyncio.gather(*(server.start() for server in servers))
    took = time.monotonic() - began
    await asyncio.gather(*(server.stop() for server in servers))
    return took


async def bare_server(folder: Path) -> ApiServer:
    """An untuned API server and its etcd."""
    server = await ApiServer.prepare(folder, Settings(version=VERSION, controllers=()))
    untuned = [
        replace(one, command=Command(one.command.arguments, directory=one.command.directory))
        for one in server.declared
    ]
    return replace(server, declared=tuple(untuned))


async def initialized(bench: Bench, names: Sequence[str], *, stay: bool = False) -> float:
    """Seconds until all new clusters are `controlPlaneInitialized`. Then it deletes them."""
    began = time.monotonic()
    for name in names:
        await bench.client.create(control_plane(name), resource=KIND)
        await bench.client.create(cluster(name), resource=Cluster.resource)
    for name in names:
        await until_initialized(bench.client, name)
    took = time.monotonic() - began
    if not stay:
        await remove(bench.client, names)
    return took


async def until_initialized(client: Client, name: str) -> None:
    """Wait for the same field as Cluster API."""
    while True:
        found = await client.get(KIND, name, "default")
        status: dict[str, dict[str, Any]] = found.get("status") or {}
        if status.get("initialization", {}).get("controlPlaneInitialized"):
            return
        # More frequent requests would distort the measurement.
        await asyncio.sleep(0.1)


async def remove(client: Client, names: Sequence[str]) -> None:
    for name in names:
        await client.delete(Cluster, name, "default")
    for name in names:
        while await client.find(Cluster, name, "default"):  # noqa: ASYNC110 - as a user would
            await asyncio.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of processes: their share of memory in MiB, CPU in seconds."""

    memory: float
    seconds: float

    @classmethod
    def of(cls, pids: Sequence[int]) -> "Usage":
        """Current usage of processes. Shared memory counts once, in proportional parts."""
        return cls(sum(map(proportional_memory, pids)), sum(map(cpu_seconds, pids)))


async def idle_usage(bench: Bench, before: Usage) -> list[Row]:
    """Resources of many idle control planes and of their provider."""
    names = [f"many{number}" for number in range(MANY)]
    await initialized(bench, names[:1], stay=True)
    await asyncio.sleep(SETTLING)
    single = Usage.of(control_plane_pids(bench))
    for start in range(1, MANY, 5):
        await initialized(bench, names[start : start + 5], stay=True)
    await asyncio.sleep(SETTLING)
    pids = control_plane_pids(bench)
    first, provider = Usage.of(pids), Usage.of([bench.pid(PROVIDER)])
    await asyncio.sleep(REST)
    last, provider_last = Usage.of(pids), Usage.of([bench.pid(PROVIDER)])
    which = f"with {MANY} idle control planes"
    return [
        Row(name="one idle control plane: memory", measured=single.memory, unit="MiB", at_most=350),
        Row(
            name=f"{which}: memory of each",
            measured=last.memory / MANY,
            unit="MiB",
            at_most=350,
        ),
        Row(
            name=f"{which}: CPU of each",
            measured=1000 * (last.seconds - first.seconds) / REST / MANY,
            unit="mCPU",
            at_most=15,
        ),
        Row(
            name=f"{which}: the controller's memory for each",
            measured=(provider_last.memory - before.memory) / MANY,
            unit="MiB",
            at_most=1,
            comparison=f"{before.memory:.0f} MiB without any",
        ),
        Row(
            name=f"{which}: the controller's CPU for each",
            measured=1000 * (provider_last.seconds - provider.seconds) / REST / MANY,
            unit="mCPU",
            at_most=0.8,
        ),
    ]


def control_plane_pids(bench: Bench) -> list[int]:
    """All processes with a control plane's folder on their command line, including relays."""
    state = str(bench.environment.workloads / PROVIDER).encode()
    found: list[int] = []
    provider = bench.pid(PROVIDER)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if state in line:
            found.append(int(process.name))
    return [pid for pid in found if pid != provider]


def control_plane(name: str) -> dict[str, Any]:
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"version": VERSION, "replicas": 1},
    }


def cluster(name: str) -> dict[str, Any]:
    """A Cluster with only that control plane."""
    reference = {"apiGroup": KIND.group, "kind": KIND.kind, "name": name}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"controlPlaneRef": reference},
    }
