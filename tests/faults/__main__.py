"""A seeded campaign of faults under load: `python -m tests.faults [--faults N] [--seed N]`.

One cluster with three etcd members and two API servers is written to all the time, another one is
made, changed, renewed and deleted again and again, while one fault after the other is injected.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from capelin.api.capi import Cluster
from capelin.client import ClientError
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.testing.load import Load
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired import RENEW_ANNOTATION
from rich.console import Console
from rich.table import Table

from tests.faults.catalog import FAULTS, Fault
from tests.faults.world import (
    NAMESPACE,
    RECOVERY_LIMIT,
    STEADY,
    World,
    world,
)
from tests.leftovers import mentioning

LIE_SECONDS = 15.0
DISK = "3g"
CHURN = "churn"

Action = Callable[[], Awaitable[object]]
Question = Callable[[], Awaitable[bool]]


@dataclass
class Report:
    """What a campaign saw."""

    seed: int
    recovered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    problems: list[str] = field(default_factory=list[str])
    churned: int = 0
    written: int = 0
    failed_requests: int = 0

    @property
    def faults(self) -> int:
        return sum(map(len, self.recovered.values()))


async def campaign(console: Console, folder: Path, faults: Sequence[Fault], report: Report) -> None:
    """Inject faults one after the other until there were enough."""
    random = Random(report.seed)  # noqa: S311 - the same seed is the same campaign
    async with world(folder, TESTED_KUBERNETES[-1]) as made:
        config = await made.kubeconfig()
        loads = [Load(config, pause=0.04, keeps=keeps) for keeps in (False, True)]
        async with asyncio.TaskGroup() as tasks:
            background = [
                *(tasks.create_task(load.run()) for load in loads),
                tasks.create_task(made.watch_for_lies(config, LIE_SECONDS)),
                tasks.create_task(churn(made, report)),
            ]
            try:
                survived = await inject_all(console, made, faults, random, report)
            finally:
                for task in background:
                    task.cancel()
        report.written = sum(len(load.written) for load in loads)
        report.failed_requests = sum(len(load.failed) for load in loads)
        report.problems += made.lies
        if not survived:
            _keep_evidence(console, made)
            return
        lost = await made.lost_writes(await made.kubeconfig(), loads)
        report.problems += [f"lost an acknowledged write: {name}" for name in sorted(lost)]
        await _remove_clusters(made, report)
    report.problems += [f"orphan: {command}" for command in mentioning(folder, "environ")]


async def inject_all(
    console: Console, made: World, faults: Sequence[Fault], random: Random, report: Report
) -> bool:
    """One fault after the other, each once the last one is recovered from; False if one is not."""
    for number, fault in enumerate(faults, 1):
        console.print(f"{number}/{len(faults)} {fault.name}", end="")
        began = time.monotonic()
        await fault.inject(made, random)
        if not await _recovered(made, fault):
            problem = f"fault {number}, {fault.name}: no recovery within {RECOVERY_LIMIT:g} s"
            report.problems.append(problem)
            return False
        took = time.monotonic() - began
        report.recovered[fault.name].append(took)
        console.print(f": {took:.1f} s")
        await made.check_authorities()
    return True


def _keep_evidence(console: Console, made: World) -> None:
    """Copy the logs to where they outlive the environment."""
    kept = Path(tempfile.mkdtemp(prefix="capelin-faults-failed-"))
    for log in made.environment.folder.rglob("*.log*"):
        copy = kept / log.relative_to(made.environment.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(log.read_bytes())
    console.print(f"the logs are in {kept}")


async def _recovered(made: World, fault: Fault) -> bool:
    """Wait until everything is well again, twice in a row."""
    well = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(RECOVERY_LIMIT):
            while well < 2:
                config = None
                with suppress(ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(5):
                        config = await made.kubeconfig()
                is_well = config is not None and await made.has_recovered(config, nodes=fault.nodes)
                well = well + 1 if is_well else 0
                await asyncio.sleep(0.2)
            return True
    return False


async def churn(made: World, report: Report) -> None:
    """Create, scale, upgrade, renew and delete a cluster, over and over, whatever is broken."""
    old, new = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
    while True:
        await _until_done(lambda: made.create(CHURN, api_servers=1, etcd=1, version=old))
        await _until(lambda: made.is_settled(CHURN, api_servers=1, version=old))
        await _until_done(lambda: _patch_topology(made, {"controlPlane": {"replicas": 2}}))
        await _until(lambda: made.is_settled(CHURN, api_servers=2, version=old))
        await _until_done(lambda: _patch_topology(made, {"version": new}))
        await _until(lambda: made.is_settled(CHURN, api_servers=2, version=new))
        await _until_done(lambda: _renew(made))
        await _until(lambda: made.is_settled(CHURN, api_servers=2, version=new))
        await _until_done(lambda: made.client.delete(Cluster, CHURN, NAMESPACE))
        await _until(lambda: _is_gone(made, CHURN))
        report.churned += 1


async def _renew(made: World) -> None:
    found = await made.control_plane(CHURN)
    assert found is not None
    annotations = {RENEW_ANNOTATION: datetime.now(UTC).isoformat()}
    patch = {"metadata": {"annotations": annotations}}
    await made.client.patch(CapelinControlPlane, found.name, NAMESPACE, patch)


async def _patch_topology(made: World, topology: dict[str, object]) -> None:
    await made.client.patch(Cluster, CHURN, NAMESPACE, {"spec": {"topology": topology}})


async def _is_gone(made: World, name: str) -> bool:
    return await made.client.find(Cluster, name, NAMESPACE) is None


async def _until_done(action: Action) -> None:
    while True:
        try:
            async with asyncio.timeout(15):
                await action()
        except (ClientError, OSError, TimeoutError) as error:
            if getattr(error, "reason", "") in {"AlreadyExists", "NotFound"}:
                return
            await asyncio.sleep(0.5)
        else:
            return


async def _until(question: Question) -> None:
    while True:
        with suppress(ClientError, OSError, TimeoutError):
            async with asyncio.timeout(15):
                if await question():
                    return
        await asyncio.sleep(0.5)


async def _remove_clusters(made: World, report: Report) -> None:
    """Delete the clusters, and see that nothing of them is left."""
    for name in (STEADY, CHURN):
        await _until_done(lambda name=name: made.client.delete(Cluster, name, NAMESPACE))
    try:
        async with asyncio.timeout(RECOVERY_LIMIT):
            for name in (STEADY, CHURN):
                await _until(lambda name=name: _is_gone(made, name))
    except TimeoutError:
        report.problems.append("the clusters cannot be deleted")
    workloads = made.environment.workloads
    report.problems += [f"orphan: {path}" for path in workloads.glob("*/*") if path.is_dir()]
    report.problems += [f"orphan: {command}" for command in mentioning(workloads)]


def chosen(count: int, seed: int, *, root: bool) -> list[Fault]:
    """Which faults, in which order: each kind once, then by weight."""
    random = Random(seed)  # noqa: S311 - the same seed is the same campaign
    possible = [fault for fault in FAULTS if root or not fault.needs_root]
    first = random.sample(possible, len(possible))[:count]
    weights = [fault.weight for fault in possible]
    return [*first, *random.choices(possible, weights, k=count - len(first))]


def table(report: Report) -> Table:
    """Recovery times per kind of fault."""
    made = Table("fault", "times", "median s", "longest s", title="recovery")
    for name, times in sorted(report.recovered.items()):
        median, longest = statistics.median(times), max(times)
        made.add_row(name, f"{len(times)}", f"{median:.1f}", f"{longest:.1f}")
    return made


@contextmanager
def small_disk(*, root: bool) -> Generator[Path]:
    """A folder on a file system of its own, so that it can be filled."""
    with tempfile.TemporaryDirectory(prefix="capelin-faults-") as name:
        if not root:
            yield Path(name)
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", name]
        subprocess.run(mount, check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def main() -> int:
    """Run a campaign, print what it saw, and fail if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="how many (40)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same faults (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 100)
    root = os.geteuid() == 0
    if not root:
        console.print("without root no disk is filled: that needs a file system of its own")
    report = Report(options.seed)
    with small_disk(root=root) as folder:
        faults = chosen(options.faults, options.seed, root=root)
        asyncio.run(campaign(console, folder, faults, report))
    console.print(table(report))
    console.print(
        f"{report.faults} faults; {report.written} writes acknowledged, {report.failed_requests} "
        f"requests failed while something was broken; {report.churned} clusters made and deleted"
    )
    for problem in report.problems:
        console.print(f"[red]{problem}[/]")
    if options.json is not None:
        options.json.write_text(json.dumps(vars(report), indent=2) + "\n")
    return 1 if report.problems or report.faults < options.faults else 0


if __name__ == "__main__":
    sys.exit(main())
