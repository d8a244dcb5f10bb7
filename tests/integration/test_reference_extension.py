"""A cluster's whole life with blocking lifecycle hooks: Cluster API's own test of them.

Ours stands in for Cluster API's reference extension.
"""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachineSet
from capelin.api.core import Namespace
from capelin.client import Client, Invalid
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster

from tests.integration.hooked_cluster import (
    PATIENCE,
    PROGRAMS,
    START,
    Life,
    create,
    recorded,
    registered,
)
from tests.integration.recorder import Exchange

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs(*PROGRAMS)]

STEPS = ("v1.34.8", "v1.35.5", "v1.36.1")
"""The newest version of each minor in the plans of the extensions."""
TARGET = STEPS[-1]
WORKERS_STEPS = (TARGET,)
"""Workers may lag by three minors, and upgrade as rarely as possible."""
ANNOTATION = "before-upgrade.hook.cluster.cluster.x-k8s.io/test"


@pytest.fixture
async def life(
    management: Client, management_cluster: ManagementCluster, tmp_path: Path
) -> AsyncGenerator[Life]:
    """A cluster and the extension that blocks it."""
    async with recorded(management, "life", management_cluster, tmp_path) as made:
        yield made


async def upgrade(life: Life) -> None:
    """Upgrade step by step with the hooks of each step, and workers only if necessary."""
    note: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION: ""}}}
    await life.client.patch(Cluster, life.name, life.name, note)
    version = {"spec": {"topology": {"version": TARGET}}}
    await life.client.patch(Cluster, life.name, life.name, version)

    async def annotated() -> bool:
        return f"annotation {ANNOTATION} is set" in await life.blocking_message()

    await until(annotated, within=PATIENCE)
    assert life.calls("BeforeClusterUpgrade") == 0
    note["metadata"]["annotations"][ANNOTATION] = None
    await life.client.patch(Cluster, life.name, life.name, note)

    before, workers = START, START
    still = life.on(START, START)
    await life.assert_blocks_and_release("BeforeClusterUpgrade", START, TARGET, still=still)
    for step in STEPS:
        still = life.on(before, workers)
        await life.assert_blocks_and_release("BeforeControlPlaneUpgrade", before, step, still=still)
        await until(life.reached(step, workers), within=PATIENCE)
        still = life.on(step, workers)
        if step == STEPS[0]:
            await life.assert_blocks("AfterControlPlaneUpgrade", step, still=still)
            await no_old_machine_is_added(life)
        await life.assert_blocks_and_release("AfterControlPlaneUpgrade", step, still=still)
        if step in WORKERS_STEPS:
            await life.assert_blocks_and_release("BeforeWorkersUpgrade", workers, step, still=still)
            await until(life.reached(step, step), within=PATIENCE)
            still = life.on(step, step)
            await life.assert_blocks_and_release("AfterWorkersUpgrade", step, still=still)
            workers = step
        before = step

    async def no_further() -> bool:
        beyond = {"spec": {"topology": {"version": "v1.37.0"}}}
        try:
            await life.client.patch(Cluster, life.name, life.name, beyond, dry_run=True)
        except Invalid as refused:
            return '"AfterClusterUpgrade" hook is still blocking' in str(refused)
        return False

    await until(no_further, within=PATIENCE)
    await life.assert_blocks_and_release("AfterClusterUpgrade", TARGET, still=no_further)


async def no_old_machine_is_added(life: Life) -> None:
    """Preflight checks reject new machines of workers that lag behind the control plane."""
    (workers,) = (await life.client.list(MachineDeployment, life.name)).items
    await life.client.scale(MachineDeployment, workers.name, life.name, 2)

    async def refused() -> bool:
        sets = (await life.client.list(MachineSet, life.name)).items
        conditions = [one for each in sets for one in each.status.conditions]
        return any(
            one.type == "ScalingUp" and '"KubeadmVersionSkew" preflight check failed' in one.message
            for one in conditions
        )

    await until(refused, within=PATIENCE)
    assert len((await life.client.list(Machine, life.name)).items) == 2
    await life.client.scale(MachineDeployment, workers.name, life.name, 1)


async def test_a_cluster_lives_with_every_hook_blocking(life: Life) -> None:
    await life.client.apply(Namespace.of(life.name))
    async with registered(life):
        await create(life)

        async def nothing_is_there() -> bool:
            spec = (await life.cluster()).spec
            return spec.infrastructure_ref is None and spec.control_plane_ref is None

        await life.assert_blocks_and_release("BeforeClusterCreate", still=nothing_is_there)
        await until(life.reached(START, START), within=PATIENCE)
        path = f"/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/{life.name}"
        made = await life.client.request("GET", f"{path}/kubeadmcontrolplanes")
        config = made["items"][0]["spec"]["kubeadmConfigSpec"]["clusterConfiguration"]
        assert config["scheduler"]["extraArgs"] == [{"name": "v", "value": "2"}]
        await upgrade(life)
        await until(life.reached(TARGET, TARGET), within=PATIENCE)

        async def available() -> bool:
            conditions = (await life.cluster()).status.conditions
            return any(each.type == "Available" and each.status == "True" for each in conditions)

        await until(available, within=PATIENCE)
        await life.client.delete(Cluster, life.name, life.name)

        async def is_there() -> bool:
            cluster = await life.cluster()
            done = "runtime.cluster.x-k8s.io/ok-to-delete" in cluster.metadata.annotations
            return not done and (await life.client.list(Machine, life.name)).items != []

        await life.assert_blocks("BeforeClusterDelete", still=is_there, is_reported=False)
        await life.release("BeforeClusterDelete")

        async def gone() -> bool:
            return await life.client.find(Cluster, life.name, life.name) is None

        await until(gone, within=PATIENCE)
        statuses = await life.statuses()
    await life.client.delete(Namespace, life.name)

    assert statuses.pop("AfterControlPlaneInitialized") == "Success"
    assert statuses == dict.fromkeys(life.released, "Status: Success, RetryAfterSeconds: 0")
    exchanges = life.recorder.exchanges
    assert in_order(exchanges) == ["AfterControlPlaneInitialized", *life.released[1:]]
    assert {exchange.hook.id.name for exchange in exchanges} >= NAMES
    assert [exchange for exchange in exchanges if not exchange.is_kept()] == []


NAMES = {hook.id.name for hook in CLUSTER_API if hook.tag == "Lifecycle Hooks"} | {
    "DiscoverVariables",
    "Discovery",
    "GeneratePatches",
    "GenerateUpgradePlan",
    "ValidateTopology",
}


def in_order(exchanges: list[Exchange]) -> list[str]:
    """The lifecycle hooks except the first, in the order of their first call, with versions."""
    found: dict[str, None] = {}
    for exchange in exchanges:
        if exchange.hook.tag == "Lifecycle Hooks":
            request = json.loads(exchange.request)
            fields = ("fromKubernetesVersion", "toKubernetesVersion", "kubernetesVersion")
            versions = (request[name] for name in fields if name in request)
            found["-".join((exchange.hook.id.name, *versions))] = None
    return [name for name in found if name != "BeforeClusterCreate"]
