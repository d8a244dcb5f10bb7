"""User stories of Cluster API's Runtime SDK proposal as policies, with the real core.

One Cluster goes through its life, test by test: each needs those before it.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap
from capelin.client import ApiError, Client, Config, WorkloadClients
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_cli.clusters.topology import upgrade_patch
from capelin_embedded.management import workload_programs
from capelin_embedded.testing.management import ManagementCluster
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api import LifecyclePolicy, LifecycleReservation, LifecycleResult
from capelin_machine_pool.api import CapelinMachinePool

from .lifecycle_stories import (
    AFTER,
    APPROVALS,
    BEFORE,
    PATIENCE,
    Stories,
    stories_in,
    user_name,
)

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs(*workload_programs(BEFORE), *workload_programs(AFTER)),
]

NAME = "stories"
BACKUPS = Resource("velero.io", "v1", "Backup", "backups")
VELERO = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: backups.velero.io}
spec:
  group: velero.io
  scope: Namespaced
  names: {kind: Backup, listKind: BackupList, plural: backups, singular: backup}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: v1
kind: Namespace
metadata: {name: velero}
"""
CPI = """
apiVersion: v1
kind: ConfigMap
metadata: {name: cpi, namespace: kube-system}
data: {version: "%s"}
"""
PATCHES = {
    "name": "v1",
    "variables": [{"name": "seconds", "schema": {"type": "integer", "default": 2}}],
    "templates": [
        {
            "kind": "CapelinMachinePoolTemplate",
            "usedBy": ["MachinePools"],
            "when": "variables.seconds > 1",
            "operations": [
                {
                    "path": "/spec/template/spec/simulated/startupSeconds",
                    "valueFrom": "variables.seconds",
                }
            ],
        }
    ],
}
EXTERNAL = {
    "generatePatchesExtension": "generate-patches-v1.lifecycle",
    "discoverVariablesExtension": "discover-variables-v1.lifecycle",
    "settings": {"policy": f"{NAME}/startup", "version": "v1"},
}


@pytest.fixture(scope="module")
async def stories(management_cluster: ManagementCluster) -> AsyncGenerator[Stories]:
    """The namespace, with a ClusterClass that a policy patches."""
    await management_cluster.require("lifecycle")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client,
        stories_in(client, NAME) as stories,
    ):
        await stories.apply("startup", "GeneratePatches", {"patches": {"versions": [PATCHES]}})
        external = {"name": "startup", "external": EXTERNAL}
        await stories.create_class(external, variables=["seconds"])
        yield stories


@pytest.fixture(scope="module")
async def workloads(stories: Stories) -> AsyncGenerator[WorkloadClients]:
    clients = WorkloadClients(stories.client)
    yield clients
    await clients.close()


@pytest.fixture(scope="module")
async def survivor(stories: Stories) -> str:
    """The Cluster that a quota of one admits after the deletion of the first."""
    limits = {"limits": [{"resource": "clusters", "limit": 1}]}
    await stories.apply("quota", "BeforeClusterCreate", {"quota": limits})
    await stories.are_called("BeforeClusterCreate")
    await asyncio.gather(stories.create("left"), stories.create("right"))
    (first,) = await until(stories.admitted, within=PATIENCE)
    second = "right" if first == "left" else "left"
    refused = f"the quota of namespace {NAME} is exhausted: 1 clusters requested, 1 of 1 in use"
    await stories.wait_for_message(second, refused)
    assert await stories.admitted() == [first]
    await stories.delete(first)
    await stories.is_admitted(second)
    return second


async def running_versions(stories: Stories, name: str) -> list[str]:
    """The versions that the control plane of a Cluster runs."""
    cluster = await stories.cluster(name)
    assert cluster.status.control_plane is not None
    return [entry.version for entry in cluster.status.control_plane.versions]


@pytest.mark.representative
async def test_quota_of_one_admits_one_cluster(stories: Stories, survivor: str) -> None:
    assert await stories.admitted() == [survivor]
    policy = await stories.client.get(LifecyclePolicy, "quota", NAME)
    reservation = await stories.client.get(LifecycleReservation, f"quota-{policy.uid}", NAME)
    assert reservation.clusters == [(await stories.cluster(survivor)).uid]


async def test_patches_are_visible_in_the_objects(stories: Stories, survivor: str) -> None:
    async def pools() -> list[CapelinMachinePool]:
        return (await stories.client.list(CapelinMachinePool, NAME)).items

    (pool,) = await until(pools, within=PATIENCE)
    assert pool.name.startswith(survivor)
    assert pool.spec.simulated.startup_seconds == 2


async def test_an_add_on_is_installed_before_an_upgrade_which_waits_for_approval(
    stories: Stories, survivor: str, workloads: WorkloadClients
) -> None:
    for version in (BEFORE, AFTER):
        config_map = ConfigMap.of(f"cpi-{version}", NAME, data={"cpi.yaml": CPI % version})
        await stories.client.apply(config_map)
    sources = [
        {"configMap": f"cpi-{BEFORE}", "versions": f"<{AFTER[1:]}"},
        {"configMap": f"cpi-{AFTER}", "versions": f">={AFTER[1:]}"},
    ]
    user = await user_name(stories.client)
    pods = {"restartPolicy": "Never", "containers": [{"name": "tests", "image": "tests"}]}
    job = {"template": {"template": {"spec": pods}}, "namespace": "default"}
    hook = "BeforeClusterUpgrade"
    await stories.apply("cpi", hook, {"apply": {"sources": sources}})
    await stories.apply("freeze", hook, {"approval": {"approvers": [user]}}, order=1)
    await stories.apply("tests", "AfterClusterUpgrade", {"job": job})
    await stories.are_called(hook, "AfterClusterUpgrade")

    await until(lambda: stories.is_available(survivor), within=PATIENCE)
    await stories.client.patch(Cluster, survivor, NAME, upgrade_patch(AFTER), type="json")
    await stories.wait_for_message(survivor, f"policy freeze: waits for approval by {user}")
    async with workloads.client(survivor, NAME) as workload:
        installed = await workload.get(ConfigMap, "cpi", "kube-system")
    assert installed.data == {"version": AFTER}
    assert await stories.phase("cpi", survivor) == "Done"
    assert await running_versions(stories, survivor) == [BEFORE]


async def test_an_approver_can_approve_only_with_the_own_name(
    stories: Stories, survivor: str
) -> None:
    code = await stories.approval_code("freeze", survivor)

    def approval(user: str) -> Unstructured:
        return {"metadata": {"annotations": {f"{APPROVALS}freeze": f"{code}:{user}"}}}

    async def refusal() -> str:
        try:
            somebody = approval("somebody")
            await stories.client.patch(Cluster, survivor, NAME, somebody, dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    # The admission policy becomes effective soon after it is stored.
    assert "an approval has the value CODE:USER" in await until(refusal, within=PATIENCE)
    await stories.approve("freeze", survivor)


async def test_tests_run_after_the_upgrade(
    stories: Stories, survivor: str, workloads: WorkloadClients
) -> None:
    """Simulated machines report the pods of a Job as succeeded, although nothing runs."""

    async def phase() -> str:
        return await stories.phase("tests", survivor)

    await until(phase, lambda phase: phase in {"Running", "Done"}, within=PATIENCE)
    assert await running_versions(stories, survivor) == [AFTER]
    async with workloads.client(survivor, NAME) as workload:
        (job,) = (await workload.list(JOBS, "default")).items
        assert job["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "capelin-lifecycle"
    await stories.wait_for_phase("tests", survivor, "Done")


async def test_a_deletion_waits_for_the_backup(
    stories: Stories, survivor: str, workloads: WorkloadClients
) -> None:
    """Velero is a CRD of its shape here, and the test completes its backup by hand."""
    text = "apiVersion: velero.io/v1\nkind: Backup\n"
    text += "metadata: {generateName: backup-, namespace: velero}\nspec: {}\n"
    await stories.client.apply(ConfigMap.of("backup", NAME, data={"backup.yaml": text}))
    source = {"configMap": "backup", "until": "object.status.phase == 'Completed'"}
    await stories.apply("backup", "BeforeClusterDelete", {"apply": {"sources": [source]}})
    await stories.are_called("BeforeClusterDelete")
    async with workloads.client(survivor, NAME) as workload:
        for manifest in read_all_yaml(VELERO):
            await workload.apply(manifest)
        await stories.client.delete(Cluster, survivor, NAME)
        await stories.wait_for_message(survivor, "policy backup: Backup backup-")
        (backup,) = (await workload.list(BACKUPS, "velero")).items
        assert await running_versions(stories, survivor) == [AFTER]
        status: dict[str, Any] = {"status": {"phase": "Completed"}}
        await workload.patch(BACKUPS, backup["metadata"]["name"], "velero", status)
    await until(lambda: stories.is_gone(survivor), within=PATIENCE)

    async def results() -> list[LifecycleResult]:
        return (await stories.client.list(LifecycleResult, NAME)).items

    await until(results, lambda left: not left, within=PATIENCE)
