"""`capelin plan --guard`: the lifecycle extension holds a change with another effect."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from capelin.api.capi import Cluster, MachinePool
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_cli.clusters.topology import ScaleOptions, scale_patch
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.management import required_programs, workload_programs
from capelin_embedded.testing.management import ManagementCluster
from capelin_lifecycle.actions.approved_plan import PLAN_ANNOTATION

from .lifecycle_stories import BEFORE, PATIENCE, Stories, stories_in

SPACE, NAME, POLICY = "guarded", "shop", "planned"
EXTERNAL = {
    "generatePatchesExtension": "generate-patches-v1.lifecycle",
    "validateTopologyExtension": "validate-topology-v1.lifecycle",
    "settings": {"policy": f"{SPACE}/{POLICY}"},
}
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs(
        *required_programs(BEFORE, ("lifecycle",)), *workload_programs(BEFORE)
    ),
]


@pytest.fixture
async def stories(management_cluster: ManagementCluster) -> AsyncGenerator[Stories]:
    await management_cluster.require("lifecycle")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client,
        stories_in(client, SPACE) as stories,
    ):
        yield stories


async def scale(stories: Stories, replicas: int) -> None:
    cluster = await stories.cluster(NAME)
    patch = scale_patch(cluster, ScaleOptions(replicas, None, None))
    await stories.client.patch(Cluster, NAME, SPACE, patch, type="json")


async def size(stories: Stories) -> int | None:
    (pool,) = (await stories.client.list(MachinePool, SPACE)).items
    return pool.spec.replicas


async def plan(kubeconfig: Path, folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Type `capelin plan cluster`. Returns its exit code and the errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "capelin_cli", "plan", "cluster", NAME, "--namespace", SPACE),
        *("--kubeconfig", str(kubeconfig), *arguments),
        env={"XDG_STATE_HOME": str(folder), "HOME": str(Path.home()), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    return process.returncode, " ".join(errors.decode().split())


async def test_the_extension_holds_a_change_with_another_effect(
    management_cluster: ManagementCluster, stories: Stories, tmp_path: Path
) -> None:
    kubeconfig = management_cluster.kubeconfig
    await stories.create_class()
    await stories.create(NAME)
    await wait_until_ready(stories.client, NAME, SPACE, PATIENCE, lambda _: None)

    # Nothing would hold another change yet.
    code, errors = await plan(kubeconfig, tmp_path, "--workers", "2", "--guard")
    assert code == 2
    assert f"The plan of Cluster {NAME} is not approved." in errors
    await stories.apply(POLICY, "ValidateTopology", {"approvedPlan": {}})
    await stories.create_class({"name": "planned", "external": EXTERNAL})
    await wait_until_ready(stories.client, NAME, SPACE, PATIENCE, lambda _: None)
    code, errors = await plan(kubeconfig, tmp_path, "--workers", "2", "--guard")
    approved = (
        f"Approved: the lifecycle extension holds changes of Cluster {NAME} with another effect."
    )
    assert errors == approved
    assert code == 0
    assert PLAN_ANNOTATION in (await stories.cluster(NAME)).metadata.annotations

    await scale(stories, 3)
    held = "the approved plan does not contain"
    await stories.wait_for_message(NAME, held)
    assert "MachinePool" in await stories.messages(NAME)
    assert await size(stories) == 1
    await scale(stories, 2)
    await until(lambda: size(stories), lambda replicas: replicas == 2, within=PATIENCE)
    await until(lambda: stories.messages(NAME), lambda text: held not in text, within=PATIENCE)

    # Another plan takes its place.
    code, _ = await plan(kubeconfig, tmp_path, "--workers", "3", "--guard")
    assert code == 0
    await scale(stories, 3)
    await until(lambda: size(stories), lambda replicas: replicas == 3, within=PATIENCE)
