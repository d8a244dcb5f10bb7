"""Injects faults into several clusters and the management cluster at once, and judges recovery."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Generic, TextIO, TypeVar

from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin_control_plane.desired import RENEW_ANNOTATION
from rich.console import Console

from tests.faults.catalog import CHURN_FAULTS, CLUSTER_FAULTS, MANAGEMENT_FAULTS, Fault
from tests.faults.interposer import ApiProxy, Clock
from tests.faults.world import (
    UNREACHABLE,
    ClusterUnderTest,
    World,
    bring_up_clusters,
    world,
)
from tests.leftovers import mentioning

T = TypeVar("T")

RECOVERY_LIMIT = 240.0
"""Seconds after which a fault counts as never recovered from."""
LIE_SECONDS = 15.0
LOADED, CANARY, CHURNING = ("steady-a", "steady-b"), "canary", "churn"
_POLL_SECONDS = 0.5
_PAUSE_SECONDS = 1.0

Action = Callable[[], Awaitable[object]]
Question = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Recovery:
    """A fault, and how long everything took to be well again."""

    lane: str
    fault: str
    number: int
    at: str
    seconds: float | None
    """None: it was not well within the limit."""
    beside: list[str]
    """The faults that were in force, or being recovered from, in other lanes."""
    load_average: float


@dataclass
class Report:
    """What a campaign saw."""

    seed: int
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    problems: list[str] = field(default_factory=list[str])
    churned: int = 0
    changes: int = 0
    """Changes of the canary, one during each fault of the management cluster."""
    written: int = 0
    failed_requests: int = 0
    sent_requests: int = 0
    failed_api_requests: int = 0

    def by_fault(self) -> dict[str, list[float]]:
        """Recovery times in seconds."""
        times: dict[str, list[float]] = {}
        for recovery in sorted(self.recoveries, key=lambda recovery: recovery.fault):
            if recovery.seconds is not None:
                times.setdefault(recovery.fault, []).append(recovery.seconds)
        return times


@dataclass
class Journal:
    """Writes down every recovery at once: what is seen of a campaign that is ended is not lost."""

    console: Console
    report: Report
    file: TextIO | None = None
    in_force: dict[str, str] = field(default_factory=dict[str, str])

    def began(self, lane: str, fault: str) -> None:
        self.in_force[lane] = fault

    def ended(self, lane: str, number: int, seconds: float | None) -> None:
        fault = self.in_force.pop(lane)
        recovery = Recovery(
            lane=lane,
            fault=fault,
            number=number,
            at=f"{datetime.now(UTC):%H:%M:%S}",
            seconds=seconds and round(seconds, 2),
            beside=sorted(self.in_force.values()),
            load_average=round(os.getloadavg()[0], 1),
        )
        self.report.recoveries.append(recovery)
        took = "never" if seconds is None else f"{seconds:.1f} s"
        count = len(self.report.recoveries)
        self.console.print(f"{count} {recovery.at} {lane} {number} {fault}: {took}")
        if self.file is not None:
            self.file.write(json.dumps(asdict(recovery)) + "\n")
            self.file.flush()

    def problem(self, text: str) -> None:
        self.report.problems.append(text)
        self.console.print(f"[red]{text}[/]")
        if self.file is not None:
            self.file.write(json.dumps({"problem": text}) + "\n")
            self.file.flush()


@dataclass
class Lane(Generic[T]):
    """Faults one after the other, each once the last one is recovered from."""

    name: str
    subject: T
    faults: Sequence[Fault[T]]
    random: Random
    is_well: Question
    beside: Action | None = None
    """What is done while a fault is in force."""
    check: Action | None = None
    """What has to hold after each recovery."""

    async def run(self, journal: Journal) -> None:
        for number, fault in enumerate(self.faults, 1):
            journal.began(self.name, fault.name)
            began = time.monotonic()
            beside = [] if self.beside is None else [self.beside()]
            await asyncio.gather(fault.inject(self.subject, self.random), *beside)
            recovered = await _recovered(self.is_well, RECOVERY_LIMIT)
            journal.ended(self.name, number, time.monotonic() - began if recovered else None)
            if not recovered:
                journal.problem(
                    f"{self.name} {number}, {fault.name}: no recovery in {RECOVERY_LIMIT:g} s"
                )
                if not await _recovered(self.is_well, 2 * RECOVERY_LIMIT):
                    journal.problem(f"{self.name}: given up")
                    return
            if self.check is not None:
                await _until_done(self.check)
            await asyncio.sleep(_PAUSE_SECONDS)


async def _recovered(is_well: Question, limit: float) -> bool:
    """Wait until everything is well, twice in a row."""
    well = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while well < 2:
                well = well + 1 if await is_well() else 0
                await asyncio.sleep(_POLL_SECONDS)
            return True
    return False


@dataclass
class Canary:
    """A cluster that is changed during each fault of the management cluster.

    What recovered is what carries out changes again: the control plane gets an annotation from its
    topology, and the pool another number of machines, which become Nodes or go.
    """

    cluster: ClusterUnderTest
    report: Report

    async def change(self) -> None:
        """Ask for a change, however often that takes."""
        self.report.changes += 1
        annotations = {"canary.example.com/change": f"{self.report.changes}"}
        workers = 1 + self.report.changes % 2
        topology: dict[str, object] = {"controlPlane": {"metadata": {"annotations": annotations}}}
        await _until_done(lambda: self.cluster.patch_topology(topology))
        await _until_done(lambda: self.cluster.scale_workers(workers))

    async def is_well(self) -> bool:
        """Whether the change was carried out."""
        with suppress(*UNREACHABLE):
            found = await self.cluster.control_plane()
            change = found and found.metadata.annotations.get("canary.example.com/change")
            return change == f"{self.report.changes}" and await self.cluster.is_well(nodes=True)
        return False


@dataclass
class Churn:
    """A cluster that is created, scaled, upgraded, renewed and deleted, over and over."""

    cluster: ClusterUnderTest
    report: Report
    steps: int = 0
    seen: int = 0

    async def run(self) -> None:
        """Change it until cancelled, whatever is broken."""
        old, new = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
        cluster = self.cluster
        while True:
            cluster.api_servers = 1
            await self._step(lambda: cluster.create(old), lambda: cluster.is_settled(version=old))
            cluster.api_servers = 2
            replicas: dict[str, object] = {"controlPlane": {"replicas": 2}}
            await self._step(
                lambda replicas=replicas: cluster.patch_topology(replicas),
                lambda: cluster.is_settled(version=old),
            )
            await self._step(
                lambda: cluster.patch_topology({"version": new}),
                lambda: cluster.is_settled(version=new),
            )
            renewal = datetime.now(UTC).isoformat()
            await self._step(
                lambda renewal=renewal: cluster.annotate(RENEW_ANNOTATION, renewal),
                lambda: cluster.is_settled(version=new),
            )
            await self._step(cluster.delete, cluster.is_gone)
            self.report.churned += 1

    async def _step(self, action: Action, question: Question) -> None:
        await _until_done(action)
        await _until(question)
        self.steps += 1

    async def begin(self) -> None:
        """Remember the step in which a fault was injected."""
        self.seen = self.steps

    async def is_well(self) -> bool:
        """Whether that step was finished."""
        return self.steps > self.seen


async def _until_done(action: Action, *, within: float = 15) -> None:
    while True:
        try:
            async with asyncio.timeout(within):
                await action()
        except UNREACHABLE as error:
            reason = getattr(error, "reason", "")
            if reason == "BadRequest":
                # No fault of the clusters, but of the campaign.
                raise
            if reason in {"AlreadyExists", "NotFound"}:
                return
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


async def _until(question: Question) -> None:
    while True:
        with suppress(*UNREACHABLE):
            async with asyncio.timeout(15):
                if await question():
                    return
        await asyncio.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Setting:
    """Where a campaign runs, and what can be broken there."""

    folder: Path
    proxy: ApiProxy
    clock: Clock
    root: bool
    has_clock: bool

    def allows(self, fault: Fault[T]) -> bool:
        """Whether this machine lets that be broken."""
        return (self.root or not fault.needs_root) and (self.has_clock or not fault.needs_clock)


def chosen(
    faults: Sequence[Fault[T]], count: int, random: Random, setting: Setting
) -> list[Fault[T]]:
    """Which faults, in which order: each kind once, then by weight."""
    possible = [fault for fault in faults if setting.allows(fault)]
    first = random.sample(possible, len(possible))[:count]
    weights = [fault.weight for fault in possible]
    return [*first, *random.choices(possible, weights, k=count - len(first))]


def shares(count: int) -> tuple[list[int], int, int]:
    """How many faults for each loaded cluster, the management cluster and the churning one."""
    churning = count // 25
    management = count // 6
    rest = count - churning - management
    first = (rest + 1) // 2
    return [first, rest - first], management, churning


async def campaign(setting: Setting, count: int, journal: Journal) -> None:
    """Inject so many faults, and then remove everything and look at what is left."""
    report = journal.report
    async with world(setting.folder, TESTED_KUBERNETES[-1], setting.proxy, setting.clock) as made:
        loaded = [made.cluster(name, api_servers=2, etcd=3) for name in LOADED]
        canary = Canary(made.cluster(CANARY), report)
        churn = Churn(made.cluster(CHURNING), report)
        await bring_up_clusters([*loaded, canary.cluster], TESTED_KUBERNETES[-1])
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(churn.run())]
            for cluster in loaded:
                background += await cluster.put_under_load(tasks)
            for cluster in (*loaded, canary.cluster):
                background.append(tasks.create_task(cluster.watch_for_lies(LIE_SECONDS)))
            lanes = tasks.create_task(inject(setting, count, journal, loaded, canary, churn))
            # One that is ended early looks at what it did so far, and leaves nothing behind.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lanes.cancel)
            await asyncio.wait({lanes})
            for task in background:
                task.cancel()
        await _judge(setting, journal, loaded, canary.cluster)
        await _remove_clusters(journal, [*loaded, canary.cluster, churn.cluster])
    for command in mentioning(setting.folder, "environ"):
        journal.problem(f"orphan: {command}")


async def _judge(
    setting: Setting,
    journal: Journal,
    loaded: Sequence[ClusterUnderTest],
    canary: ClusterUnderTest,
) -> None:
    """Find out whether a write was lost, or a condition lied."""
    report = journal.report
    loads = [load for cluster in loaded for load in cluster.loads]
    report.written = sum(len(load.written) for load in loads)
    report.sent_requests = sum(load.sent for load in loads)
    report.failed_requests = sum(len(load.failed) for load in loads)
    report.failed_api_requests = setting.proxy.failed
    for lie in [lie for cluster in (*loaded, canary) for lie in cluster.lies]:
        journal.problem(lie)
    for cluster in loaded:
        lost: set[str] = set()

        async def look(cluster: ClusterUnderTest = cluster, lost: set[str] = lost) -> None:
            lost.update(await cluster.lost_writes())

        await _until_done(look, within=RECOVERY_LIMIT)
        for name in sorted(lost):
            journal.problem(f"{cluster.name} lost an acknowledged write: {name}")
    if report.problems:
        _keep_evidence(journal.console, canary.world)


async def inject(
    setting: Setting,
    count: int,
    journal: Journal,
    loaded: Sequence[ClusterUnderTest],
    canary: Canary,
    churn: Churn,
) -> None:
    """Run all lanes at once, each with the faults that the seed chooses for it."""
    seed = journal.report.seed
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
            lanes.create_task(lane.run(journal))
        random = Random(f"{seed}/management")  # noqa: S311
        management = Lane(
            name="management",
            subject=canary.cluster.world,
            faults=chosen(MANAGEMENT_FAULTS, of_management, random, setting),
            random=random,
            is_well=canary.is_well,
            beside=canary.change,
            check=canary.cluster.check_authorities,
        )
        lanes.create_task(management.run(journal))
        random = Random(f"{seed}/churn")  # noqa: S311
        churning = Lane(
            name="churn",
            subject=churn.cluster,
            faults=chosen(CHURN_FAULTS, of_churning, random, setting),
            random=random,
            is_well=churn.is_well,
            beside=churn.begin,
        )
        lanes.create_task(churning.run(journal))


def _keep_evidence(console: Console, made: World) -> None:
    """Copy the logs to where they outlive the environment."""
    kept = Path(tempfile.mkdtemp(prefix="capelin-faults-failed-"))
    for log in made.environment.folder.rglob("*.log*"):
        copy = kept / log.relative_to(made.environment.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(log.read_bytes())
    console.print(f"the logs are in {kept}")


async def _remove_clusters(journal: Journal, clusters: Sequence[ClusterUnderTest]) -> None:
    """Delete the clusters, and see that nothing of them is left."""
    for cluster in clusters:
        await _until_done(cluster.delete)
    try:
        async with asyncio.timeout(RECOVERY_LIMIT):
            for cluster in clusters:
                await _until(cluster.is_gone)
    except TimeoutError:
        journal.problem("the clusters cannot be deleted")
    workloads = clusters[0].world.environment.workloads
    for path in workloads.glob("*/*"):
        if path.is_dir():
            journal.problem(f"orphan: {path}")
    for command in mentioning(workloads):
        journal.problem(f"orphan: {command}")
