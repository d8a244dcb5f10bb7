"""Status and conditions of pools and machines."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pytest
from capelin.api import Condition, ObjectMeta
from capelin.api.capi import Cluster, MachinePool
from capelin.contract import ConditionSpec, update_conditions
from capelin.provider import (
    Endpoint,
    InfraClusterStatus,
    InfraMachineStatus,
    Initialization,
    MachineAddress,
)
from capelin_machine_pool.api import (
    CapelinCluster,
    CapelinMachine,
    CapelinMachinePool,
    ClusterSpec,
    MachinePoolSpec,
    MachinePoolStatus,
    MachineSpec,
)
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.desired import REVISION_LABEL, DesiredPool, RolloutLimits
from capelin_machine_pool.plan import cluster_waits_for
from capelin_machine_pool.status import (
    is_lost,
    is_ready,
    machine_conditions,
    pool_conditions,
    pool_status,
    provider_ids,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STARTING = InstanceStatus(running=False, message="starting")
RUNNING = InstanceStatus(running=True, addresses=(MachineAddress(type="Hostname", address="m"),))
LOST = InstanceStatus(running=True, lost=True, message="its Node was deleted")


def machine(name: str = "m", *observed: InstanceStatus) -> CapelinMachine:
    """A machine after the backend has reported these states, one after the other."""
    status = InfraMachineStatus()
    for state in observed:
        status.conditions = update_conditions(
            status.conditions, machine_conditions(state), now=NOW, generation=3
        )
        if state.running:
            status.initialization = Initialization(provisioned=True)
    return CapelinMachine(
        metadata=ObjectMeta(name=name, namespace="team", generation=3),
        spec=MachineSpec(provider_id=f"capelin:///team/demo/{name}", version="v1.33.13"),
        status=status,
    )


def pool() -> CapelinMachinePool:
    return CapelinMachinePool(
        metadata=ObjectMeta(name="pool", namespace="team", generation=2),
        spec=MachinePoolSpec(),
    )


def desired(replicas: int) -> DesiredPool:
    return DesiredPool(
        cluster="demo",
        machine_pool=MachinePool.read({"metadata": {"name": "workers"}}),
        limits=RolloutLimits(replicas),
        revision="r1",
    )


def marked(machines: Sequence[CapelinMachine], up_to_date: int | None) -> None:
    for member in machines[:up_to_date]:
        member.metadata.labels[REVISION_LABEL] = "r1"


def status_of(*machines: CapelinMachine) -> MachinePoolStatus:
    return pool_status(pool(), machines)


def conditions_of(
    *machines: CapelinMachine, replicas: int, up_to_date: int | None = None
) -> dict[str, tuple[str, str, str]]:
    marked(machines, up_to_date)
    return summary(pool_conditions(desired(replicas), machines))


def summary(specs: Iterable[ConditionSpec | Condition]) -> dict[str, tuple[str, str, str]]:
    return {spec.type: (spec.status, spec.reason, spec.message) for spec in specs}


def test_a_machine_with_a_deleted_node_is_not_ready_and_names_the_cause() -> None:
    lost = machine("m", RUNNING, LOST)
    assert summary(machine_conditions(LOST)) == {
        "Ready": ("False", "NotReady", "its Node was deleted"),
        "NodeRunning": ("False", "NodeDeleted", "its Node was deleted"),
    }
    assert (is_ready(lost), is_lost(lost)) == (False, True)
    assert (is_ready(machine("m", RUNNING)), is_lost(machine("m", RUNNING))) == (True, False)


def test_a_pool_publishes_addresses_and_the_platform_of_its_nodes() -> None:
    member = machine("m", RUNNING)
    assert member.status is not None
    member.status.addresses = list(RUNNING.addresses)
    status = status_of(member)
    assert status.dump()["instances"][0]["addresses"] == [{"type": "Hostname", "address": "m"}]
    assert status.dump()["nodeInfo"] == {"architecture": "amd64", "operatingSystem": "linux"}
    assert status_of().node_info == status.node_info, "also if the pool is empty"


def test_a_machine_that_starts_is_not_ready() -> None:
    assert summary(machine_conditions(STARTING))["NodeRunning"] == ("False", "Starting", "starting")
    assert not is_ready(machine("m", STARTING))


def test_the_sorted_list_contains_only_machines_with_a_node() -> None:
    machines = [
        machine("c", RUNNING),
        machine("starting", STARTING),
        machine("a", STARTING, RUNNING),
        machine("lost", RUNNING, LOST),
        machine("new"),
        machine("b", RUNNING),
    ]
    expected = [f"capelin:///team/demo/{name}" for name in ("a", "b", "c")]
    assert provider_ids(machines) == expected
    assert provider_ids(machines[::-1]) == expected


def test_a_pool_counts_the_machines_it_lists() -> None:
    machines = [machine("a", RUNNING), machine("b", STARTING), machine("c", RUNNING, LOST)]
    status = status_of(*machines)
    assert status.replicas == len(provider_ids(machines)) == 1


@pytest.mark.parametrize("machines", [[], [machine("a", STARTING)], [machine("a", RUNNING, LOST)]])
def test_pool_stays_provisioned(
    machines: list[CapelinMachine],
) -> None:
    status = status_of(*machines)
    assert (status.initialization.provisioned, status.ready) == (True, True)
    assert status.infrastructure_machine_kind == "CapelinMachine"


def test_conditions_count_the_ready_and_outdated_machines() -> None:
    conditions = conditions_of(
        machine("a", RUNNING), machine("b", STARTING), replicas=2, up_to_date=1
    )
    assert conditions["Ready"] == ("False", "NotReady", "1 of 2 machines are ready")
    assert conditions["ReplicasReady"] == (
        "False",
        "NotReplicasReady",
        "1 of 2 machines are ready",
    )
    assert conditions["UpToDate"] == ("False", "NotUpToDate", "1 machines are outdated")


def test_conditions_of_a_complete_pool_are_true() -> None:
    conditions = conditions_of(machine("a", RUNNING), replicas=1)
    assert {type_: values[0] for type_, values in conditions.items()} == {
        "Ready": "True",
        "ReplicasReady": "True",
        "UpToDate": "True",
    }


def test_a_pool_with_zero_replicas_is_ready() -> None:
    assert conditions_of(replicas=0)["Ready"][0] == "True"


def test_a_pool_lists_its_machines_by_name_for_people() -> None:
    status = status_of(machine("b", RUNNING), machine("a", STARTING))
    assert [(one.instance_name, one.version, one.ready) for one in status.instances] == [
        ("a", "v1.33.13", False),
        ("b", "v1.33.13", True),
    ]


def test_a_pool_reports_the_capacity_of_a_machine_to_the_autoscaler() -> None:
    assert {name: str(size) for name, size in status_of().capacity.items()} == {
        "cpu": "4",
        "memory": "16Gi",
        "pods": "110",
    }


def test_a_pool_of_ten_thousand_machines_lists_a_thousand_for_people() -> None:
    machines = [machine(f"m{number:05}", RUNNING) for number in reversed(range(1_001))]
    status = status_of(*machines)
    assert [one.instance_name for one in status.instances] == [f"m{n:05}" for n in range(1_000)]
    assert status.replicas == 1_001


def test_no_status_has_fields_for_a_permanent_failure() -> None:
    for kind in (MachinePoolStatus, InfraMachineStatus, InfraClusterStatus):
        assert not {"failure_reason", "failure_message"} & set(kind.model_fields)


def infrastructure(*, own: str = "", provisioned: bool = False) -> CapelinCluster:
    initialization = Initialization(provisioned=provisioned)
    return CapelinCluster(
        metadata=ObjectMeta(name="demo", namespace="team", generation=1),
        spec=ClusterSpec(
            control_plane_endpoint=Endpoint(host=own, port=6443) if own else None,
        ),
        status=InfraClusterStatus(initialization=initialization),
    )


@pytest.mark.parametrize(
    ("made", "endpoint", "reason"),
    [
        (infrastructure(), "api", None),
        (infrastructure(own="api"), "", None),
        (infrastructure(), "", "WaitingForControlPlaneEndpoint"),
        (infrastructure(provisioned=True), "", None),
    ],
    ids=["the control plane's", "the user's", "none", "none any more"],
)
def test_waits_for_endpoint_once(made: CapelinCluster, endpoint: str, reason: str | None) -> None:
    cluster = Cluster.read({"spec": {"controlPlaneEndpoint": {"host": endpoint, "port": 6443}}})
    waiting = cluster_waits_for(made, cluster)
    assert (waiting and waiting.reason) == reason


@pytest.mark.parametrize(
    ("kind", "initialized", "reason"),
    [
        ("CapelinControlPlane", False, "WaitingForControlPlaneInitialized"),
        ("CapelinControlPlane", True, None),
        ("KubeadmControlPlane", False, None),
        (None, False, "WaitingForControlPlaneInitialized"),
    ],
)
def test_waits_until_a_hosted_control_plane_answers_at_the_users_endpoint(
    kind: str | None, initialized: bool, reason: str | None
) -> None:
    """Core names the control plane of a ClusterClass later than it creates the infrastructure."""
    cluster = Cluster.read(
        {
            "spec": {
                "controlPlaneEndpoint": {"host": "api", "port": 6443},
                "topology": {"classRef": {"name": "demo"}, "version": "v1.34.4"},
                **({"controlPlaneRef": {"kind": kind, "name": "demo"}} if kind else {}),
            },
            "status": {"initialization": {"controlPlaneInitialized": initialized}},
        }
    )
    waiting = cluster_waits_for(infrastructure(), cluster)
    assert (waiting and waiting.reason) == reason
