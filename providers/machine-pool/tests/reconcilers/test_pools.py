"""A pool on a real API server, with a few lines for Cluster API's core and a cloud in memory."""

import pytest
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL, find_condition
from capelin.controller import ObjectKey
from capelin.provider.pools import RECOUNT_ANNOTATION
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool, MachinePoolSpec
from capelin_machine_pool.desired import FINALIZER, REVISION_LABEL
from capelin_machine_pool.reconcilers import MachinePoolReconciler
from capelin_machine_pool.reconcilers.machines import machines_of_cluster
from capelin_machine_pool.reconcilers.pools import pools_of_cluster, pools_of_machine

from .fake_core import NAME, NEW, OLD, World, context_for


@pytest.fixture
async def world(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
    client: Client,
    namespace: str,
) -> World:
    world = World(client, namespace)
    await world.begin({"maxSurge": 1, "maxUnavailable": 0}, replicas=3)
    await world.settle(3, OLD)
    return world


async def test_a_pool_replaces_a_machine_with_a_failed_health_check(world: World) -> None:
    given_up = min(world.cloud.instances)
    await world.tell_of(given_up, "OwnerRemediated", "False", "WaitingForRemediation")
    await world.provider_steps(world.client)
    machine = await world.client.get(Machine, given_up, world.namespace)
    assert machine.metadata.deletion_timestamp is not None
    await world.settle(3, OLD)
    assert given_up not in world.cloud.instances


async def test_pool_waits_for_its_control_plane(
    world: World,
) -> None:
    ctx = context_for(world.client)
    cluster = await world.client.get(Cluster, NAME, world.namespace)
    assert await pools_of_cluster(ctx, cluster) == [], "it has its machines"
    labels = {CLUSTER_NAME_LABEL: NAME}
    new = CapelinMachinePool.of("new", world.namespace, spec=MachinePoolSpec())
    new.metadata.labels.update(labels)
    await world.client.create(new)
    assert await pools_of_cluster(ctx, cluster) == [ObjectKey(world.namespace, "new")]
    cluster.status.initialization.control_plane_initialized = False
    assert await pools_of_cluster(ctx, cluster) == []


@pytest.mark.parametrize("kept", ["labels", "owners", "nothing"])
async def test_lost_owners_and_labels_of_machines_are_restored(world: World, kept: str) -> None:
    before = {one.name: one.metadata.labels for one in await world.instances()}
    name = min(before)
    nothing: dict[str, object] = {"ownerReferences": None, "labels": None, "finalizers": None}
    stripped = {
        "labels": {"ownerReferences": None, "finalizers": None},
        "owners": {"labels": None},
        "nothing": nothing,
    }[kept]
    await world.client.patch(CapelinMachine, name, world.namespace, {"metadata": stripped})
    for _ in range(2):
        await world.provider_steps(world.client)
    machine = await world.client.get(CapelinMachine, name, world.namespace)
    kinds = {owner.kind for owner in machine.metadata.owner_references}
    assert "CapelinMachinePool" in kinds
    expected = {key: value for key, value in before[name].items() if key != REVISION_LABEL}
    assert expected.items() <= machine.metadata.labels.items()
    assert FINALIZER in machine.metadata.finalizers


async def test_pool_that_has_its_owner_again_restores_its_machines(world: World) -> None:
    pool = await world.pool()
    assert pool is not None
    owners = [owner.dump() for owner in pool.metadata.owner_references]
    removal = {"metadata": {"ownerReferences": None, "finalizers": None}}
    await world.client.patch(CapelinMachinePool, NAME, world.namespace, removal)
    for machine in await world.instances():
        await world.client.patch(CapelinMachine, machine.name, world.namespace, removal)
    ctx = context_for(world.client)
    for machine in await world.instances():
        assert await pools_of_machine(ctx, machine) == [], "the pool has no MachinePool now"
    await world.provider_steps(world.client)
    restored = {"metadata": {"ownerReferences": owners}}
    await world.client.patch(CapelinMachinePool, NAME, world.namespace, restored)
    await world.provider_steps(world.client)
    for machine in await world.instances():
        assert {owner.kind for owner in machine.metadata.owner_references} == {"CapelinMachinePool"}
        assert machine.metadata.finalizers == [FINALIZER]


@pytest.mark.parametrize("kept", ["labels", "provider ID"])
async def test_deleted_pool_waits_for_its_machines(world: World, kept: str) -> None:
    await world.provider_steps(world.client)
    nothing: dict[str, object] = {"ownerReferences": None}
    if kept == "provider ID":
        nothing["labels"] = None
    for machine in await world.instances():
        await world.client.patch(
            CapelinMachine, machine.name, world.namespace, {"metadata": nothing}
        )
    await world.client.delete(CapelinMachinePool, NAME, world.namespace)
    pool = await world.pool()
    assert pool is not None
    await MachinePoolReconciler().reconcile(context_for(world.client), pool)
    assert await world.pool() is not None
    machines = [
        await world.client.get(Machine, one, world.namespace)
        for one in (machine.name for machine in await world.instances())
    ]
    assert all(machine.metadata.deletion_timestamp is not None for machine in machines)


async def test_a_stripped_machine_and_a_pause_concern_the_pool(world: World) -> None:
    ctx, key = context_for(world.client), ObjectKey(world.namespace, NAME)
    machine = (await world.instances())[0]
    assert await pools_of_machine(ctx, machine) == []
    machine.metadata.owner_references = []
    assert await pools_of_machine(ctx, machine) == [key]
    cluster = await world.client.get(Cluster, NAME, world.namespace)
    cluster.spec.paused = True
    assert await pools_of_cluster(ctx, cluster) == [key]
    names = {one.name for one in await machines_of_cluster(ctx, cluster)}
    assert names == {one.name for one in await world.instances()}


async def test_a_pool_replaces_a_lost_instance(world: World) -> None:
    gone = min(world.cloud.instances)
    del world.cloud.instances[gone]
    await world.settle(3, OLD)
    assert gone not in world.cloud.instances


@pytest.mark.parametrize("where", ["cluster", "pool"])
async def test_a_paused_pool_neither_grows_nor_rolls(world: World, where: str) -> None:
    kind = Cluster if where == "cluster" else CapelinMachinePool
    annotations = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
    patch = {"spec": {"paused": True}} if where == "cluster" else annotations
    await world.client.patch(kind, NAME, world.namespace, patch)
    await world.change({"replicas": 5, "template": {"spec": {"version": NEW}}})
    for _ in range(3):
        await world.provider_steps(world.client)
        await world.core_step()
    assert list(world.cloud.instances.values()) == [OLD] * 3
    assert len(await world.instances()) == 3
    pool = await world.pool()
    assert pool is not None
    assert pool.status is not None
    conditions = {c.type: (c.status, c.reason) for c in pool.status.conditions}
    assert conditions["Paused"] == ("True", "Paused")


async def test_a_paused_machine_is_not_removed(world: World) -> None:
    one = min(world.cloud.instances)
    await world.client.patch(Cluster, NAME, world.namespace, {"spec": {"paused": True}})
    await world.client.delete(CapelinMachine, one, world.namespace)
    await world.provider_steps(world.client)
    assert one in world.cloud.instances
    assert one in {instance.name for instance in await world.instances()}


async def test_core_counts_the_machines_again(world: World) -> None:
    async def pool() -> CapelinMachinePool:
        await MachinePoolReconciler().reconcile(context_for(world.client), await read_pool(world))
        return await read_pool(world)

    async def count(**replicas: int) -> None:
        status = {"status": {"readyReplicas": 0, **replicas}}
        kind = MachinePool.resource
        await world.client.patch(kind, NAME, world.namespace, status, subresource="status")

    await world.provider_steps(world.client)
    settled = await pool()
    assert RECOUNT_ANNOTATION not in settled.metadata.annotations, "core counts no Machine as ready"
    await count(readyReplicas=1)
    miscounted = await pool()
    assert RECOUNT_ANNOTATION in miscounted.metadata.annotations
    assert (await pool()).metadata.resource_version == miscounted.metadata.resource_version
    await count()
    assert (await pool()).metadata.resource_version == miscounted.metadata.resource_version


async def read_pool(world: World) -> CapelinMachinePool:
    return await world.client.get(CapelinMachinePool, NAME, world.namespace)


async def test_a_settled_pool_writes_nothing(world: World) -> None:
    async def versions() -> dict[str, str]:
        pool = await world.pool()
        assert pool is not None
        objects = [pool, *await world.instances()]
        return {one.name: one.metadata.resource_version for one in objects}

    for _ in range(2):
        await world.provider_steps(world.client)
    before = await versions()
    for _ in range(3):
        await world.provider_steps(world.client)
    assert await versions() == before


async def test_a_machine_without_a_version_names_the_missing_field(world: World) -> None:
    before = {one.name for one in await world.instances()}
    await world.change({"template": {"spec": {"version": None}}})
    for _ in range(2):
        await world.provider_steps(world.client)
    (made,) = (one for one in await world.instances() if one.name not in before)
    assert made.status is not None
    ready = find_condition(made.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "WaitingForVersion")
    assert "spec.template.spec.version" in ready.message


async def test_a_pool_reports_the_kind_of_its_machines_before_any_exists(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
    client: Client,
    namespace: str,
) -> None:
    world = World(client, namespace)
    await world.begin({}, replicas=3)
    nothing_yet = {"status": {"initialization": {"controlPlaneInitialized": False}}}
    await client.patch(Cluster, NAME, namespace, nothing_yet, subresource="status")
    await world.provider_steps(client)
    pool = await world.pool()
    assert pool is not None
    assert pool.status is not None
    assert pool.status.infrastructure_machine_kind == "CapelinMachine"
    assert pool.status.ready is None
    assert await world.instances() == []
