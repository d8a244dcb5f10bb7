"""A campaign of faults from setup to the search for leftovers.

It always compares acknowledged writes, deletes its clusters and searches for orphans, each within a
bounded time.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from capelin_embedded.binaries import TESTED_KUBERNETES
from rich.console import Console

from tests.faults.catalog import CHURN_FAULTS, CLUSTER_FAULTS, MANAGEMENT_FAULTS, Fault
from tests.faults.interposer import ApiProxy, Clock
from tests.faults.lanes import RECOVERY_LIMIT, Canary, Churn, Lane, until, until_done
from tests.faults.report import Journal
from tests.faults.world import (
    UNREACHABLE,
    ClusterUnderTest,
    World,
    bring_up_clusters,
    world,
)
from tests.leftovers import mentioning

T = TypeVar("T")

FALSE_SECONDS = 15.0
LOADED, CANARY, CHURNING = ("steady-a", "steady-b"), "canary", "churn"


@dataclass(frozen=True)
class Setting:
    """The folder, possible faults and duration of a campaign."""

    folder: Path
    proxy: ApiProxy
    clock: Clock
    root: bool
    has_clock: bool
    minutes: float
    """After this time the campaign injects no faults."""

    def allows(self, fault: Fault[T]) -> bool:
        """Whether this machine supports the fault."""
        return (self.root or not fault.needs_root) and (self.has_clock or not fault.needs_clock)


def chosen(
    faults: Sequence[Fault[T]], count: int, random: Random, setting: Setting
) -> list[Fault[T]]:
    """Faults in random order: each kind once, then by weight."""
    possible = [fault for fault in faults if setting.allows(fault)]
    first = random.sample(possible, len(possible))[:count]
    weights = [fault.weight for fault in possible]
    return [*first, *random.choices(possible, weights, k=count - len(first))]


def shares(count: int) -> tuple[list[int], int, int]:
    """Numbers of faults for each loaded cluster, the management cluster and the churning one."""
    churning = count // 25
    management = count // 6
    rest = count - churning - management
    first = (rest + 1) // 2
    return [first, rest - first], management, churning


async def campaign(setting: Setting, count: int, journal: Journal) -> None:
    """Inject this many faults, then remove everything and search for leftovers."""
    report = journal.report
    async with world(setting.folder, TESTED_KUBERNETES[-1], setting.proxy, setting.clock) as made:
        loaded = [made.cluster(name, api_servers=2, etcd=3) for name in LOADED]
        canary = Canary(made.cluster(CANARY), report)
        churn = Churn(made.cluster(CHURNING), report)
        steady = [*loaded, canary.cluster]
        await bring_up_clusters(steady, TESTED_KUBERNETES[-1])
        background = [asyncio.create_task(churn.run())]
        for cluster in loaded:
            background += await cluster.put_under_load()
        for cluster in steady:
            background.append(asyncio.create_task(cluster.watch_availability(FALSE_SECONDS)))
        lanes = asyncio.create_task(inject(setting, count, journal, loaded, canary, churn))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, lanes.cancel)
        await asyncio.wait({lanes})
        for task in background:
            task.cancel()
        for ended in await asyncio.gather(lanes, *background, return_exceptions=True):
            if isinstance(ended, Exception):
                journal.problem(f"ended early: {ended!r}")
        await _judge(setting, journal, loaded, canary.cluster)
        await _remove_clusters(journal, [*steady, churn.cluster])
    for command in mentioning(setting.folder, "environ"):
        journal.problem(f"orphan: {command}")


async def inject(
    setting: Setting,
    count: int,
    journal: Journal,
    loaded: Sequence[ClusterUnderTest],
    canary: Canary,
    churn: Churn,
) -> None:
    """Run all lanes at once, each with the faults of its seed."""
    seed = journal.report.seed
    end = time.monotonic() + 60 * setting.minutes
    of_loaded, of_management, of_churning = shares(count)
    async with asyncio.TaskGroup() as lanes:
        for cluster, number in zip(loaded, of_loaded, strict=True):
            random = Random(f"{seed}/{cluster.name}")  # noqa: S311 - seeds shall be repeatable
            lane = Lane(
                name=cluster.name,
                subject=cluster,
                faults=chosen(CLUSTER_FAULTS, number, random, setting),
                random=random,
                is_well=lambda cluster=cluster: cluster.is_well(nodes=True),
                check=cluster.check_authorities,
            )
            lanes.create_task(lane.run(journal, end))
        random = Random(f"{seed}/management")  # noqa: S311
        management = Lane(
            name="management",
            subject=canary.cluster.world,
            faults=chosen(MANAGEMENT_FAULTS, of_management, random, setting),
            random=random,
            is_well=canary.is_well,
            during=canary.change,
            check=canary.cluster.check_authorities,
        )
        lanes.create_task(management.run(journal, end))
        random = Random(f"{seed}/churn")  # noqa: S311
        churning = Lane(
            name="churn",
            subject=churn.cluster,
            faults=chosen(CHURN_FAULTS, of_churning, random, setting),
            random=random,
            is_well=churn.is_well,
            during=churn.begin,
        )
        lanes.create_task(churning.run(journal, end))


async def _judge(
    setting: Setting,
    journal: Journal,
    loaded: Sequence[ClusterUnderTest],
    canary: ClusterUnderTest,
) -> None:
    """Report lost writes and false conditions."""
    report = journal.report
    loads = [load for cluster in loaded for load in cluster.loads]
    report.written = sum(len(load.written) for load in loads)
    report.sent_requests = sum(load.sent for load in loads)
    report.failed_requests = sum(len(load.failed) for load in loads)
    report.failed_api_requests = setting.proxy.failed
    for problem in [text for cluster in (*loaded, canary) for text in cluster.false_conditions]:
        journal.problem(problem)
    for cluster in loaded:
        try:
            lost = await _lost_writes(cluster)
        except TimeoutError:
            journal.problem(f"{cluster.name}: its acknowledged writes cannot be compared")
            continue
        report.compared += sum(len(load.written) for load in cluster.loads)
        for name in sorted(lost):
            journal.problem(f"{cluster.name} lost an acknowledged write: {name}")
    if report.problems:
        _keep_evidence(journal.console, canary.world)


async def _lost_writes(cluster: ClusterUnderTest) -> set[str]:
    """Repeat until an answer: the last fault may not have recovered."""
    async with asyncio.timeout(RECOVERY_LIMIT):
        while True:
            try:
                return await cluster.lost_writes()
            except UNREACHABLE:
                await asyncio.sleep(1)


def _keep_evidence(console: Console, made: World) -> None:
    """Copy the logs, since the environment is removed."""
    kept = Path(tempfile.mkdtemp(prefix="capelin-faults-failed-"))
    for log in made.environment.folder.rglob("*.log*"):
        copy = kept / log.relative_to(made.environment.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(log.read_bytes())
    console.print(f"the logs are in {kept}")


async def _remove_clusters(journal: Journal, clusters: Sequence[ClusterUnderTest]) -> None:
    """Delete the clusters and check that nothing remains."""
    try:
        for cluster in clusters:
            await until_done(cluster.delete)
        for cluster in clusters:
            await until(cluster.is_gone)
    except TimeoutError:
        journal.problem("the clusters cannot be deleted")
    workloads = clusters[0].world.environment.workloads
    for path in workloads.glob("*/*"):
        if path.is_dir():
            journal.problem(f"orphan: {path}")
    for command in mentioning(workloads):
        journal.problem(f"orphan: {command}")
