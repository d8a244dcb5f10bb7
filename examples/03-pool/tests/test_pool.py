"""A pool creates, adopts and deletes machines, each with a Machine of its own."""

import sys
from pathlib import Path

import pytest
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.controller import After, Done
from capelin.testing.fake_client import Clock, FakeClient, cluster, machine, machine_pool
from capelin.testing.managers import reconcile_once

sys.path.insert(0, str(Path(__file__).parents[1]))
from pool import SketchMachine, SketchMachinePool, SketchPools, provider

MARK = "cluster.x-k8s.io/delete-machine"


def test_it_is_fewer_than_100_lines() -> None:
    text = Path(__file__).parents[1].joinpath("pool.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 100


def test_it_may_delete_machines_of_a_pool() -> None:
    allowed = {
        (group, resource, verb)
        for rule in provider().rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("cluster.x-k8s.io", "machines", "delete") in allowed
    assert ("infrastructure.cluster.x-k8s.io", "sketchmachines", "create") in allowed


@pytest.fixture
def client() -> FakeClient:
    """A Cluster whose control plane responds, with a MachinePool of two machines."""
    client = FakeClient(SketchMachine, SketchMachinePool, clock=Clock())
    demo = cluster("demo")
    demo.status.initialization.infrastructure_provisioned = True
    demo.status.initialization.control_plane_initialized = True
    stored: Cluster = client.add(demo)
    owner: MachinePool = client.add(machine_pool("workers", stored, replicas=2))
    client.add(
        SketchMachinePool.read(
            {
                "metadata": {
                    "name": "workers",
                    "namespace": "default",
                    "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
                    "ownerReferences": [
                        {
                            "apiVersion": MachinePool.resource.api_version,
                            "kind": "MachinePool",
                            "name": "workers",
                            "uid": owner.uid,
                            "controller": True,
                        }
                    ],
                },
                "spec": {},
            }
        )
    )
    return client


async def reconcile(client: FakeClient) -> object:
    return (await reconcile_once(SketchPools(), client, "workers", "default")).result


async def machines(client: FakeClient) -> list[SketchMachine]:
    return [one async for one in client.iterate(SketchMachine, "default")]


async def as_core(client: FakeClient) -> None:
    """Create a Machine for each machine, as core does."""
    demo = await client.get(Cluster, "demo", "default")
    for obj in await machines(client):
        made = machine(obj.name, demo)
        made.metadata.labels |= obj.metadata.labels
        client.add(made)


async def scale(client: FakeClient, replicas: int) -> None:
    await client.patch(MachinePool, "workers", "default", {"spec": {"replicas": replicas}})


async def test_machines_are_created_under_new_names(client: FakeClient) -> None:
    assert await reconcile(client) == After(2)
    first, second = await machines(client)
    assert first.name != second.name
    assert first.metadata.labels["cluster.x-k8s.io/pool-name"] == "workers"
    await as_core(client)
    assert await reconcile(client) == After(60)
    assert len(await machines(client)) == 2
    pool = await client.get(SketchMachinePool, "workers", "default")
    assert pool.status is not None
    assert pool.status.infrastructure_machine_kind == "SketchMachine"
    assert pool.status.replicas == 2


async def test_marked_machines_go_first_and_through_their_machines(client: FakeClient) -> None:
    await reconcile(client)
    await as_core(client)
    _, second = await machines(client)
    await client.patch(
        Machine, second.name, "default", {"metadata": {"annotations": {MARK: "yes"}}}
    )
    await scale(client, 1)
    assert await reconcile(client) == After(2)
    assert await client.find(Machine, second.name, "default") is None
    # Core deletes the SketchMachine with its Machine.
    assert len(await machines(client)) == 2


async def test_a_machine_that_lost_its_labels_is_adopted(client: FakeClient) -> None:
    await reconcile(client)
    await as_core(client)
    first, _ = await machines(client)
    labels = {"metadata": {"labels": {"cluster.x-k8s.io/pool-name": None}}}
    await client.patch(SketchMachine, first.name, "default", labels)
    await reconcile(client)
    adopted = await client.get(SketchMachine, first.name, "default")
    assert adopted.metadata.labels["cluster.x-k8s.io/pool-name"] == "workers"
    assert len(await machines(client)) == 2


async def test_a_pool_goes_after_its_machines(client: FakeClient) -> None:
    await reconcile(client)
    await as_core(client)
    await client.delete(SketchMachinePool, "workers", "default")
    assert await reconcile(client) == After(2)
    assert [one async for one in client.iterate(Machine, "default")] == []
    for obj in await machines(client):
        await client.delete(SketchMachine, obj.name, "default")
    assert await reconcile(client) == Done()
    assert await client.find(SketchMachinePool, "workers", "default") is None
