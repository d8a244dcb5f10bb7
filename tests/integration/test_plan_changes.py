"""Plans of generated changes are correct: the test makes each change, and compares the effects.

`CAPELIN_PLAN_SEEDS` sets the number of changes. A failing seed is in the message.
"""

import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.client import Client, Config
from capelin.embedded.management import required_programs, workload_programs
from capelin_infra.plan.model import ClusterPlan
from capelin_infra.plan.planning import Planner
from capelin_infra.plan.sandbox import running_sandbox

from .generated_changes import generated
from .homes import management_environment
from .planned_clusters import DEPLOYMENT, Planned, worker_group
from .pools import OLDER, POOL, VERSION

PROVIDERS = ("kubeadm-bootstrap",)
SEEDS = int(os.environ.get("CAPELIN_PLAN_SEEDS", "5"))
FIRST = int(os.environ.get("CAPELIN_PLAN_FIRST_SEED", "0"))
CHANGES_OF_A_CLUSTER = 10
pytestmark = [
    pytest.mark.timeout(300 + 90 * SEEDS),
    pytest.mark.needs_programs(*required_programs(VERSION, PROVIDERS), *workload_programs(OLDER)),
]


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Client]:
    folder = tmp_path_factory.mktemp("changes")
    async with (
        management_environment(folder, VERSION, PROVIDERS) as environment,
        Client(Config.from_kubeconfig(environment.kubeconfig)) as client,
    ):
        yield client


def comparable(plan: ClusterPlan) -> dict[str, Any]:
    """The part of a plan that the change itself shows afterwards."""
    found = plan.model_dump(mode="json", exclude={"hooks", "budgets", "unknown"})
    found["objects"] = sorted(found["objects"], key=lambda each: each["role"])
    found["machines"] = sorted(found["machines"], key=lambda each: each["owner"])
    return found


async def test_plans_are_correct(client: Client, tmp_path: Path) -> None:
    wrong: list[str] = []
    seconds: list[float] = []
    planned: Planned | None = None
    async with running_sandbox(tmp_path) as sandbox:
        for number in range(SEEDS):
            seed = FIRST + number
            if planned is None or number % CHANGES_OF_A_CLUSTER == 0:
                if planned is not None:
                    await planned.remove()
                planned = Planned(client, f"changes-{seed}")
                await planned.create(
                    OLDER,
                    deployments=[worker_group(DEPLOYMENT, 2), worker_group("other", 1)],
                    pools=[worker_group(POOL, 2)],
                )
            objects = (await planned.objects()).objects
            others = {
                key.kind: obj
                for key, obj in objects.items()
                if key.kind == "ClusterClass" or key.name == "capelin"
            }
            change = generated(seed, await planned.live(), others)
            start = time.monotonic()
            plan = await Planner(client, sandbox).plan(change.manifests)
            seconds.append(time.monotonic() - start)
            effect, _ = await planned.change(change.manifests)
            (predicted,) = plan.clusters
            if predicted.unknown or comparable(predicted) != comparable(effect):
                wrong.append(
                    f"seed {seed} ({change.words}): unknown {predicted.unknown}\n"
                    f" planned {comparable(predicted)}\n    made {comparable(effect)}"
                )
            print(f"seed {seed}: {seconds[-1]:.1f} s, {change.words}")  # noqa: T201
    print(f"{SEEDS - len(wrong)} of {SEEDS} plans are correct, {max(seconds):.1f} s at most")  # noqa: T201
    assert not wrong, "\n".join(wrong)
