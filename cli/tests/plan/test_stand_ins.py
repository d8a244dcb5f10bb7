"""The writes of the stand-ins for providers."""

from copy import deepcopy
from typing import Any

from capelin.json_patches import apply_merge_patch
from capelin_cli.explain.facts import reference_of
from capelin_cli.plan.snapshot import Snapshot
from capelin_cli.plan.stand_ins import Write, missing_fields, node_name, pruned, writes

from .objects import cluster, control_plane, machine, made, refers, snapshot

DELETED = "2030-01-01T00:00:00Z"


def after_writes(world: Snapshot) -> Snapshot:
    """The objects after all writes, as an API server would have them."""
    objects = deepcopy(dict(world.objects))
    for write in writes(world):
        objects[write.object] = apply_merge_patch(objects.get(write.object, {}), write.patch)
    return Snapshot(objects)


def settled(world: Snapshot) -> Snapshot:
    for _ in range(5):
        world = after_writes(world)
    assert list(writes(world)) == []
    return world


def found(world: Snapshot, kind: str) -> Any:
    return next(obj for key, obj in world.objects.items() if key.kind == kind)


def test_a_new_cluster_gets_an_endpoint_and_a_ready_control_plane() -> None:
    world = settled(snapshot(control_plane("v1.34.1", replicas=3)))
    status = found(world, "FooControlPlane")["status"]
    assert status["initialization"] == {"controlPlaneInitialized": True}
    assert status["versions"] == [{"version": "v1.34.1", "replicas": 3}]
    assert status["readyReplicas"] == status["upToDateReplicas"] == 3
    assert found(world, "FooCluster")["status"]["initialization"] == {"provisioned": True}
    assert found(world, "FooControlPlane")["spec"]["controlPlaneEndpoint"]["port"] == 6443


def test_a_ready_object_stays_as_it_is() -> None:
    world = settled(snapshot(control_plane(replicas=1)))
    plane = found(world, "FooControlPlane")
    plane["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    plane["status"]["other"] = 7
    again = settled(Snapshot.of([*world.objects.values(), plane]))
    assert found(again, "FooControlPlane")["status"] == plane["status"]


def test_a_new_version_of_the_control_plane_is_reached() -> None:
    world = settled(snapshot(control_plane("v1.33.1")))
    found(world, "FooControlPlane")["spec"]["version"] = "v1.34.1"
    status = found(settled(world), "FooControlPlane")["status"]
    assert status["version"] == "v1.34.1"


def new_machine() -> list[Any]:
    owner = machine("a")
    config = refers("FooConfig", "a", "bootstrap")
    owner["spec"]["bootstrap"] = {"configRef": config}
    return [
        owner,
        made("FooConfig", "a", group="bootstrap"),
        made("FooMachine", "a", group="infrastructure"),
    ]


def test_a_new_machine_waits_for_its_bootstrap_data() -> None:
    world = settled(snapshot(*new_machine()))
    assert found(world, "FooConfig")["status"]["dataSecretName"] == "a"
    assert "providerID" not in found(world, "FooMachine")["spec"]
    assert not any(key.kind == "Node" for key in world.objects)
    found(world, "Machine")["spec"]["bootstrap"]["dataSecretName"] = "a"
    world = settled(world)
    provider_id = found(world, "FooMachine")["spec"]["providerID"]
    node = found(world, "Node")
    assert node["spec"]["providerID"] == provider_id
    assert node["metadata"]["name"] == node_name(provider_id)
    assert {"type": "Ready", "status": "True"} in node["status"]["conditions"]


def test_deleted_objects_of_providers_lose_their_finalizers() -> None:
    infrastructure = made(
        "FooMachine",
        "a",
        group="infrastructure",
        deletionTimestamp=DELETED,
        finalizers=["foo.example.com", "foregroundDeletion"],
    )
    core = made("MachineSet", "b", deletionTimestamp=DELETED)
    core["metadata"]["finalizers"] = ["foregroundDeletion", "core.example.com"]
    found = [each for each in writes(snapshot(infrastructure, core)) if "metadata" in each.patch]
    assert found == [
        Write(reference_of(infrastructure), {"metadata": {"finalizers": []}}),
        Write(reference_of(core), {"metadata": {"finalizers": ["core.example.com"]}}),
    ]


def test_deletion_hooks_of_a_machine_do_not_block_the_plan() -> None:
    hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup"
    deleted = machine("a", deletionTimestamp=DELETED, annotations={hook: "", "mine": "x"})
    deleted["metadata"]["finalizers"] = ["machine.cluster.x-k8s.io"]
    (write,) = [each for each in writes(snapshot(deleted)) if each.object.kind == "Machine"]
    assert write.patch == {"metadata": {"annotations": {hook: None}}}


def test_a_pool_has_as_many_ids_as_replicas() -> None:
    reference = refers("FooMachinePool", "p")
    spec: dict[str, Any] = {
        "replicas": 3,
        "template": {"spec": {"version": "v1.33.1", "infrastructureRef": reference}},
    }
    infrastructure = made(
        "FooMachinePool", "p", {"providerIDList": ["foo://b/1"]}, group="infrastructure"
    )
    pool = made("MachinePool", "p", spec)
    world = settled(snapshot(pool, infrastructure))
    ids = found(world, "FooMachinePool")["spec"]["providerIDList"]
    assert ids[0] == "foo://b/1"
    assert len(ids) == 3
    nodes = [obj for key, obj in world.objects.items() if key.kind == "Node"]
    assert sorted(node["spec"]["providerID"] for node in nodes) == sorted(ids)
    spec["template"]["spec"]["version"] = "v1.34.1"
    world = settled(Snapshot.of([*world.objects.values(), made("MachinePool", "p", spec)]))
    versions = {
        obj["status"]["nodeInfo"]["kubeletVersion"]
        for key, obj in world.objects.items()
        if key.kind == "Node"
    }
    assert versions == {"v1.34.1"}


def test_missing_fields() -> None:
    assert missing_fields({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1}, "d": 3}) == {
        "a": {"c": 2}
    }


def test_writes_have_only_fields_of_the_kind() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "initialization": {"properties": {"provisioned": {"type": "boolean"}}},
            "conditions": {"items": {"properties": {"type": {}}}},
            "labels": {"additionalProperties": {}},
        }
    }
    value = {
        "ready": True,
        "initialization": {"provisioned": True},
        "conditions": [{"type": "Ready", "x": 1}],
        "labels": {"a": "b"},
    }
    assert pruned(value, schema) == {
        "initialization": {"provisioned": True},
        "conditions": [{"type": "Ready"}],
        "labels": {"a": "b"},
    }
    assert pruned({"initialization": {"other": 1}}, schema) == {}
    assert cluster()["kind"] == "Cluster"
