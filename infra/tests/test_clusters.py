"""What clusters are created as and changed to."""

from typing import Any

import pytest
from capelin.api.capi import Cluster, ClusterClass, MachineDeployment, MachinePool
from capelin.errors import InvalidInputError
from capelin_infra.clusters import (
    ClusterOptions,
    ScaleOptions,
    check_upgrade,
    missing,
    new_cluster,
    scaling,
    upgrade,
)

SHAPE = ClusterOptions("demo", "default", "capelin", None, control_plane_replicas=1, workers=3)


def cluster_class(**workers: list[dict[str, str]]) -> ClusterClass:
    return ClusterClass.read({"metadata": {"name": "capelin"}, "spec": {"workers": workers}})


def cluster(**rest: Any) -> Cluster:
    return Cluster.read({"metadata": {"name": "demo", "generation": 2}, **rest})


def topology(**workers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"topology": {"version": "v1.33.0", "workers": workers}}}


@pytest.mark.parametrize(
    ("workers", "kind"),
    [
        ({"machinePools": [{"class": "small"}, {"class": "big"}]}, "machinePools"),
        ({"machineDeployments": [{"class": "small"}]}, "machineDeployments"),
        (
            {"machineDeployments": [{"class": "other"}], "machinePools": [{"class": "small"}]},
            "machinePools",
        ),
    ],
)
def test_a_new_cluster_has_workers_of_the_kind_that_its_class_has(
    workers: dict[str, list[dict[str, str]]], kind: str
) -> None:
    made = new_cluster(SHAPE, "v1.34.4", cluster_class(**workers))
    assert made["spec"]["topology"] == {
        "classRef": {"name": "capelin"},
        "version": "v1.34.4",
        "controlPlane": {"replicas": 1},
        "workers": {kind: [{"class": "small", "name": "workers", "replicas": 3}]},
    }


def test_a_class_without_workers_makes_a_cluster_only_without_workers() -> None:
    with pytest.raises(InvalidInputError, match="has no workers"):
        new_cluster(SHAPE, "v1.34.4", cluster_class())
    alone = ClusterOptions("demo", "default", "capelin", None, control_plane_replicas=1, workers=0)
    made = new_cluster(alone, "v1.34.4", cluster_class())
    assert "workers" not in made["spec"]["topology"]


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "-a", "a" * 64])
def test_a_name_that_kubernetes_would_not_take_is_refused(name: str) -> None:
    shape = ClusterOptions(name, "default", "capelin", None, control_plane_replicas=1, workers=0)
    with pytest.raises(InvalidInputError, match="cannot be the name of a cluster"):
        new_cluster(shape, "v1.34.4", cluster_class())


@pytest.mark.parametrize("after", ["v1.33.1", "v1.34.0", "v1.34.4"])
def test_upgrades_go_to_later_patches_and_the_next_minor(after: str) -> None:
    check_upgrade("v1.33.0", after)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("v1.33.0", "runs v1.33.0 already"),
        ("v1.32.9", "is older"),
        ("v1.35.0", "one minor version at a time. Upgrade to a v1.34 version first"),
        ("1.34.0", "is not a version"),
        ("v1.34", "is not a version"),
    ],
)
def test_upgrades_that_kubernetes_does_not_have_are_refused(after: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        check_upgrade("v1.33.0", after)


def test_an_upgrade_changes_the_version_and_nothing_else() -> None:
    assert upgrade("v1.34.0") == [
        {"op": "replace", "path": "/spec/topology/version", "value": "v1.34.0"}
    ]


def test_scaling_changes_the_pool_that_it_looked_up() -> None:
    pools = [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]
    found = scaling(
        cluster(**topology(machinePools=pools)), ScaleOptions(workers=5, pool="b", control_plane=3)
    )
    assert found == [
        {"op": "add", "path": "/spec/topology/controlPlane/replicas", "value": 3},
        {"op": "test", "path": "/spec/topology/workers/machinePools/1/name", "value": "b"},
        {"op": "add", "path": "/spec/topology/workers/machinePools/1/replicas", "value": 5},
    ]


@pytest.mark.parametrize("pool", [None, "c"])
def test_scaling_asks_which_pool_when_that_is_not_clear(pool: str | None) -> None:
    workers = topology(machinePools=[{"name": "a"}], machineDeployments=[{"name": "b"}])
    with pytest.raises(InvalidInputError, match="Its pools are: a, b"):
        scaling(cluster(**workers), ScaleOptions(workers=5, pool=pool, control_plane=None))


def test_a_cluster_without_a_class_is_left_to_kubectl() -> None:
    with pytest.raises(InvalidInputError, match="is not made from a ClusterClass"):
        scaling(cluster(spec={}), ScaleOptions(workers=5, pool=None, control_plane=None))


def condition(kind: str, status: str = "True", generation: int = 2) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": "Because",
        "message": "" if status == "True" else f"* {kind} is late",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
        "observedGeneration": generation,
    }


def seen(*conditions: dict[str, Any], **status: Any) -> Cluster:
    return cluster(**topology(), status={"conditions": list(conditions), **status})


GOOD = (condition("TopologyReconciled"), condition("Available"))


def pool(wanted: int, ready: int, *versions: str) -> MachinePool:
    template = {"spec": {"version": "v1.34.4"}}
    return MachinePool.read(
        {
            "metadata": {"name": "p"},
            "spec": {"replicas": wanted, "clusterName": "demo", "template": template},
            "status": {
                "readyReplicas": ready,
                "versions": [{"version": version, "replicas": 1} for version in versions],
            },
        }
    )


def test_a_cluster_is_ready_when_nothing_is_missing() -> None:
    replicas = {"desiredReplicas": 2, "replicas": 2, "upToDateReplicas": 2}
    assert (
        missing(seen(*GOOD, controlPlane=replicas, workers=replicas), [pool(3, 3, "v1.34.4")])
        is None
    )


@pytest.mark.parametrize(
    ("found", "workers", "what"),
    [
        (None, [], "it does not exist yet"),
        (seen(), [], "TopologyReconciled is not known yet"),
        (seen(condition("TopologyReconciled", "False")), [], "TopologyReconciled is late"),
        (seen(GOOD[0], condition("Available", "Unknown")), [], "Available is late"),
        # Cluster API has not looked at the latest spec yet.
        (seen(condition("TopologyReconciled", generation=1)), [], "TopologyReconciled is True"),
        (seen(*GOOD), [pool(3, 1)], "MachinePool p has 1 of 3 machines ready"),
        (
            seen(*GOOD),
            [pool(2, 2, "v1.33.13", "v1.34.4")],
            "MachinePool p still has machines of v1.33.13",
        ),
        (
            seen(*GOOD, workers={"desiredReplicas": 2, "replicas": 3, "upToDateReplicas": 1}),
            [],
            "workers: 1 of 2 are up to date",
        ),
        (
            seen(*GOOD, controlPlane={"desiredReplicas": 1, "replicas": 2, "upToDateReplicas": 1}),
            [],
            "control plane: 1 of 1 are up to date",
        ),
    ],
)
def test_what_a_cluster_lacks_is_said(
    found: Cluster | None, workers: list[MachinePool | MachineDeployment], what: str
) -> None:
    assert missing(found, workers) == what
