"""The effect of a change, from the objects before and after it."""

from typing import Any

import pytest
from capelin_cli.plan.comparison import compare
from capelin_cli.plan.model import ClusterPlan, MachineChanges

from .objects import (
    CLUSTER,
    cluster,
    control_plane,
    deployment,
    machine,
    made,
    refers,
    snapshot,
    template,
)

BEFORE = (deployment(), template(), machine("a"), machine("b"), machine("c"))


def effect(*after: Any, before: tuple[Any, ...] = BEFORE) -> ClusterPlan:
    return compare(snapshot(*before), snapshot(*after), CLUSTER)


def workers(plan: ClusterPlan) -> MachineChanges:
    return next(each for each in plan.machines if each.owner == "MachineDeployment md")


def test_nothing_changes() -> None:
    plan = effect(*BEFORE)
    assert not plan.has_effect
    assert plan.versions == ["v1.33.1"]
    assert workers(plan) == MachineChanges(owner="MachineDeployment md", before=3, after=3, kept=3)


def test_a_rotated_template_has_one_role_and_equal_references() -> None:
    after = (deployment("prod-md-2"), template("prod-md-2", cpus=4))
    machines = (machine("d"), machine("e"), machine("f"))
    plan = effect(*after, *machines)
    (change,) = plan.objects
    assert (change.action, change.role) == (
        "Rotated",
        "infrastructure template of MachineDeployment md",
    )
    assert [(each.path, each.before, each.after) for each in change.fields] == [
        ("spec.template.spec.cpus", 2, 4)
    ]
    found = workers(plan)
    assert (found.replaced, found.kept, found.order, found.max_surge) == (3, 0, "CreateFirst", 1)
    assert plan.replaces_machines


def test_a_new_number_creates_and_deletes_machines() -> None:
    more = workers(effect(deployment(replicas=4), template(), *BEFORE[2:], machine("d")))
    assert (more.kept, more.created, more.deleted, more.replaced) == (3, 1, 0, 0)
    assert more.max_surge is None
    fewer = workers(effect(deployment(replicas=1), template(), machine("b")))
    assert (fewer.kept, fewer.created, fewer.deleted) == (1, 0, 2)


def test_a_replacement_with_a_new_number() -> None:
    after = (machine("a"), machine("x"), machine("y"), machine("z"))
    found = workers(effect(deployment(replicas=4), template(), *after))
    assert (found.kept, found.replaced, found.created, found.deleted) == (1, 2, 1, 0)


def test_new_labels_change_machines_in_place() -> None:
    after = [machine(name, labels={"team": "a"}) for name in "abc"]
    found = workers(effect(deployment(), template(), *after))
    assert (found.updated, found.kept, found.replaced) == (3, 0, 0)
    assert found.fields == ["metadata.labels.team"]


def test_internal_labels_do_not_count() -> None:
    labels = {"machine-template-hash": "7", "cluster.x-k8s.io/set-name": "other"}
    after = [machine(name, labels=labels) for name in "abc"]
    assert workers(effect(deployment(), template(), *after)).kept == 3


def test_an_infrastructure_machine_that_changes_updates_its_machine() -> None:
    def infrastructure(cpus: int) -> Any:
        return made("FooMachine", "a", {"cpus": cpus}, group="infrastructure")

    before = (*BEFORE, infrastructure(2))
    found = workers(effect(*BEFORE, infrastructure(4), before=before))
    assert (found.updated, found.kept) == (1, 2)
    assert found.fields == ["infrastructure.spec.cpus"]


def test_machines_that_are_being_deleted_do_not_count() -> None:
    deleted = machine("c", deletionTimestamp="2030-01-01T00:00:00Z")
    found = workers(effect(deployment(), template(), machine("a"), machine("b"), deleted))
    assert (found.after, found.deleted) == (2, 1)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}, (0, 2, "DeleteFirst")),
        ({"rollingUpdate": {"maxSurge": "34%", "maxUnavailable": "34%"}}, (2, 1, "CreateFirst")),
        ({"rollingUpdate": {"maxSurge": 0}}, (0, 1, "DeleteFirst")),
    ],
)
def test_limits_of_a_replacement(strategy: dict[str, Any], expected: tuple[Any, ...]) -> None:
    changed = deployment(rollout={"strategy": {"type": "RollingUpdate", **strategy}})
    found = workers(effect(changed, template(), machine("d"), machine("e"), machine("f")))
    assert (found.max_surge, found.max_unavailable, found.order) == expected


def test_on_delete_replaces_no_machine_by_itself() -> None:
    rollout = {"strategy": {"type": "OnDelete"}}
    found = workers(
        effect(deployment("prod-md-2", rollout=rollout), template("prod-md-2"), *BEFORE[2:])
    )
    assert (found.kept, found.replaced, found.order) == (3, 0, "OnDelete")


def test_a_deployment_comes_and_another_goes() -> None:
    other = deployment()
    other["metadata"] |= {
        "name": "prod-new-x1",
        "uid": "uid-new",
        "labels": {
            **other["metadata"]["labels"],
            "topology.cluster.x-k8s.io/deployment-name": "new",
        },
    }
    new = machine("n", labels={"cluster.x-k8s.io/deployment-name": "prod-new-x1"})
    plan = effect(other, template(), new)
    actions = {(each.role, each.action) for each in plan.objects}
    assert ("MachineDeployment md", "Deleted") in actions
    assert ("MachineDeployment new", "Created") in actions
    machines = {each.owner: (each.created, each.deleted) for each in plan.machines}
    assert machines == {"MachineDeployment md": (0, 3), "MachineDeployment new": (1, 0)}


def test_changed_fields_of_the_control_plane_and_its_versions() -> None:
    before = snapshot(*BEFORE)
    after = snapshot(*BEFORE, control_plane("v1.34.1"))
    plan = compare(before, after, CLUSTER)
    assert plan.versions == ["v1.33.1", "v1.34.1"]
    (change,) = plan.objects
    assert (change.role, change.action) == ("control plane", "Changed")


def test_machines_of_a_control_plane_are_unknown() -> None:
    member = machine("cp", labels={"cluster.x-k8s.io/control-plane": ""})
    before, after = snapshot(member), snapshot(member, control_plane("v1.34.1"))
    plan = compare(before, after, CLUSTER)
    (found,) = plan.machines
    assert found.owner == "control plane"
    assert found.unknown.startswith("FooControlPlane decides which machines it replaces")
    assert plan.unknown
    assert compare(before, before, CLUSTER).unknown == []


def test_a_deleted_cluster() -> None:
    plan = compare(snapshot(*BEFORE), snapshot(cluster()), CLUSTER)
    assert workers(plan).deleted == 3


def pool(replicas: int, version: str, **metadata: Any) -> Any:
    spec = {
        "replicas": replicas,
        "template": {
            "spec": {
                "version": version,
                "infrastructureRef": refers("FooMachinePool", "prod-mp"),
            }
        },
    }
    return made("MachinePool", "prod-mp", spec, **metadata)


def test_a_pool_of_an_unknown_provider() -> None:
    infrastructure = made("FooMachinePool", "prod-mp", group="infrastructure")
    before = (pool(3, "v1.33.1"), infrastructure)
    (scaled,) = effect(pool(5, "v1.33.1"), infrastructure, before=before).machines
    assert (scaled.kept, scaled.created, scaled.unknown) == (3, 2, "")
    (upgraded,) = effect(pool(3, "v1.34.1"), infrastructure, before=before).machines
    assert upgraded.unknown == (
        "FooMachinePool decides which machines it replaces after a change of "
        "spec.template.spec.version"
    )


def capelin_pool(seconds: int = 0, **rolling: Any) -> Any:
    spec = {"simulated": {"startupSeconds": seconds}, "rollingUpdate": rolling}
    found = made("CapelinMachinePool", "prod-mp", spec, group="infrastructure")
    found["apiVersion"] = "infrastructure.cluster.x-k8s.io/v1alpha1"
    return found


def capelin_machine_pool(version: str = "v1.33.1", replicas: int = 3) -> Any:
    found = pool(replicas, version)
    reference = refers("CapelinMachinePool", "prod-mp")
    found["spec"]["template"]["spec"]["infrastructureRef"] = reference
    return found


def test_a_pool_of_capelin_replaces_machines_of_another_revision() -> None:
    before = (capelin_machine_pool(), capelin_pool())
    (same,) = effect(capelin_machine_pool(), capelin_pool(maxSurge=2), before=before).machines
    assert (same.kept, same.replaced) == (3, 0)
    changed = effect(capelin_machine_pool(replicas=4), capelin_pool(5, maxSurge=2), before=before)
    (found,) = changed.machines
    assert (found.kept, found.replaced, found.created, found.max_surge) == (0, 3, 1, 2)
    (upgraded,) = effect(capelin_machine_pool("v1.34.1"), capelin_pool(), before=before).machines
    assert (upgraded.replaced, upgraded.order) == (3, "CreateFirst")


@pytest.mark.parametrize(
    ("replicas", "expected"), [(3, (1, 3, 1, 2, 0)), (0, (1, 0, 0, 0, 1)), (1, (1, 1, 1, 0, 0))]
)
def test_machines_of_a_control_plane_of_another_size(replicas: int, expected: Any) -> None:
    member = machine("m", labels={"cluster.x-k8s.io/control-plane": ""})
    before = snapshot(member, control_plane(replicas=1))
    after = snapshot(member, control_plane(replicas=replicas))
    (found,) = compare(before, after, CLUSTER).machines
    counts = (found.before, found.after, found.kept, found.created, found.deleted)
    assert (counts, found.unknown) == (expected, "")
