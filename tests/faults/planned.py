"""Sequential planned changes of every kind, of clusters under continuous load.

Clients use HTTP/1.1 and HTTP/2 with new and kept connections. No request may fail: the server
answers it or reports that it did not process it, and the client repeats it.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from capelin.testing.waiting import until
from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION
from capelin_embedded.addresses import free_port
from capelin_embedded.binaries import TESTED_KUBERNETES
from rich.console import Console
from rich.table import Table

from tests.faults.http2 import Http2Load
from tests.faults.interposer import ApiProxy, Clock
from tests.faults.world import ClusterUnderTest, world
from tests.load import Load

OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
_CHANGE_SECONDS = 240.0
_PAUSE_SECONDS = 0.02
_REQUESTS_AFTERWARDS = 50


@dataclass(frozen=True)
class Change:
    """A kind of planned change."""

    name: str
    make: Callable[[ClusterUnderTest, int], Awaitable[None]]
    certificates: bool = False
    """Whether the change issues new certificates, and is done when they exist."""
    version: str = OLD
    """The version after the change."""


def _arguments(field_: str, values: Mapping[str, str]) -> Change:
    async def make(cluster: ClusterUnderTest, number: int) -> None:
        arguments = {flag: value.format(number) for flag, value in values.items()}
        await cluster.patch_control_plane({field_: {"extraArgs": arguments}})

    return Change(f"arguments of {field_}", make)


def _replicas(name: str, count: int) -> Change:
    async def make(cluster: ClusterUnderTest, number: int) -> None:  # noqa: ARG001
        cluster.api_servers = count
        await cluster.patch_topology({"controlPlane": {"replicas": count}})

    return Change(name, make)


async def _renew(cluster: ClusterUnderTest, number: int) -> None:  # noqa: ARG001 - one shape
    await cluster.annotate(RENEW_ANNOTATION, datetime.now(UTC).isoformat())


async def _name(cluster: ClusterUnderTest, number: int) -> None:
    await cluster.patch_control_plane({"apiServer": {"certSANs": [f"api-{number}.example.com"]}})


async def _roll(cluster: ClusterUnderTest, number: int) -> None:  # noqa: ARG001
    moment = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    await cluster.patch_control_plane({"rollout": {"after": moment}})


async def _limit(cluster: ClusterUnderTest, number: int) -> None:
    await cluster.patch_control_plane(
        {"apiServer": {"resources": {"memory": f"{2000 + number}Mi"}}}
    )


async def _upgrade(cluster: ClusterUnderTest, number: int) -> None:  # noqa: ARG001
    await cluster.patch_topology({"version": NEW})


CHANGES = (
    _replicas("an API server more", 3),
    _replicas("an API server fewer", 1),
    Change("certificates renewed", _renew, certificates=True),
    Change("names of the certificate", _name, certificates=True),
    Change("everything rolled", _roll),
    Change("memory of API servers", _limit),
    _arguments("apiServer", {"request-timeout": "{}s"}),
    _arguments("controllerManager", {"kube-api-burst": "{}"}),
    _arguments("scheduler", {"kube-api-burst": "{}"}),
    _arguments("etcd", {"snapshot-count": "{}"}),
    Change("next minor version", _upgrade, version=NEW),
)


@dataclass
class PlannedReport:
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    postponed: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[str] = field(default_factory=list[str])
    is_stuck: bool = False
    """Whether a change was never done, which makes further changes meaningless."""

    @property
    def changes(self) -> int:
        return sum(map(len, self.seconds.values()))

    def table(self) -> Table:
        """Durations by kind of change."""
        made = Table("change", "times", "median s", "longest s", title="planned changes")
        for name, times in sorted(self.seconds.items()):
            figures = (statistics.median(times), max(times))
            made.add_row(name, f"{len(times)}", *(f"{figure:.1f}" for figure in figures))
        return made


async def planned_changes(folder: Path, count: int, seed: int, console: Console) -> PlannedReport:
    """Make this many changes, with a new cluster after each round of all kinds."""
    report, random = PlannedReport(), Random(seed)  # noqa: S311 - seeds shall be repeatable
    proxy = ApiProxy(free_port("127.0.0.1"), folder)
    async with world(folder, NEW, proxy, Clock(folder / "clock")) as made:
        while report.changes < count and not report.is_stuck:
            number = report.changes
            cluster = made.cluster(f"planned-{number}", api_servers=2, etcd=3)
            cluster.workers = 0
            await cluster.create(OLD)
            await until(lambda cluster=cluster: cluster.is_well(nodes=False), within=300)
            changes = random.sample(CHANGES, len(CHANGES))[: count - number]
            await _change(cluster, changes, report, console)
            await cluster.delete()
            await until(cluster.is_gone, within=_CHANGE_SECONDS)
    return report


async def _change(
    cluster: ClusterUnderTest, changes: list[Change], report: PlannedReport, console: Console
) -> None:
    config = await cluster.kubeconfig()
    loads: dict[str, Load] = {
        f"{protocol}, {'kept' if keeps else 'new'}": load(config, _PAUSE_SECONDS, keeps, prefix)
        for protocol, prefix, load in (("HTTP/1.1", "one", Load), ("HTTP/2", "two", Http2Load))
        for keeps in (False, True)
    }
    version = OLD
    reported = dict.fromkeys(loads, 0)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(load.run()) for load in loads.values()]
        for change in changes:
            version = max(version, change.version)
            began = time.monotonic()
            before = _certificates(cluster)
            await change.make(cluster, 1000 + report.changes)

            async def is_done(
                change: Change = change, before: str = before, version: str = version
            ) -> bool:
                if change.certificates and _certificates(cluster) == before:
                    return False
                return await cluster.is_settled(version=version) and await cluster.is_well(
                    nodes=False
                )

            try:
                await until(is_done, within=_CHANGE_SECONDS)
            except TimeoutError:
                report.problems.append(f"{change.name}: not done in {_CHANGE_SECONDS:g} s")
                report.is_stuck = True
                break
            seconds = time.monotonic() - began
            for load in loads.values():
                await load.reaches(load.sent + _REQUESTS_AFTERWARDS)
            report.seconds.setdefault(change.name, []).append(seconds)
            console.print(f"{report.changes} {cluster.name} {change.name}: {seconds:.1f} s")
            for name, load in loads.items():
                new, reported[name] = load.failed[reported[name] :], len(load.failed)
                report.problems += [f"{change.name}: {name}: {failure}" for failure in new]
        for task in running:
            task.cancel()
    for name, load in loads.items():
        report.sent[name] = report.sent.get(name, 0) + load.sent
        report.postponed[name] = report.postponed.get(name, 0) + load.postponed
    cluster.loads = list(loads.values())
    report.problems += [f"lost: {name}" for name in sorted(await cluster.lost_writes())]


def _certificates(cluster: ClusterUnderTest) -> str:
    folder = cluster.state_dir
    assert folder is not None
    digest = hashlib.sha256()
    for path in sorted((folder / "pki").glob("*.pem")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
