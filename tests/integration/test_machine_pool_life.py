"""The life of machines in pools and deployments, in a cluster with the real core."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachineHealthCheck
from capelin.api.core import Node, Pod
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster
from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachinePool

from .deployments import DEPLOYED, deployment_manifests
from .pools import (
    OLDER,
    POOL,
    VERSION,
    Whole,
    condition,
    is_ready,
    pool_manifests,
    reference,
    whole_cluster,
)

pytestmark = pytest.mark.timeout(600)

PAUSED = "cluster.x-k8s.io/paused"
ZONE = "topology.kubernetes.io/zone"
BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
FAILS_NOW: dict[str, Any] = {"spec": {"simulated": {"faults": {"dies": 100, "afterSeconds": 0}}}}
HELD = "test.capelin.cluster.x-k8s.io/held"
LONG_ENOUGH = 8.0
"""Seconds in which an active pool would certainly change something."""


@pytest.fixture(scope="module")
async def whole(management_cluster: ManagementCluster) -> AsyncGenerator[Whole]:
    """A cluster with two failure domains, shared by the tests of this module."""
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management,
        whole_cluster(management, "life", domains=("east", "west")) as whole,
    ):
        yield whole


@pytest.fixture
async def pool(whole: Whole) -> AsyncGenerator[Whole]:
    """The cluster with a pool of three, which is removed afterwards."""
    for manifest in pool_manifests(whole.name, whole.namespace, replicas=3):
        await whole.management.apply(manifest)
    await until(lambda: whole.is_whole(3, VERSION))
    yield whole
    await whole.remove_pool()


async def names(whole: Whole) -> set[str]:
    return {one.name for one in await whole.instances()}


async def fail(whole: Whole, name: str) -> None:
    """Stop the heartbeats of a machine's node."""
    await whole.management.patch(CapelinMachine, name, whole.namespace, FAILS_NOW)


def health_check(whole: Whole) -> Unstructured:
    """Replaces machines whose node has been silent for a second."""
    checks = {
        "nodeStartupTimeoutSeconds": 0,
        "unhealthyNodeConditions": [
            {"type": "Ready", "status": status, "timeoutSeconds": 1}
            for status in ("Unknown", "False")
        ],
    }
    return {
        "apiVersion": MachineHealthCheck.resource.api_version,
        "kind": "MachineHealthCheck",
        "metadata": {"name": "silent", "namespace": whole.namespace},
        "spec": {
            "clusterName": whole.name,
            "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": whole.name}},
            "checks": checks,
        },
    }


async def test_a_pool_spreads_machines_over_the_failure_domains(pool: Whole) -> None:
    await pool.scale(4)
    await until(lambda: pool.is_whole(4, VERSION))
    zones = Counter(node.metadata.labels[ZONE] for node in await pool.nodes())
    assert zones == {"east": 2, "west": 2}
    assert {one.status.failure_domain for one in await pool.machines()} == {"east", "west"}


async def test_a_marked_machine_is_deleted_before_the_policy_decides(pool: Whole) -> None:
    marked = sorted(await names(pool))[1]
    annotations = {"cluster.x-k8s.io/delete-machine": "yes"}
    await pool.management.patch(
        Machine, marked, pool.namespace, {"metadata": {"annotations": annotations}}
    )
    await pool.scale(2)
    await until(lambda: pool.is_whole(2, VERSION))
    left = await names(pool)
    assert marked not in left
    await pool.change_pool({"rollingUpdate": {"deletePolicy": "Newest"}})
    await pool.scale(3)
    await until(lambda: pool.is_whole(3, VERSION))
    await pool.scale(2)
    await until(lambda: pool.is_whole(2, VERSION))
    assert await names(pool) == left


async def test_core_counts_the_machines_again_when_a_deleted_one_is_gone(pool: Whole) -> None:
    # Core does not watch the Machines of a pool, and the last to go is one of them.
    for machine in await pool.machines():
        held = {"metadata": {"finalizers": [*machine.metadata.finalizers, HELD]}}
        await pool.management.patch(Machine, machine.name, pool.namespace, held)
    await pool.scale(2)

    async def is_held() -> str | None:
        gone = (await names(pool)).symmetric_difference(
            machine.name for machine in await pool.machines()
        )
        counted = (await pool.pool()).status
        deleted = [one for one in await pool.machines() if one.metadata.finalizers == [HELD]]
        return min(gone) if deleted and counted.replicas == counted.ready_replicas == 2 else None

    held = await until(is_held)
    assert [entry.replicas for entry in (await pool.pool()).status.versions] == [3]
    for machine in await pool.machines():
        kept = [one for one in machine.metadata.finalizers if one != HELD]
        released = {"metadata": {"finalizers": kept}}
        await pool.management.patch(Machine, machine.name, pool.namespace, released)
    await until(
        pool.pool, lambda counted: [entry.replicas for entry in counted.status.versions] == [2]
    )
    assert held not in {machine.name for machine in await pool.machines()}


async def test_a_pool_replaces_a_deleted_node(pool: Whole) -> None:
    lost = min(await names(pool))
    await pool.workload.delete(Node, lost)

    async def replaced() -> bool:
        return await pool.is_whole(3, VERSION) and lost not in await names(pool)

    await until(replaced)


@pytest.mark.representative
async def test_a_health_check_replaces_a_silent_machine(pool: Whole) -> None:
    await pool.management.apply(health_check(pool))
    silent = min(await names(pool))
    await fail(pool, silent)

    async def is_silent() -> bool:
        node = await pool.workload.find(Node, silent)
        return node is None or condition(node, "Ready") == "Unknown"

    await until(is_silent)

    async def replaced() -> bool:
        return await pool.is_whole(3, VERSION) and silent not in await names(pool)

    await until(replaced)
    await pool.management.delete(MachineHealthCheck, "silent", pool.namespace)


async def test_a_pod_disruption_budget_delays_the_deletion_of_a_machine(pool: Whole) -> None:
    chosen = min(await names(pool))
    labels = {"app": "held"}
    container = {"name": "held", "image": "held"}
    await pool.workload.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "held", "namespace": "default", "labels": labels},
            "spec": {"nodeName": chosen, "containers": [container]},
        },
        resource=Pod.resource,
    )
    await pool.workload.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "held", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
        resource=BUDGETS,
    )

    async def runs() -> bool:
        pod = await pool.workload.get(Pod.resource, "held", "default")
        return pod["status"].get("phase") == "Running"

    await until(runs)
    await pool.management.delete(Machine, chosen, pool.namespace)

    async def is_cordoned() -> bool:
        return not is_ready(await pool.workload.get(Node, chosen))

    await until(is_cordoned)
    await asyncio.sleep(LONG_ENOUGH)
    assert chosen in await names(pool)
    await pool.workload.delete(BUDGETS, "held", "default")

    async def replaced() -> bool:
        return await pool.is_whole(3, VERSION) and chosen not in await names(pool)

    await until(replaced)


async def test_a_new_config_replaces_all_machines_and_a_new_token_none(pool: Whole) -> None:
    before = await names(pool)
    config = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig"}
    resource = await pool.management.resource_of(config)
    token = {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}
    await pool.management.patch(
        resource, POOL, pool.namespace, {"spec": {"joinConfiguration": {"discovery": token}}}
    )
    await pool.change_pool({"rollingUpdate": {"deletePolicy": "Newest", "maxSurge": 3}})
    await asyncio.sleep(LONG_ENOUGH)
    assert await names(pool) == before
    arguments = [{"name": "v", "value": "4"}]
    node = {"nodeRegistration": {"kubeletExtraArgs": arguments}}
    await pool.management.patch(
        resource, POOL, pool.namespace, {"spec": {"joinConfiguration": node}}
    )
    # The pool does not watch the config, but any change of the pool reconciles it.
    await pool.change_pool({"rollingUpdate": {"deletePolicy": "Oldest"}})

    async def replaced() -> bool:
        return await pool.is_whole(3, VERSION) and before.isdisjoint(await names(pool))

    await until(replaced)


@pytest.mark.parametrize("where", ["pool", "cluster"])
async def test_a_paused_pool_does_not_change(pool: Whole, where: str) -> None:
    client, namespace = pool.management, pool.namespace

    async def pause(*, on: bool) -> None:
        if where == "cluster":
            await client.patch(Cluster, pool.name, namespace, {"spec": {"paused": on}})
        else:
            annotations = {PAUSED: "" if on else None}
            patch = {"metadata": {"annotations": annotations}}
            await client.patch(CapelinMachinePool, POOL, namespace, patch)

    async def is_paused() -> bool:
        paused: list[CapelinMachinePool | CapelinMachine] = [await pool.infrastructure()]
        if where == "cluster":
            paused += await pool.instances()
        return all(condition(obj, "Paused") == "True" for obj in paused)

    await pause(on=True)
    # Long before the next periodic reconcile.
    await until(is_paused, within=10)
    before = await names(pool)
    await pool.scale(4)
    await pool.upgrade(OLDER)
    await asyncio.sleep(LONG_ENOUGH)
    assert await names(pool) == before
    await pause(on=False)
    await until(lambda: pool.is_whole(4, OLDER))
    assert before.isdisjoint(await names(pool))


async def test_the_autoscaler_can_read_sizes_and_capacity(whole: Whole) -> None:
    prefix = "cluster.x-k8s.io/cluster-api-autoscaler-node-group"
    sizes = {f"{prefix}-min-size": "2", f"{prefix}-max-size": "5"}
    manifests = pool_manifests(whole.name, whole.namespace, replicas=0)
    manifests[-1]["metadata"]["annotations"] = sizes
    del manifests[-1]["spec"]["replicas"]
    for manifest in manifests:
        await whole.management.apply(manifest)
    await until(lambda: whole.is_whole(2, VERSION))
    status = (await whole.infrastructure()).status
    assert status is not None
    assert status.capacity == {"cpu": "4", "memory": "16Gi", "pods": "110"}
    assert status.node_info is not None
    assert status.node_info.dump() == {"architecture": "amd64", "operatingSystem": "linux"}
    assert all(len(instance.addresses) == 2 for instance in status.instances)
    await whole.remove_pool()


async def test_a_pool_follows_an_external_manager_of_its_replicas(whole: Whole) -> None:
    manifests = pool_manifests(whole.name, whole.namespace, replicas=1)
    managed = {"cluster.x-k8s.io/replicas-managed-by": "somebody"}
    manifests[-1]["metadata"]["annotations"] = managed
    for manifest in manifests:
        await whole.management.apply(manifest)
    for replicas in (1, 3, 2):
        await whole.scale(replicas)
        await until(lambda replicas=replicas: whole.is_whole(replicas, VERSION))
    pool = await whole.pool()
    assert pool.metadata.annotations.items() >= managed.items()
    assert pool.spec.replicas == 2
    await whole.remove_pool()


async def test_machines_of_a_deployment_become_ready_and_are_replaced(whole: Whole) -> None:
    for manifest in deployment_manifests(whole, 2, domain="west"):
        await whole.management.apply(manifest)

    async def are_ready() -> bool:
        machines, nodes = await whole.machines(), await whole.nodes()
        return (
            len(machines) == len(nodes) == len(await whole.instances()) == 2
            and all(condition(machine, "Ready") == "True" for machine in machines)
            and all(map(is_ready, nodes))
        )

    await until(are_ready)
    assert {node.metadata.labels[ZONE] for node in await whole.nodes()} == {"west"}
    await whole.management.apply(health_check(whole))
    silent = min(await names(whole))
    await fail(whole, silent)

    async def replaced() -> bool:
        return silent not in await names(whole) and await are_ready()

    await until(replaced)
    await whole.management.delete(MachineHealthCheck, "silent", whole.namespace)
    await whole.management.delete(MachineDeployment, DEPLOYED, whole.namespace)

    async def gone() -> bool:
        return not [*await whole.machines(), *await whole.instances(), *await whole.nodes()]

    await until(gone)


async def test_an_endpoint_of_the_user_becomes_the_clusters(whole: Whole) -> None:
    client, namespace = whole.management, whole.namespace
    meta = {"name": "given", "namespace": namespace}
    endpoint = {"host": "api.example.com", "port": 6443}
    await client.apply(
        {
            "apiVersion": CapelinCluster.resource.api_version,
            "kind": "CapelinCluster",
            "metadata": meta,
            "spec": {"controlPlaneEndpoint": endpoint},
        }
    )
    await client.apply(
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": "Cluster",
            "metadata": meta,
            "spec": {"infrastructureRef": reference("infrastructure", "CapelinCluster", "given")},
        }
    )

    async def is_known() -> bool:
        cluster = await client.get(Cluster, "given", namespace)
        said = cluster.spec.control_plane_endpoint
        return bool(cluster.status.initialization.infrastructure_provisioned) and (
            said.host,
            said.port,
        ) == ("api.example.com", 6443)

    await until(is_known)
    await client.delete(Cluster, "given", namespace)
