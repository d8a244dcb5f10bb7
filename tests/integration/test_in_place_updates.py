"""In-place updates of machines: Cluster API's own test of their hooks."""

from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, KubeadmConfig, Machine, MachineSet
from capelin.api.core import Namespace
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster

from tests.integration.hooked_cluster import PATIENCE, PROGRAMS, Life, create, recorded, registered

pytestmark = [pytest.mark.timeout(1800), pytest.mark.needs_programs(*PROGRAMS)]

REPLICAS = {"CONTROL_PLANE_MACHINE_COUNT": "3", "WORKER_MACHINE_COUNT": "1"}
STRATEGY = {
    # With a surge, an additional machine would replace the in-place update.
    "KUBEADM_CONTROL_PLANE_MAX_SURGE": "0",
    "MD_MAX_SURGE": "1",
    "MD_MAX_UNAVAILABLE": "1",
}
FILE = {"path": "/tmp/motto", "content": "swim"}  # noqa: S108 - on machines that there are not
HOOKS = {"CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"}


async def all_are_available(life: Life) -> bool:
    """Whether all four Machines and the replica of the worker's MachineSet are Available.

    The phase Running is not enough: a control plane's machine runs before its components are
    healthy, and Cluster API replaces an unhealthy machine instead of an in-place update.
    """
    statuses = [
        condition.status
        for machine in (await life.client.list(Machine, life.name)).items
        for condition in machine.status.conditions
        if condition.type == "Available"
    ]
    sets = (await life.client.list(MachineSet, life.name)).items
    return statuses == ["True"] * 4 and [s.status.available_replicas for s in sets] == [1]


async def machines(life: Life) -> set[str]:
    return {each.metadata.uid for each in (await life.client.list(Machine, life.name)).items}


async def with_the_file(life: Life) -> None:
    """Add a file to every machine by a variable of the class."""
    topology = (await life.cluster()).spec.topology
    assert topology
    variables = [variable.dump() for variable in topology.variables]
    variables.append({"name": "files", "value": [FILE]})
    changed = {"spec": {"topology": {"variables": variables}}}
    await life.client.patch(Cluster, life.name, life.name, changed)


async def all_have_the_file(life: Life) -> bool:
    path = f"/apis/{KubeadmConfig.resource.api_version}/namespaces/{life.name}/kubeadmconfigs"
    configs: list[dict[str, Any]] = (await life.client.request("GET", path))["items"]
    contents = [[file["content"] for file in config["spec"].get("files", ())] for config in configs]
    return contents == [[FILE["content"]]] * 4


async def all_are_up_to_date(life: Life) -> bool:
    conditions = [
        condition.status
        for each in (await life.client.list(Machine, life.name)).items
        for condition in each.status.conditions
        if condition.type == "UpToDate"
    ]
    return conditions == ["True"] * 4


async def test_an_extension_updates_machines_in_place(
    management: Client, management_cluster: ManagementCluster, tmp_path: Path
) -> None:
    async with recorded(management, "place", management_cluster, tmp_path) as life:
        await life.client.apply(Namespace.of(life.name))
        async with registered(life, blocking=False, in_place=True):
            await create(life, **REPLICAS, **STRATEGY)
            await until(lambda: all_are_available(life), within=PATIENCE)
            before = await machines(life)
            await with_the_file(life)
            await until(lambda: all_have_the_file(life), within=PATIENCE)
            await until(lambda: all_are_up_to_date(life), within=PATIENCE)
            assert await machines(life) == before
            await life.client.delete(Cluster, life.name, life.name)

            async def gone() -> bool:
                return await life.client.find(Cluster, life.name, life.name) is None

            await until(gone, within=PATIENCE)
        await life.client.delete(Namespace, life.name)
    exchanges = life.recorder.exchanges
    assert {each.hook.id.name for each in exchanges} >= HOOKS
    assert [each for each in exchanges if not each.is_kept()] == []
