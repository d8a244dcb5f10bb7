"""Plans of generated changes are correct: the test makes each change, and compares the effects.

Each time a Cluster is ready, `capelin explain` must report no cause.

`CAPELIN_PLAN_SEEDS` sets the number of changes, and `CAPELIN_PLAN_FIRST_SEED` the first. A failing
seed is in the message.
"""

import asyncio
import base64
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import ExtensionConfig
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_cli.plan.command import core_certificate
from capelin_cli.plan.comparison import CONTROL_PLANE
from capelin_cli.plan.model import ClusterPlan
from capelin_cli.plan.planning import Planner
from capelin_cli.plan.sandbox import running_sandbox
from capelin_embedded.management import workload_destinations, workload_programs
from capelin_embedded.testing.management import ManagementCluster

from tests.extensions import HOST, certificates, example

from .generated_changes import generated
from .hooked_cluster import PROGRAMS
from .planned_clusters import Healthy, Planned, explanation
from .planned_scenes import Scene, all_scenes, in_place
from .pools import OLDER, VERSION

SEEDS = int(os.environ.get("CAPELIN_PLAN_SEEDS", "5"))
FIRST = int(os.environ.get("CAPELIN_PLAN_FIRST_SEED", "0"))
CHANGES_OF_A_CLUSTER = 8
LANES = 3
"""Clusters in memory that change at the same time. They need little CPU, but much time."""
EXTENSION = Path(__file__).parent / "in_place_extension.py"
pytestmark = [
    pytest.mark.timeout(900 + 90 * SEEDS),
    pytest.mark.needs_programs(*PROGRAMS, *workload_programs(OLDER), *workload_programs(VERSION)),
]


def comparable(plan: ClusterPlan, unknown: set[str]) -> dict[str, Any]:
    """The part of a plan that the change itself shows afterwards."""
    found = plan.model_dump(mode="json", exclude={"hooks", "budgets", "unknown"})
    found["objects"] = sorted(found["objects"], key=lambda each: each["role"])
    known = [each for each in found["machines"] if each["owner"] not in unknown]
    found["machines"] = sorted(known, key=lambda each: each["owner"])
    return found


@dataclass
class Trial:
    """Plans changes, makes them, and records each plan that was wrong."""

    client: Client
    planner: Planner
    healthy: Healthy
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One sandbox computes one plan at a time."""
    wrong: list[str] = field(default_factory=list[str])
    seconds: list[float] = field(default_factory=list[float])

    async def run(self, scene: Scene, seeds: Sequence[int]) -> None:
        """Plan and make the changes of these seeds, several of them with one Cluster."""
        planned = Planned(self.client, scene.name, self.healthy)
        changes = 0
        for seed in seeds:
            if not changes:
                await planned.create(scene.manifests, scene.topology)
            ended = await self._change(scene, planned, seed)
            changes = (changes + 1) % CHANGES_OF_A_CLUSTER if ended else 0
            if not changes:
                await planned.remove()
        if changes:
            await planned.remove()

    async def _change(self, scene: Scene, planned: Planned, seed: int) -> bool:
        """Plan a change and make it. Returns whether the Cluster can have another one."""
        others = [
            obj
            for key, obj in (await planned.objects()).objects.items()
            if key.kind == "ClusterClass" or key.kind.endswith("Template")
        ]
        change = generated(seed, scene, await planned.live(), others)
        title = f"seed {seed}, {scene.name} ({change.words})"
        async with self.turn:
            start = time.monotonic()
            plan = await self.planner.plan(change.manifests)
            seconds = time.monotonic() - start
        self.seconds.append(seconds)
        (predicted,) = plan.clusters
        try:
            effect, _ = await planned.change(change.manifests)
        except TimeoutError:
            cause = await explanation(self.client, scene.name)
            self._report(title, seconds, f"planned {predicted}\n   did not end: {cause}")
            return False
        # The provider of such a control plane decides about its machines.
        own = {CONTROL_PLANE} if scene.decides_itself else set[str]()
        undecided = {each.owner for each in predicted.machines if each.unknown} & own
        unknown = [
            reason
            for reason in predicted.unknown
            if not reason.startswith(tuple(f"{owner}: " for owner in undecided))
        ]
        expected, found = comparable(effect, undecided), comparable(predicted, undecided)
        problem = f"unknown {unknown}\n planned {found}\n    made {expected}"
        self._report(title, seconds, problem if unknown or expected != found else "")
        return True

    def _report(self, title: str, seconds: float, problem: str) -> None:
        verdict = "WRONG" if problem else "correct"
        took = f"{seconds:.1f} s, load {os.getloadavg()[0]:.1f}"
        print(f"{verdict}, {took}: {title} {problem}".rstrip(), flush=True)  # noqa: T201
        self.wrong += [f"{title}: {problem}"] if problem else []


@asynccontextmanager
async def updating_in_place(client: Client, folder: Path, namespace: str) -> AsyncGenerator[None]:
    """An extension that updates machines in one namespace in place."""
    ca = certificates(folder)
    async with example(EXTENSION, folder) as running:
        bundle = base64.b64encode(ca).decode()
        config = {
            "apiVersion": ExtensionConfig.resource.api_version,
            "kind": "ExtensionConfig",
            "metadata": {"name": namespace},
            "spec": {
                "clientConfig": {"url": f"https://{HOST}:{running.port}", "caBundle": bundle},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            },
        }
        await client.apply(config)

        async def is_discovered() -> bool:
            return len((await client.get(ExtensionConfig, namespace)).status.handlers) == 2

        await until(is_discovered)
        try:
            yield
        finally:
            await client.delete(ExtensionConfig, namespace)


async def test_plans_are_correct(
    management: Client, management_cluster: ManagementCluster, tmp_path: Path
) -> None:
    await management_cluster.require("kubeadm", "dev", "lifecycle")
    scenes = await all_scenes()
    certificate = core_certificate(management_cluster.environment)
    async with (
        running_sandbox(tmp_path) as sandbox,
        updating_in_place(management, tmp_path, in_place().name),
    ):
        destinations = workload_destinations(os.environ)
        planner = Planner(management, sandbox, certificate, destinations)
        healthy = Healthy(management_cluster.environment)
        trial = Trial(management, planner, healthy)
        seeds = range(FIRST, FIRST + SEEDS)
        async with asyncio.TaskGroup() as tasks:
            for index, scene in enumerate(scenes):
                chosen = [seed for seed in seeds if seed % len(scenes) == index]
                lanes = LANES if scene.decides_itself else 1
                for lane in range(lanes):
                    copied = replace(deepcopy(scene), name=f"{scene.name}{lane or ''}")
                    tasks.create_task(trial.run(copied, chosen[lane::lanes]))
    correct, explained = SEEDS - len(trial.wrong), len(healthy.states)
    false = f"{len(healthy.false)}" if healthy.false else "none"
    print(  # noqa: T201
        f"{correct} of {SEEDS} plans are correct, {max(trial.seconds):.1f} s at most;"
        f" {explained} explanations of ready clusters, {false} reported a cause"
    )
    assert not [*trial.wrong, *healthy.false], "\n".join([*trial.wrong, *healthy.false])
