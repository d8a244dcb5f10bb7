"""A Cluster is moved there and back while a Job of a policy runs and an approval is pending."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import Client, WorkloadClients
from capelin.contract import is_condition_true
from capelin.testing.waiting import until
from capelin_cli.clusters.topology import upgrade_patch
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.management import Environment, workload_programs
from capelin_embedded.processes import kill_all
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult

from .lifecycle_stories import AFTER, BEFORE, PATIENCE, Stories, user_name
from .test_move import NAME, Run, client_of, environment, move

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs("clusterctl", *workload_programs(BEFORE), *workload_programs(AFTER)),
]

_WITHIN = 120.0
KEY = "approval.runtime.capelin.cluster.x-k8s.io/freeze"
POD = {"restartPolicy": "Never", "containers": [{"name": "tests", "image": "tests"}]}
SUSPENDED_JOB = {"job": {"template": {"suspend": True, "template": {"spec": POD}}}}


@dataclass
class Side:
    """A management cluster."""

    environment: Environment
    client: Client
    stories: Stories

    async def results(self) -> dict[str, LifecycleResult]:
        found = (await self.client.list(LifecycleResult, NAME)).items
        return {result.spec.policy.name: result for result in found}

    async def states(self) -> dict[str, tuple[str, str]]:
        """The phases and messages of the results by policy."""
        results = await self.results()
        return {
            name: (result.status.phase, result.status.message) if result.status else ("", "")
            for name, result in results.items()
        }

    async def have_phases(self, **phases: str) -> None:
        """Wait until the results of these policies have these phases."""

        def are_reached(states: Any) -> bool:
            return {name: phase for name, (phase, _) in states.items()} == phases

        await until(self.states, are_reached, within=_WITHIN)

    @asynccontextmanager
    async def workload(self) -> AsyncGenerator[Client]:
        """A client of the workload cluster, by its kubeconfig in this management cluster."""
        workloads = WorkloadClients(self.client)
        try:
            async with workloads.client("demo", NAME) as client:
                yield client
        finally:
            await workloads.close()

    async def jobs(self) -> list[str]:
        """The uids of the Jobs in the workload cluster."""
        async with self.workload() as workload:
            found = (await workload.list(JOBS, "default")).items
        return [job["metadata"]["uid"] for job in found]

    async def version(self) -> str | None:
        """The version of the control plane."""
        (control_plane,) = (await self.client.list(CapelinControlPlane, NAME)).items
        return control_plane.spec.version

    async def is_available(self) -> bool:
        cluster = await self.stories.cluster("demo")
        return is_condition_true(cluster.status.conditions, "Available")


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncGenerator[tuple[Side, Side]]:
    shared = tmp_path / "shared"
    try:
        async with (
            environment(tmp_path / "here", shared, "lifecycle") as here,
            environment(tmp_path / "there", shared, "lifecycle") as there,
            client_of(here) as source,
            client_of(there) as target,
        ):
            yield (
                Side(here, source, Stories(source, NAME)),
                Side(there, target, Stories(target, NAME)),
            )
    finally:
        await kill_all(shared)


async def test_a_move_neither_loses_nor_repeats_work_of_policies(
    sides: tuple[Side, Side], run_program: Run
) -> None:
    here, there = sides
    stories = here.stories
    await here.client.apply(Namespace.of(NAME))
    await stories.create_class()
    user = await user_name(here.client)
    await stories.apply("tests", "AfterControlPlaneInitialized", SUSPENDED_JOB)
    await stories.apply("freeze", "BeforeClusterUpgrade", {"approval": {"approvers": [user]}})
    await stories.are_called("AfterControlPlaneInitialized", "BeforeClusterUpgrade")
    await stories.create("demo")
    await until(here.is_available, within=PATIENCE)
    await here.client.patch(Cluster, "demo", NAME, upgrade_patch(AFTER), type="json")
    code = await stories.approval_code("freeze", "demo")
    await here.have_phases(tests="Running", freeze="Waiting")
    ids = {name: result.id for name, result in (await here.results()).items()}

    created = await here.jobs()
    assert len(created) == 1
    for one, other in ((here, there), (there, here)):
        await move(run_program, one.environment, other.environment)
        await other.have_phases(tests="Running", freeze="Waiting")
        assert {name: result.id for name, result in (await other.results()).items()} == ids
        assert await one.results() == {}
        assert (await one.client.list(LifecyclePolicy, NAME)).items == []
        assert await other.stories.approval_code("freeze", "demo") == code
        assert await other.jobs() == created
        assert await other.version() == BEFORE

    async with here.workload() as workload:
        (job,) = (await workload.list(JOBS, "default")).items
        await workload.patch(JOBS, job["metadata"]["name"], "default", {"spec": {"suspend": False}})
    approval = {"metadata": {"annotations": {KEY: f"{code}:{user}"}}}
    await here.client.patch(Cluster, "demo", NAME, approval)
    await here.have_phases(tests="Done", freeze="Done")
    assert await here.jobs() == created
    await stories.delete("demo")
