"""Whether Cluster API has finished its work."""

from typing import Any

import pytest
from capelin_cli.plan.settling import unsettled

from .objects import cluster, deployment, machine, snapshot


def topology(status: str, observed: int = 1) -> Any:
    found = cluster(topology={"version": "v1.33.1"})
    found["status"] = {
        "conditions": [
            {
                "type": "TopologyReconciled",
                "status": status,
                "reason": "ClusterUpgrading",
                "message": "md is upgrading",
                "observedGeneration": observed,
            }
        ]
    }
    return found


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (topology("True"), []),
        (topology("False"), ["Cluster prod: md is upgrading"]),
        (topology("True", 0), ["Cluster prod: Cluster API has not read its topology"]),
        (
            cluster(topology={"version": "v1.33.1"}),
            ["Cluster prod: Cluster API has not read its topology"],
        ),
        (cluster(), []),
    ],
)
def test_clusters(found: Any, reason: list[str]) -> None:
    assert unsettled(snapshot(found)) == reason


def workers(up_to_date: int, **spec: Any) -> Any:
    found = deployment(**spec)
    found["status"] = {
        "observedGeneration": 1,
        "replicas": 3,
        "availableReplicas": 3,
        "upToDateReplicas": up_to_date,
    }
    return found


def test_machine_deployments() -> None:
    assert unsettled(snapshot(workers(3))) == []
    assert unsettled(snapshot(workers(1))) == [
        "MachineDeployment prod-md-x7: upToDateReplicas is 1, desired are 3"
    ]
    on_delete = {"rollout": {"strategy": {"type": "OnDelete"}}}
    assert unsettled(snapshot(workers(1, **on_delete))) == []
    assert unsettled(snapshot(deployment())) == [
        "MachineDeployment prod-md-x7: Cluster API has not read it"
    ]


def test_machines() -> None:
    running = machine("a")
    running["status"] = {"phase": "Running"}
    assert unsettled(snapshot(running)) == []
    assert unsettled(snapshot(machine("a"))) == ["Machine a: it does not run"]
    deleted = machine("a", deletionTimestamp="2030-01-01T00:00:00Z")
    assert unsettled(snapshot(deleted)) == ["Machine a: its deletion has not finished"]
