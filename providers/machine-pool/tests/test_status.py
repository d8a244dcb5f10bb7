"""What is said of pools, machines and what is around them."""

from datetime import UTC, datetime, timedelta

import pytest
from capelin.api import Condition, ObjectMeta
from capelin.api.views.capi import Cluster, MachinePool
from capelin.contract.conditions import ConditionSpec
from capelin.contract.pausing import paused
from capelin_machine_pool.api import (
    Address,
    CapelinCluster,
    CapelinMachine,
    CapelinMachinePool,
    ClusterSpec,
    ClusterStatus,
    Endpoint,
    FailureDomain,
    Initialization,
    MachinePoolSpec,
    MachinePoolStatus,
    MachineSpec,
    MachineStatus,
)
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.desired import REVISION_LABEL, DesiredPool, RolloutLimits
from capelin_machine_pool.status import (
    cluster_status,
    is_lost,
    is_ready,
    machine_status,
    merge_conditions,
    pool_status,
    provider_ids,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
DOMAINS = [FailureDomain(name="east", control_plane=True), FailureDomain(name="west")]
NOT_PAUSED = ConditionSpec("Paused", "False", "NotPaused")
STARTING = InstanceStatus(running=False, message="starting")
RUNNING = InstanceStatus(running=True, addresses=(Address(type="Hostname", address="m"),))
LOST = InstanceStatus(running=True, lost=True, message="its Node was deleted")


def machine(name: str = "m", *seen: InstanceStatus) -> CapelinMachine:
    """A machine as it is after the backend has told these things of it, one after the other."""
    made = CapelinMachine(
        metadata=ObjectMeta(name=name, namespace="team", generation=3),
        spec=MachineSpec(provider_id=f"capelin:///team/demo/{name}", version="v1.33.13"),
    )
    for instance in seen:
        made.status = status_of(made, instance)
    return made


def status_of(
    one: CapelinMachine, instance: InstanceStatus, *, now: datetime = NOW, domain: str | None = None
) -> MachineStatus:
    return machine_status(one, instance, failure_domain=domain, paused=NOT_PAUSED, now=now)


def pool(status: MachinePoolStatus | None = None) -> CapelinMachinePool:
    return CapelinMachinePool(
        metadata=ObjectMeta(name="pool", namespace="team", generation=2),
        spec=MachinePoolSpec(),
        status=status,
    )


def desired(replicas: int) -> DesiredPool:
    return DesiredPool(
        cluster="demo",
        machine_pool=MachinePool.read({"metadata": {"name": "workers"}}),
        limits=RolloutLimits(replicas),
        revision="r1",
    )


def pool_of(
    *machines: CapelinMachine, replicas: int, up_to_date: int | None = None
) -> MachinePoolStatus:
    for member in machines[:up_to_date]:
        member.metadata.labels[REVISION_LABEL] = "r1"
    return pool_status(pool(), desired(replicas), machines, paused=NOT_PAUSED, now=NOW)


def spoken(conditions: list[Condition]) -> dict[str, tuple[str, str, str]]:
    return {one.type: (one.status, one.reason, one.message) for one in conditions}


def test_a_machine_is_provisioned_in_both_generations_words_as_soon_as_it_runs() -> None:
    before, after = machine("m", STARTING).status, machine("m", STARTING, RUNNING).status
    assert before is not None
    assert after is not None
    assert (before.initialization.provisioned, before.ready) == (False, False)
    assert (after.initialization.provisioned, after.ready) == (True, True)


@pytest.mark.parametrize("instance", [STARTING, LOST])
def test_a_machine_that_was_provisioned_stays_so_and_is_not_ready(instance: InstanceStatus) -> None:
    one = machine("m", RUNNING, instance)
    assert one.status is not None
    assert (one.status.initialization.provisioned, one.status.ready) == (True, True)
    assert spoken(one.status.conditions)["Ready"] == ("False", "NotReady", instance.message)
    assert not is_ready(one)


def test_a_lost_machine_keeps_its_addresses_and_says_what_was_lost() -> None:
    one = machine("m", RUNNING, LOST)
    assert one.status is not None
    assert [address.address for address in one.status.addresses] == ["m"]
    assert spoken(one.status.conditions)["NodeRunning"] == (
        "False",
        "NodeDeleted",
        "its Node was deleted",
    )
    assert is_lost(one)
    assert not is_lost(machine("m", RUNNING))


def test_a_machine_says_where_it_is() -> None:
    assert status_of(machine(), RUNNING, domain="east").failure_domain == "east"


def test_a_machine_that_has_not_changed_says_the_same_later() -> None:
    one = machine("m", STARTING, RUNNING)
    assert status_of(one, RUNNING, now=LATER) == one.status


def test_only_machines_that_became_nodes_and_still_are_stand_in_the_sorted_list() -> None:
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
    status = pool_of(*machines, replicas=3)
    assert status.replicas == len(provider_ids(machines)) == 1


@pytest.mark.parametrize("machines", [[], [machine("a", STARTING)], [machine("a", RUNNING, LOST)]])
def test_a_pool_is_provisioned_whatever_becomes_of_its_machines(
    machines: list[CapelinMachine],
) -> None:
    status = pool_of(*machines, replicas=3)
    assert (status.initialization.provisioned, status.ready) == (True, True)
    assert status.infrastructure_machine_kind == "CapelinMachine"


def test_a_pool_says_how_many_of_its_machines_are_ready_and_outdated() -> None:
    status = pool_of(machine("a", RUNNING), machine("b", STARTING), replicas=2, up_to_date=1)
    conditions = spoken(status.conditions)
    assert conditions["Ready"] == ("False", "NotReady", "1 of 2 machines are ready")
    assert conditions["ReplicasReady"] == (
        "False",
        "NotReplicasReady",
        "1 of 2 machines are ready",
    )
    assert conditions["UpToDate"] == ("False", "NotUpToDate", "1 machines are outdated")


def test_a_pool_as_wanted_says_so() -> None:
    conditions = spoken(pool_of(machine("a", RUNNING), replicas=1).conditions)
    assert {type_: said_of[0] for type_, said_of in conditions.items()} == {
        "Ready": "True",
        "ReplicasReady": "True",
        "UpToDate": "True",
        "Paused": "False",
        "Deleting": "False",
    }


def test_an_empty_pool_that_is_to_be_empty_is_ready() -> None:
    assert spoken(pool_of(replicas=0).conditions)["Ready"][0] == "True"


def test_a_pool_lists_its_machines_by_name_for_people() -> None:
    status = pool_of(machine("b", RUNNING), machine("a", STARTING), replicas=2)
    assert [(one.instance_name, one.version, one.ready) for one in status.instances] == [
        ("a", "v1.33.13", False),
        ("b", "v1.33.13", True),
    ]


def test_a_pool_tells_the_autoscaler_what_a_machine_has() -> None:
    assert {name: str(size) for name, size in pool_of(replicas=0).capacity.items()} == {
        "cpu": "4",
        "memory": "16Gi",
        "pods": "110",
    }


def test_a_pool_of_ten_thousand_machines_lists_a_thousand_for_people() -> None:
    machines = [machine(f"m{number:05}", RUNNING) for number in reversed(range(1_001))]
    status = pool_of(*machines, replicas=1_001)
    assert [one.instance_name for one in status.instances] == [f"m{n:05}" for n in range(1_000)]
    assert status.replicas == 1_001


def test_no_status_can_say_that_something_failed_for_good() -> None:
    for kind in (MachinePoolStatus, MachineStatus):
        assert not {"failure_reason", "failure_message"} & set(kind.model_fields)


def around(
    endpoint: str = "", *, own: str = "", before: ClusterStatus | None = None
) -> ClusterStatus:
    infrastructure = CapelinCluster(
        metadata=ObjectMeta(name="demo", namespace="team", generation=1),
        spec=ClusterSpec(
            failure_domains=DOMAINS,
            control_plane_endpoint=Endpoint(host=own, port=6443) if own else None,
        ),
        status=before,
    )
    cluster = Cluster.read({"spec": {"controlPlaneEndpoint": {"host": endpoint, "port": 6443}}})
    return cluster_status(infrastructure, cluster, NOT_PAUSED, NOW)


@pytest.mark.parametrize("status", [around("api"), around(own="api")])
def test_what_is_around_machines_is_provisioned_with_its_failure_domains(
    status: ClusterStatus,
) -> None:
    assert (status.initialization.provisioned, status.ready) == (True, True)
    assert status.failure_domains == DOMAINS
    assert spoken(status.conditions)["Ready"][0] == "True"


def test_without_an_endpoint_core_would_connect_in_vain_so_it_is_told_to_wait() -> None:
    status = around()
    assert (status.initialization.provisioned, status.ready) == (False, False)
    assert spoken(status.conditions)["Ready"][:2] == ("False", "WaitingForControlPlaneEndpoint")


def test_what_was_provisioned_stays_so_whatever_becomes_of_the_endpoint() -> None:
    assert around(before=around("api")).ready


def test_pausing_changes_one_condition_and_leaves_the_others_their_times() -> None:
    before = pool(
        MachinePoolStatus(
            conditions=pool_of(machine("a", RUNNING), replicas=1).conditions,
            initialization=Initialization(provisioned=True),
        )
    )
    before.metadata.annotations["cluster.x-k8s.io/paused"] = ""
    after = merge_conditions(before, paused(before, None), now=LATER)
    times = {one.type: one.last_transition_time for one in after}
    assert spoken(after)["Paused"][:2] == ("True", "Paused")
    assert times.pop("Paused") == LATER
    assert times == dict.fromkeys(("Ready", "ReplicasReady", "UpToDate", "Deleting"), NOW)
