"""The readiness of a cluster, and the reason why it is not ready."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_cli.status.cluster_tree import ClusterGraph, ClusterObject
from capelin_cli.status.readiness import not_ready_reason

TOPOLOGY = {"topology": {"version": "v1.34.4", "controlPlane": {"replicas": 3}}}


def control_plane(
    desired: int, ready: int, *conditions: dict[str, Any], **status: Any
) -> ClusterObject:
    return ClusterObject.read(
        {
            "kind": "CapelinControlPlane",
            "metadata": {"name": "demo"},
            "spec": {"replicas": desired, "version": "v1.34.4"},
            "status": {
                "replicas": desired,
                "readyReplicas": ready,
                "upToDateReplicas": desired,
                "version": "v1.34.4",
                "conditions": list(conditions),
                **status,
            },
        }
    )


def condition(kind: str, status: str = "True", generation: int = 2) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": "Because",
        "message": "" if status == "True" else f"* {kind} is late",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
        "observedGeneration": generation,
    }


def observed(*conditions: dict[str, Any], **status: Any) -> Cluster:
    return Cluster.read(
        {
            "metadata": {"name": "demo", "generation": 2},
            "spec": TOPOLOGY,
            "status": {"conditions": list(conditions), **status},
        }
    )


GOOD = (condition("TopologyReconciled"), condition("Available"))


def pool(desired: int, ready: int, *versions: str) -> ClusterObject:
    template = {"spec": {"version": "v1.34.4"}}
    return ClusterObject.read(
        {
            "kind": "MachinePool",
            "metadata": {"name": "p"},
            "spec": {"replicas": desired, "clusterName": "demo", "template": template},
            "status": {
                "readyReplicas": ready,
                "versions": [{"version": version, "replicas": 1} for version in versions],
            },
        }
    )


def test_a_cluster_is_ready_when_nothing_is_missing() -> None:
    replicas = {"desiredReplicas": 2, "replicas": 2, "upToDateReplicas": 2}
    cluster = observed(*GOOD, controlPlane=replicas, workers=replicas)
    ready = ClusterGraph(cluster, None, control_plane(3, 3), [pool(3, 3, "v1.34.4")])
    assert not_ready_reason(ready) is None


@pytest.mark.parametrize(
    ("found", "workers", "what"),
    [
        (observed(), [], "TopologyReconciled is not known yet"),
        (observed(condition("TopologyReconciled", "False")), [], "TopologyReconciled is late"),
        (observed(GOOD[0], condition("Available", "Unknown")), [], "Available is late"),
        # Cluster API has not observed the latest spec yet.
        (
            observed(condition("TopologyReconciled", generation=1)),
            [],
            "TopologyReconciled is not known for the latest change yet",
        ),
        (observed(*GOOD), [pool(3, 1)], "MachinePool p has 1 of 3 machines ready"),
        (
            observed(*GOOD),
            [pool(2, 2, "v1.33.13", "v1.34.4")],
            "MachinePool p still has machines of v1.33.13",
        ),
        (
            observed(*GOOD, workers={"desiredReplicas": 2, "replicas": 3, "upToDateReplicas": 1}),
            [],
            "workers: 1 of 2 are up to date",
        ),
        (
            observed(
                *GOOD, controlPlane={"desiredReplicas": 1, "replicas": 2, "upToDateReplicas": 1}
            ),
            [],
            "control plane: 1 of 2 are still to be removed",
        ),
        (
            observed(*GOOD, workers={"desiredReplicas": 3, "replicas": 2, "upToDateReplicas": 3}),
            [],
            "workers: 2 of 3 exist",
        ),
        (
            observed(*GOOD, workers={"desiredReplicas": 3, "upToDateReplicas": 3}),
            [],
            "workers: 0 of 3 exist",
        ),
    ],
)
def test_an_unready_cluster_has_a_reason(
    found: Cluster, workers: list[ClusterObject], what: str
) -> None:
    assert not_ready_reason(ClusterGraph(found, workers=workers)) == what


def test_a_cluster_that_does_not_exist_is_not_ready() -> None:
    assert not_ready_reason(None) == "it does not exist yet"


def test_a_scaling_control_plane_is_not_ready_although_the_cluster_is_available() -> None:
    cluster = observed(*GOOD)
    for replicas, ready, reason in (
        (1, 1, "control plane: scaling to 3 replicas has not begun"),
        (3, 2, "control plane: 2 of 3 replicas are ready"),
    ):
        found = ClusterGraph(cluster, None, control_plane(replicas, ready))
        assert not_ready_reason(found) == reason


def test_a_control_plane_is_done_when_every_replica_has_the_version() -> None:
    cluster = observed(*GOOD)
    for status, reason in (
        ({"upToDateReplicas": 1}, "control plane: 1 of 3 replicas are up to date"),
        ({"version": "v1.33.13"}, "control plane: runs v1.33.13, not v1.34.4 yet"),
        ({"replicas": 4}, "control plane: 1 of 4 replicas are still to be removed"),
    ):
        found = ClusterGraph(cluster, None, control_plane(3, 3, **status))
        assert not_ready_reason(found) == reason


def test_a_cluster_without_infrastructure_is_ready_although_core_does_not_know() -> None:
    parts = ("RemoteConnectionProbe", "ControlPlaneAvailable", "WorkersAvailable")
    found = observed(condition("Available", "Unknown"), *map(condition, parts))
    found.spec.topology = None
    assert not_ready_reason(ClusterGraph(found, None, control_plane(3, 3))) is None
    found.status.conditions.pop()
    reason = not_ready_reason(ClusterGraph(found, None, control_plane(3, 3)))
    assert reason == "WorkersAvailable is not known yet"


def test_the_reason_is_the_deepest_cause() -> None:
    rolling = {
        "type": "RollingOut",
        "status": "True",
        "reason": "VersionNotAvailable",
        "message": "v1.35.0 is not a Kubernetes version that Capelin can get",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    found = ClusterGraph(observed(*GOOD), None, control_plane(3, 3, rolling, version="v1.33.13"))
    assert not_ready_reason(found) == (
        "control plane: runs v1.33.13, not v1.34.4 yet "
        "(v1.35.0 is not a Kubernetes version that Capelin can get)"
    )
