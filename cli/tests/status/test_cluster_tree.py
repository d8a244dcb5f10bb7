"""The tree of a cluster."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_cli.status.cluster_tree import ClusterGraph, ClusterObject, Node, build_tree, state_of


def shown(kind: str, name: str, **rest: Any) -> ClusterObject:
    metadata = {"name": name, "labels": rest.pop("labels", {}), **rest.pop("metadata", {})}
    return ClusterObject.read({"apiVersion": "x/v1", "kind": kind, "metadata": metadata, **rest})


def cluster(name: str, **rest: Any) -> Cluster:
    return Cluster.read({"metadata": {"name": name, **rest.pop("metadata", {})}, **rest})


def condition(kind: str, status: str, message: str = "") -> dict[str, Any]:
    changed = {"reason": "Because", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    return {"type": kind, "status": status, "message": message, **changed}


def ready(status: str = "True", kind: str = "Ready", message: str = "") -> dict[str, Any]:
    return {"conditions": [condition(kind, status, message)]}


def machine(name: str, labels: dict[str, str], status: str = "True") -> ClusterObject:
    return shown(
        "Machine",
        name,
        labels=labels,
        spec={"version": "v1.34.0"},
        status=ready(status, message="* node is not ready"),
    )


def node(parts: ClusterGraph) -> dict[str, Any]:
    return build_tree(parts).dump()


CLUSTER = cluster("demo", spec={"topology": {"version": "v1.34.0"}}, status=ready(kind="Available"))


def test_the_tree_of_a_cluster_contains_all_its_objects() -> None:
    control_plane = shown(
        "KubeadmControlPlane",
        "cp",
        spec={"replicas": 1, "version": "v1.34.0"},
        status={**ready(kind="Available"), "readyReplicas": 1},
    )
    pool = shown(
        "MachinePool",
        "p",
        spec={"replicas": 3, "template": {"spec": {"version": "v1.34.0"}}},
        status={**ready("False", "Available", "Replicas: 2 of 3"), "readyReplicas": 2},
    )
    infrastructure = shown("DevCluster", "i", status={"initialization": {"provisioned": True}})
    in_pool = {"cluster.x-k8s.io/pool-name": "p"}
    machines = [
        machine("a", {"cluster.x-k8s.io/control-plane": ""}),
        machine("b", in_pool),
        machine("c", in_pool),
        machine("d", in_pool, status="False"),
    ]
    assert node(ClusterGraph(CLUSTER, infrastructure, control_plane, [pool], machines)) == {
        "object": "Cluster/demo",
        "state": "good",
        "version": "v1.34.0",
        "children": [
            {"object": "DevCluster/i", "state": "good"},
            {
                "object": "KubeadmControlPlane/cp",
                "state": "good",
                "replicas": "1/1",
                "version": "v1.34.0",
                "children": [{"object": "Machine/a", "state": "good", "version": "v1.34.0"}],
            },
            {
                "object": "Workers",
                "state": "bad",
                "children": [
                    {
                        "object": "MachinePool/p",
                        "state": "bad",
                        "replicas": "2/3",
                        "version": "v1.34.0",
                        "message": "Replicas: 2 of 3",
                        "children": [
                            {"object": "2 Machines", "state": "good", "version": "v1.34.0"},
                            {
                                "object": "Machine/d",
                                "state": "bad",
                                "version": "v1.34.0",
                                "message": "node is not ready",
                            },
                        ],
                    }
                ],
            },
        ],
    }


def test_the_tree_of_a_new_cluster_contains_only_the_cluster() -> None:
    bare = cluster("new")
    assert build_tree(ClusterGraph(bare)) == Node("Cluster/new")


def test_a_cluster_outside_the_default_namespace_shows_its_namespace() -> None:
    elsewhere = cluster("new", metadata={"namespace": "team"})
    tree = build_tree(ClusterGraph(elsewhere))
    assert (tree.title, tree.namespace) == ("Cluster/new", "team")
    here = cluster("new", metadata={"namespace": "default"})
    assert build_tree(ClusterGraph(here)) == Node("Cluster/new")


def test_a_deleting_cluster_is_shown_with_this_state_regardless_of_its_conditions() -> None:
    going = cluster(
        "old",
        metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"},
        status=ready(kind="Available"),
    )
    assert node(ClusterGraph(going)) == {
        "object": "Cluster/old",
        "state": "waiting",
        "message": "is being deleted",
    }


def test_a_blocked_deletion_names_the_hook() -> None:
    message = "Cluster is deleting. Following hooks are blocking delete: BeforeClusterDelete: no"
    held = cluster(
        "old",
        metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"},
        status=ready("False", "TopologyReconciled", message),
    )
    tree = build_tree(ClusterGraph(held))
    assert (tree.state, tree.message) == ("waiting", "deletion waits for BeforeClusterDelete")


def test_the_tree_contains_providers_of_the_old_contract() -> None:
    old = shown("OldCluster", "o", status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    found = node(ClusterGraph(CLUSTER, old))
    assert found["children"] == [{"object": "OldCluster/o", "state": "waiting"}]


@pytest.mark.parametrize(("ready_replicas", "state"), [(3, "good"), (2, "waiting")])
def test_machine_pool_without_a_condition(ready_replicas: int, state: str) -> None:
    pool = shown("MachinePool", "p", spec={"replicas": 3}, status={"readyReplicas": ready_replicas})
    found = build_tree(ClusterGraph(cluster("c"), workers=[pool]))
    assert [each.state for each in found.children] == [state]


def control_plane(*conditions: dict[str, Any], **status: Any) -> ClusterObject:
    return shown(
        "CapelinControlPlane",
        "cp",
        spec={"replicas": 2, "version": "v1.35.0"},
        status={
            "conditions": [{"type": "Available", "status": "True"}, *conditions],
            "readyReplicas": 2,
            **status,
        },
    )


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (control_plane(readyReplicas=1), "1 of 2 replicas are ready"),
        (control_plane(version="v1.34.4"), "runs v1.34.4, not v1.35.0 yet"),
        (
            control_plane(
                {"type": "RollingOut", "status": "True", "message": "v1.35.0 is not known"}
            ),
            "v1.35.0 is not known",
        ),
        (
            shown(
                "Cluster",
                "demo",
                status=ready(
                    "False",
                    "TopologyReconciled",
                    "Cluster is upgrading to v1.35.0\n  * Following hooks are "
                    "blocking upgrade: BeforeClusterUpgrade: the storage is degraded\n  * "
                    "CapelinControlPlane pending upgrade to version v1.35.0",
                ),
            ),
            # The row below has the reason.
            "upgrade to v1.35.0 waits for BeforeClusterUpgrade",
        ),
    ],
)
def test_outdated_object_is_not_green(obj: ClusterObject, message: str) -> None:
    assert state_of(obj) == ("waiting", message)


def test_a_cluster_is_good_if_all_its_objects_are() -> None:
    good = control_plane(version="v1.35.0")
    assert build_tree(ClusterGraph(CLUSTER, None, good)).is_good
    bad = control_plane(readyReplicas=1)
    assert not build_tree(ClusterGraph(CLUSTER, None, bad)).is_good


def test_a_sleeping_cluster_is_not_broken() -> None:
    available = {"type": "Available", "status": "False", "reason": "Asleep", "message": "it sleeps"}
    control_plane = shown("CapelinControlPlane", "cp", status={"conditions": [available]})
    unavailable = cluster("demo", status=ready("False", "Available", "no connection"))
    silent = [machine("a", {}, status="Unknown")]
    tree = build_tree(ClusterGraph(unavailable, None, control_plane, [], silent))
    assert tree == Node("Cluster/demo", "asleep", message="it sleeps")
    assert tree.is_good
    deleted = {"deletionTimestamp": "2026-01-31T03:00:00Z"}
    going = cluster("demo", metadata=deleted, status=unavailable.status.dump())
    assert not build_tree(ClusterGraph(going, None, control_plane, [], silent)).is_good
