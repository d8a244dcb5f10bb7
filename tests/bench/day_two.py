"""The CPU time that an archive of changes and encryption at rest add under writes.

Each is compared with the same load on a control plane without it, in turn. A client writes 50
objects of 1 KiB a second.
"""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, Config
from capelin.contract import KUBECONFIG_KEY
from capelin_control_plane.api import CapelinControlPlane

from tests.bench.control_plane import (
    KIND,
    PROVIDER,
    cluster,
    control_plane,
    control_plane_pids,
    until_initialized,
)
from tests.bench.rows import Row
from tests.bench.running import Bench, cpu_seconds, management
from tests.bench.sizing import component

WRITES_PER_SECOND, OBJECTS = 50, 500
SECONDS, SETTLING, ROUNDS = 30.0, 8.0, 4
BACKUP = {
    "schedule": "0 3 * * *",
    "destination": {"folder": "etcd"},
    "encryptionKey": {"name": "key"},
}
ETCD, API_SERVER = "etcd", "kube-apiserver"

Used = list[dict[str, float]]
"""The mCPU of processes, by name, in each round."""


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        async with (
            management(home, backup_folder=Path(home)) as bench,
            AsyncExitStack() as stack,
        ):
            await bench.client.create(Secret.of("key", "default", data={"key": b"k" * 32}))
            plain = await loaded(bench, stack, "plain", etcd={"backup": BACKUP})
            encrypted = await loaded(bench, stack, "encrypted", apiServer={"encryption": {}})
            without, archived = await archive(plain)
            secrets, ciphers = await encryption(plain, encrypted)
    return [
        row("a continuous archive", ETCD, without, archived, at_most=5),
        row("a continuous archive", API_SERVER, without, archived),
        row("a continuous archive", PROVIDER, without, archived),
        row("encryption of Secrets", API_SERVER, secrets, ciphers, at_most=3),
    ]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A control plane, and a client that writes to it."""

    bench: Bench
    name: str
    client: Client
    pids: dict[str, int]

    async def under_load(self, kind: type[ConfigMap | Secret], seconds: float) -> dict[str, float]:
        """The mCPU of each process while the client writes."""
        before, began = self._cpu_seconds(), time.monotonic()
        for number in range(int(seconds * WRITES_PER_SECOND)):
            await asyncio.sleep(max(0.0, began + number / WRITES_PER_SECOND - time.monotonic()))
            value = f"{number:01024}"
            name = f"written-{number % OBJECTS}"
            data = {"value": value if kind is ConfigMap else value.encode()}
            await self.client.apply(kind.of(name, "default", data=data))
        took = time.monotonic() - began
        return {
            name: 1000 * (after - before[name]) / took
            for name, after in self._cpu_seconds().items()
        }

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}


async def loaded(bench: Bench, stack: AsyncExitStack, name: str, **spec: Any) -> Loaded:
    """A new control plane."""
    created = control_plane(name)
    created["spec"] |= spec
    await bench.client.create(created, resource=KIND)
    await bench.client.create(cluster(name), resource=Cluster.resource)
    before = set(control_plane_pids(bench))
    await until_initialized(bench.client, name)
    pids = {component(pid): pid for pid in control_plane_pids(bench) if pid not in before}
    pids[PROVIDER] = bench.pid(PROVIDER)
    secret = await bench.client.get(Secret, f"{name}-kubeconfig", "default")
    config = Config.from_secret(secret.data[KUBECONFIG_KEY])
    client = await stack.enter_async_context(Client(config, manager="bench"))
    return Loaded(bench, name, client, pids)


async def archive(plain: Loaded) -> tuple[Used, Used]:
    """The same control plane without an archive, and with it."""
    used: dict[bool, Used] = {False: [], True: []}
    for continuous in (False, True) * ROUNDS:
        patch = {"spec": {"etcd": {"backup": {"continuous": continuous}}}}
        await plain.bench.client.patch(CapelinControlPlane, plain.name, "default", patch)
        await plain.under_load(ConfigMap, SETTLING)
        used[continuous].append(await plain.under_load(ConfigMap, SECONDS))
    patch = {"spec": {"etcd": {"backup": {"continuous": False}}}}
    await plain.bench.client.patch(CapelinControlPlane, plain.name, "default", patch)
    return used[False], used[True]


async def encryption(plain: Loaded, encrypted: Loaded) -> tuple[Used, Used]:
    """Two control planes, one of which encrypts Secrets."""
    used: tuple[Used, Used] = ([], [])
    for _ in range(ROUNDS):
        for one, rounds in zip((plain, encrypted), used, strict=True):
            await one.under_load(Secret, SETTLING)
            rounds.append(await one.under_load(Secret, SECONDS))
    return used


def row(what: str, process: str, before: Used, after: Used, at_most: float | None = None) -> Row:
    """The difference of the medians."""
    without, with_it = ([usage[process] for usage in used] for used in (before, after))
    return Row(
        name=f"{what}, {WRITES_PER_SECOND} writes a second: CPU time added to {process}",
        measured=100 * (median(with_it) / median(without) - 1),
        unit="%",
        at_most=at_most,
        comparison=f"{shown(without)} mCPU without, {shown(with_it)} with it",
    )


def shown(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)
