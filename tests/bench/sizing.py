"""Memory and CPU with 10, 25 and 50 control planes on processes in one management cluster."""

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import find_condition
from capelin_control_plane.api import CapelinControlPlane
from rich.console import Console

from tests.bench.control_plane import (
    KIND,
    REST,
    SETTLING,
    Usage,
    cluster,
    control_plane,
    control_plane_pids,
)
from tests.bench.rows import Row
from tests.bench.running import Bench, management

CONSOLE = Console(highlight=False, stderr=True)

COUNTS = (10, 25, 50)
AT_ONCE = 5
PATIENCE = 300.0
"""Seconds until control planes that were created at once are Available."""
RESERVE = 3072.0
"""MiB of memory to leave free: below it, no more control planes are created."""


async def measure() -> list[Row]:
    """Create more and more control planes, and measure each number of them at rest.

    It ends before the largest number if the machine has no more memory, or is too busy.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        async with management(home) as bench:
            before, made = usage(bench), 0
            for count in COUNTS:
                times: list[float] = []
                try:
                    while made < count and available_memory() > RESERVE:
                        async with asyncio.timeout(PATIENCE):
                            times += await create(bench.client, range(made, made + AT_ONCE))
                        made += AT_ONCE
                except TimeoutError:
                    CONSOLE.print(f"no more than {made} became Available")
                    break
                if times:
                    rows += await at_rest(bench, made, times, before)
                    CONSOLE.print(*rows, sep="\n")
    return rows


async def create(client: Client, numbers: range) -> list[float]:
    """Create control planes at once. Returns the seconds until each is Available."""
    return await asyncio.gather(*(create_one(client, f"plane{number}") for number in numbers))


async def create_one(client: Client, name: str) -> float:
    began = time.monotonic()
    await client.create(control_plane(name), resource=KIND)
    await client.create(cluster(name), resource=Cluster.resource)
    while True:
        if is_available(await client.get(CapelinControlPlane, name, "default")):
            return time.monotonic() - began
        # More frequent requests would distort the measurement.
        await asyncio.sleep(0.2)


def is_available(created: CapelinControlPlane) -> bool:
    conditions = created.status.conditions if created.status else []
    condition = find_condition(conditions, "Available")
    return condition is not None and condition.status == "True"


def available_memory() -> float:
    """The memory of the machine in MiB that processes can still get."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise ValueError("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Usages:
    """The usage of the management cluster's processes, and of all control planes together."""

    management: dict[str, Usage]
    control_planes: dict[str, Usage]
    """By component."""

    @property
    def total(self) -> Usage:
        everything = (*self.management.values(), *self.control_planes.values())
        return Usage(sum(one.memory for one in everything), sum(one.seconds for one in everything))


def usage(bench: Bench) -> Usages:
    pids: dict[str, list[int]] = {}
    for pid in control_plane_pids(bench):
        pids.setdefault(component(pid), []).append(pid)
    return Usages(
        {name: Usage.of([bench.pid(name)]) for name in management_processes(bench)},
        {name: Usage.of(of_component) for name, of_component in sorted(pids.items())},
    )


def management_processes(bench: Bench) -> list[str]:
    return sorted(path.stem for path in bench.environment.processes.glob("*.process"))


def component(pid: int) -> str:
    """The name of a control plane's component."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    name = Path(arguments[0]).name
    return name if name.startswith(("etcd", "kube-")) else "relay"


async def at_rest(bench: Bench, count: int, times: list[float], before: Usages) -> list[Row]:
    await asyncio.sleep(SETTLING)
    first = usage(bench)
    await asyncio.sleep(REST)
    last = usage(bench)
    which = f"{count} control planes"
    return [
        Row(name=f"{which}: created to Available, median", measured=median(times), unit="s"),
        Row(name=f"{which}: created to Available, longest", measured=max(times), unit="s"),
        Row(name=f"{which}: memory of everything", measured=last.total.memory, unit="MiB"),
        Row(
            name=f"{which}: CPU of everything",
            measured=1000 * (last.total.seconds - first.total.seconds) / REST,
            unit="mCPU",
        ),
        *usage_rows(f"{which}, each: ", first.control_planes, last.control_planes, count),
        *usage_rows(f"{which}: management ", first.management, last.management, 1, before),
    ]


def usage_rows(
    which: str,
    first: dict[str, Usage],
    last: dict[str, Usage],
    share: int,
    before: Usages | None = None,
) -> list[Row]:
    """The memory and CPU of each component, divided by a number of control planes."""
    totals = Counter({"memory": 0.0, "seconds": 0.0})
    rows: list[Row] = []
    for name, used in last.items():
        seconds = used.seconds - first[name].seconds
        totals.update({"memory": used.memory, "seconds": seconds})
        empty = f"{before.management[name].memory:.0f} MiB without any" if before else ""
        rows += [
            Row(
                name=f"{which}{name}: memory",
                measured=used.memory / share,
                unit="MiB",
                comparison=empty,
            ),
            Row(name=f"{which}{name}: CPU", measured=1000 * seconds / REST / share, unit="mCPU"),
        ]
    return [
        Row(name=f"{which}total: memory", measured=totals["memory"] / share, unit="MiB"),
        Row(
            name=f"{which}total: CPU", measured=1000 * totals["seconds"] / REST / share, unit="mCPU"
        ),
        *rows,
    ]
