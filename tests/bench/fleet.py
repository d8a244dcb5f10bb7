"""Ten clusters of the demo's ClusterClass, five at a time, each with three workers.

Cluster API's own scale test creates clusters of this shape.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import find_condition
from capelin_cli.clusters.demo import apply_cluster_class, demo_class
from capelin_cli.clusters.topology import ClusterOptions, new_cluster
from capelin_embedded.binaries import TESTED_KUBERNETES

from tests.bench.control_plane import bare_start
from tests.bench.rows import Row
from tests.bench.running import management

VERSION = TESTED_KUBERNETES[-1]
CLUSTERS, AT_ONCE, WORKERS = 10, 5, 3


def is_initialized(cluster: Cluster) -> bool:
    return bool(cluster.status.initialization.control_plane_initialized)


def is_available(cluster: Cluster) -> bool:
    condition = find_condition(cluster.status.conditions, "Available")
    return condition is not None and condition.status == "True"


def has_workers(cluster: Cluster) -> bool:
    workers = cluster.status.workers
    return workers is not None and workers.available_replicas == WORKERS


MILESTONES: dict[str, tuple[Callable[[Cluster], bool], float | None]] = {
    "control plane initialized": (is_initialized, None),
    "Available": (is_available, 12),
    f"{WORKERS} workers available": (has_workers, 20),
}
"""The state of a Cluster, and the target in seconds."""


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        floor = await bare_start(Path(home) / "bare", AT_ONCE)
        async with management(home, ["kubeadm-bootstrap"]) as bench:
            await apply_cluster_class(bench.client)
            slots = asyncio.Semaphore(AT_ONCE)
            began = time.monotonic()
            times = await asyncio.gather(
                *(create(bench.client, f"fleet{number}", slots) for number in range(CLUSTERS))
            )
            total = time.monotonic() - began
    rows = [
        row(milestone, [seconds[milestone] for seconds in times], target)
        for milestone, (_, target) in MILESTONES.items()
    ]
    return [
        *rows,
        Row(name=f"all {CLUSTERS} clusters", measured=total, unit="s"),
        Row(name=f"{AT_ONCE} bare etcds and API servers at once", measured=floor, unit="s"),
    ]


async def create(client: Client, name: str, slots: asyncio.Semaphore) -> dict[str, float]:
    """Create a cluster. Returns the seconds until each milestone."""
    options = ClusterOptions(workers=WORKERS)
    manifest = new_cluster(name, "default", VERSION, options, demo_class())
    async with slots:
        began = time.monotonic()
        await client.create(manifest)
        times: dict[str, float] = {}
        while len(times) < len(MILESTONES):
            # More frequent requests would distort the measurement.
            await asyncio.sleep(0.2)
            cluster = await client.get(Cluster, name, "default")
            for milestone, (reached, _) in MILESTONES.items():
                if milestone not in times and reached(cluster):
                    times[milestone] = time.monotonic() - began
        return times


def row(milestone: str, times: list[float], target: float | None) -> Row:
    """The median of all clusters, and the first and last for comparison."""
    return Row(
        name=f"one of {CLUSTERS} clusters, {AT_ONCE} at a time: {milestone}, median",
        measured=median(times),
        unit="s",
        at_most=target,
        comparison=f"{min(times):.1f} to {max(times):.1f} s",
    )
