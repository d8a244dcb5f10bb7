"""The decisions about pools and machines."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api import ObjectMeta, OwnerReference
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.contract import POOL_NAME_LABEL, reference_to
from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    MachinePoolSpec,
    MachineSpec,
)
from capelin_machine_pool.desired import (
    REVISION_LABEL,
    DeletePolicy,
    DesiredPool,
    RolloutLimits,
    rollout_limits,
)
from capelin_machine_pool.members import MachineInfo, PoolMember
from capelin_machine_pool.plan import (
    ObservedPool,
    PoolChanges,
    PoolStep,
    is_counted,
    is_settled,
    machine_info,
    machine_waits_for,
    misses_pause,
    misses_sleep,
    needs_metadata,
    needs_owner,
    needs_remediation,
    next_changes,
    next_pool_step,
    step_events,
)
from hypothesis import event, given
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICIES: tuple[DeletePolicy, ...] = ("Oldest", "Newest", "Random")


def member(
    name: str,
    *,
    up_to_date: bool = True,
    ready: bool = True,
    age: int = 0,
    deleting: bool = False,
    has_machine: bool = True,
    delete_first: bool = False,
    lost: bool = False,
) -> PoolMember:
    return PoolMember(
        name=name,
        up_to_date=up_to_date,
        ready=ready and not lost,
        created=START - timedelta(hours=age),
        deleting=deleting,
        has_machine=has_machine,
        delete_first=delete_first,
        lost=lost,
    )


def several(count: int, prefix: str = "m", *, up_to_date: bool = True) -> list[PoolMember]:
    return [member(f"{prefix}{index}", up_to_date=up_to_date) for index in range(count)]


def removed(members: list[PoolMember], replicas: int, policy: DeletePolicy = "Oldest") -> list[str]:
    return list(next_changes(members, RolloutLimits(replicas, policy=policy)).delete)


OFTEN, RARELY = st.sampled_from([True] * 5 + [False]), st.sampled_from([False] * 5 + [True])


@st.composite
def pools(draw: st.DrawFn) -> list[PoolMember]:
    """Ready machines of both revisions, with a few in any other state."""
    return [
        member(
            f"m{index}",
            up_to_date=draw(st.booleans()),
            ready=draw(OFTEN),
            age=draw(st.integers(0, 3)),
            deleting=draw(RARELY),
            has_machine=draw(OFTEN),
            delete_first=draw(RARELY),
            lost=draw(RARELY),
        )
        for index in range(draw(st.integers(0, 12)))
    ]


@st.composite
def wants(draw: st.DrawFn) -> RolloutLimits:
    portions = st.integers(0, 4) | st.sampled_from(("0%", "25%", "50%", "100%"))
    return rollout_limits(
        draw(st.integers(0, 8)), draw(portions), draw(portions), draw(st.sampled_from(POLICIES))
    )


def alive(members: list[PoolMember]) -> list[PoolMember]:
    return [one for one in members if not one.deleting and not one.lost]


def after(members: list[PoolMember], changes: PoolChanges, turn: int) -> list[PoolMember]:
    """The members after core deletes machines and the others become ready."""
    kept = [one for one in members if one.name not in changes.delete and not one.deleting]
    created = [member(f"n{turn}-{index}") for index in range(changes.create)]
    return [
        replace(one, has_machine=True, ready=one.up_to_date and not one.lost) for one in kept
    ] + created


@given(pools(), wants())
def test_deletions_respect_max_unavailable(
    members: list[PoolMember], limits: RolloutLimits
) -> None:
    gone = next_changes(members, limits).delete
    ready = [one for one in alive(members) if one.ready]
    left = [one for one in ready if one.name not in gone]
    event(f"deletes ready machines: {len(left) < len(ready)}")
    assert len(left) >= min(len(ready), limits.replicas - limits.unavailable)


@given(pools(), wants())
def test_creations_respect_max_surge(members: list[PoolMember], limits: RolloutLimits) -> None:
    changes = next_changes(members, limits)
    left = [one for one in alive(members) if one.name not in changes.delete]
    event(f"creates machines: {changes.create > 0}")
    if changes.create:
        assert len(left) + changes.create <= limits.replicas + limits.surge


@given(pools(), wants())
def test_unready_machines_are_replaced(members: list[PoolMember], limits: RolloutLimits) -> None:
    gone = next_changes(members, limits).delete
    replaces = any(not one.up_to_date for one in alive(members) if one.name in gone)
    event(f"deletes outdated machines: {replaces}")
    if replaces:
        left = [
            one
            for one in alive(members)
            if one.name not in gone and (one.ready or not one.up_to_date)
        ]
        surplus = sum(one.up_to_date for one in alive(members)) - limits.replicas
        assert len(left) >= limits.replicas - limits.unavailable or surplus > 0


@given(pools(), wants())
def test_steps_end_with_the_desired_pool(members: list[PoolMember], limits: RolloutLimits) -> None:
    for turn in range(60):
        changes = next_changes(members, limits)
        following = after(members, changes, turn)
        if changes == PoolChanges() and following == members:
            break
        members = following
    assert len(members) == limits.replicas
    assert all(one.up_to_date and not one.lost for one in members)


@given(pools(), wants())
def test_removal_waits_for_core(members: list[PoolMember], limits: RolloutLimits) -> None:
    gone = next_changes(members, limits).delete
    assert all(one.has_machine and not one.deleting for one in members if one.name in gone)


@given(pools(), wants())
def test_a_step_never_deletes_current_machines_while_it_creates_others(
    members: list[PoolMember], limits: RolloutLimits
) -> None:
    changes = next_changes(members, limits)
    gone = [one for one in alive(members) if one.name in changes.delete and one.up_to_date]
    assert not (gone and changes.create)


def test_a_new_pool_creates_all_machines_at_once() -> None:
    assert next_changes([], RolloutLimits(5)) == PoolChanges(create=5)


def test_a_complete_pool_has_no_changes() -> None:
    assert next_changes(several(3), RolloutLimits(3)) == PoolChanges()


def test_a_pool_scales_to_zero_at_once() -> None:
    assert next_changes(several(3), RolloutLimits(0)).delete == ("m0", "m1", "m2")


def test_a_rolling_update_without_unavailability_creates_the_surge_first() -> None:
    assert next_changes(several(3, up_to_date=False), RolloutLimits(3, 1, 0)) == PoolChanges(
        create=1
    )


def test_a_rolling_update_without_surge_removes_first() -> None:
    assert next_changes(several(3, up_to_date=False), RolloutLimits(3, 0, 1)) == PoolChanges(
        1, ("m0",)
    )


def test_machines_that_are_all_silent_are_not_replaced_all_at_once() -> None:
    silent = [member(f"m{index}", up_to_date=False, ready=False) for index in range(3)]
    assert next_changes(silent, RolloutLimits(3, 1, 0)) == PoolChanges(create=1)
    assert next_changes(silent, RolloutLimits(3, 0, 1)) == PoolChanges(1, ("m0",))


def test_a_rollout_does_not_delete_a_ready_machine_instead_of_a_silent_one() -> None:
    members = [
        *several(2, up_to_date=False),
        member("silent", up_to_date=False, ready=False, has_machine=False),
    ]
    assert next_changes(members, RolloutLimits(2, 1, 0)) == PoolChanges()


def test_a_bad_version_stops_at_the_first_machines_that_do_not_become_ready() -> None:
    members = [*several(3, up_to_date=False), member("new", ready=False)]
    assert next_changes(members, RolloutLimits(3, 1, 0)) == PoolChanges()


def test_a_rollback_removes_only_the_bad_machine() -> None:
    members = [*several(3), member("bad", up_to_date=False, ready=False)]
    assert next_changes(members, RolloutLimits(3, 1, 0)) == PoolChanges(0, ("bad",))


def test_a_lost_machine_is_replaced_and_removed() -> None:
    members = [*several(2), member("lost", lost=True)]
    assert next_changes(members, RolloutLimits(3)) == PoolChanges(1, ("lost",))


def test_a_lost_machine_that_cannot_be_removed_yet_costs_no_other_machine() -> None:
    members = [*several(3), member("lost", lost=True, has_machine=False)]
    assert next_changes(members, RolloutLimits(3, 1, 1)) == PoolChanges()


def test_an_outdated_machine_that_cannot_be_removed_yet_costs_no_new_machine() -> None:
    members = [*several(3), member("old", up_to_date=False, has_machine=False)]
    assert next_changes(members, RolloutLimits(3, 1, 1)) == PoolChanges()


def test_a_deleting_machine_is_replaced() -> None:
    members = [*several(2), member("going", deleting=True)]
    assert next_changes(members, RolloutLimits(3)) == PoolChanges(create=1)


def test_the_limit_of_deletions_also_limits_creations() -> None:
    members = several(10, up_to_date=False)
    assert next_changes(members, RolloutLimits(10, 2, 5)) == PoolChanges(
        7, ("m0", "m1", "m2", "m3", "m4")
    )
    assert next_changes(members, RolloutLimits(10, 2, 5), max_deletions=2) == PoolChanges(
        4, ("m0", "m1")
    )
    assert next_changes(members, RolloutLimits(10, 2, 5), max_deletions=0) == PoolChanges(2, ())


def test_outdated_machines_are_deleted_before_marked_ones() -> None:
    members = [member("marked", delete_first=True), member("old", up_to_date=False)]
    assert removed(members, 1) == ["old"]


def test_marked_machines_are_deleted_before_unready_ones() -> None:
    members = [member("starting", ready=False), member("marked", delete_first=True), member("a")]
    assert removed(members, 1) == ["marked", "starting"]


def test_lost_machines_are_deleted_first() -> None:
    members = [*several(2, up_to_date=False), member("lost", lost=True), member("a")]
    assert removed(members, 0)[0] == "lost"
    # The bound of a step does not spare the lost machine.
    assert next_changes(several(2) + members[2:], RolloutLimits(2), max_deletions=1).delete == (
        "lost",
    )


def test_unready_machines_are_deleted_before_the_policy_decides() -> None:
    members = [member("oldest", age=9), member("starting", ready=False)]
    assert removed(members, 1) == ["starting"]


@pytest.mark.parametrize(("policy", "goes"), [("Oldest", "old"), ("Newest", "new")])
def test_delete_policy_decides_between_equals(policy: DeletePolicy, goes: str) -> None:
    members = [member("middle", age=2), member("old", age=3), member("new", age=1)]
    assert removed(members, 2, policy) == [goes]


def test_a_random_choice_depends_on_names_and_not_on_age_or_order() -> None:
    members = [member(f"m{index}", age=index) for index in range(8)]
    turned = [replace(one, created=START) for one in reversed(members)]
    chosen = removed(members, 4, "Random")
    assert chosen == removed(turned, 4, "Random")
    assert chosen not in ([f"m{index}" for index in range(4)], ["m7", "m6", "m5", "m4"])


@pytest.mark.parametrize(
    ("replicas", "max_surge", "max_unavailable", "expected"),
    [
        (10, 1, 0, (1, 0)),
        (10, "25%", "25%", (3, 2)),
        (3, "10%", "10%", (1, 0)),
        (3, 0, 0, (0, 1)),
        (3, "0%", "10%", (0, 1)),
        (3, 0, 9, (0, 3)),
        (0, "50%", "50%", (0, 1)),
        (100, "7%", "7%", (7, 7)),
    ],
)
def test_percentages_round_surge_up_and_unavailability_down(
    replicas: int,
    max_surge: int | str,
    max_unavailable: int | str,
    expected: tuple[int, int],
) -> None:
    limits = rollout_limits(replicas, max_surge, max_unavailable, "Oldest")
    assert (limits.surge, limits.unavailable) == expected


def cluster(*, infrastructure: bool = True) -> Cluster:
    initialization = {"infrastructureProvisioned": infrastructure}
    return Cluster.read({"status": {"initialization": initialization}})


def capelin_machine(version: str | None, *, pool: str = "", **metadata: Any) -> CapelinMachine:
    labels = {POOL_NAME_LABEL: pool} if pool else {}
    return CapelinMachine(
        metadata=ObjectMeta(name="m", namespace="team", labels=labels, **metadata),
        spec=MachineSpec(version=version),
    )


def owning(version: str | None = None, data: str | None = None) -> Machine:
    bootstrap = {} if data is None else {"dataSecretName": data}
    return Machine.read({"spec": {"version": version, "bootstrap": bootstrap}})


@pytest.mark.parametrize(
    ("machine", "observed", "owner", "reason"),
    [
        (capelin_machine("v1"), None, owning("v1", "data"), "WaitingForOwner"),
        (
            capelin_machine("v1"),
            cluster(infrastructure=False),
            owning("v1", "data"),
            "WaitingForClusterInfrastructureReady",
        ),
        (capelin_machine(None), cluster(), None, "WaitingForVersion"),
        (capelin_machine(None, pool="p"), cluster(), owning(), "WaitingForVersion"),
        (capelin_machine("v1"), cluster(), None, "WaitingForBootstrapData"),
        (capelin_machine(None), cluster(), owning("v1"), "WaitingForBootstrapData"),
        (capelin_machine(None), cluster(), owning("v1", ""), None),
        (capelin_machine("v1", pool="p"), cluster(), None, None),
    ],
)
def test_a_machine_names_the_reason_why_it_waits(
    machine: CapelinMachine, observed: Cluster | None, owner: Machine | None, reason: str | None
) -> None:
    waiting = machine_waits_for(machine, observed, owner)
    assert (waiting and waiting.reason) == reason


def desired(replicas: int, revision: str | None = "r1") -> DesiredPool:
    return DesiredPool(
        cluster="demo",
        machine_pool=MachinePool.read({"metadata": {"name": "workers"}}),
        limits=RolloutLimits(replicas),
        revision=revision,
        failure_domains=("east", "west"),
    )


def test_a_settled_pool_does_nothing_and_reads_no_machines() -> None:
    machines = [capelin_machine("v1"), capelin_machine("v1")]
    for machine in machines:
        machine.metadata.labels[REVISION_LABEL] = "r1"
    assert is_settled(desired(2), machines)
    assert next_pool_step(desired(2), ObservedPool(machines, {}), START) == PoolStep((), (), 60)
    assert not is_settled(desired(3), machines)
    assert not is_settled(desired(2, "r2"), machines)
    machines[0].metadata.deletion_timestamp = START
    assert not is_settled(desired(2), machines)


def test_a_pool_without_its_bootstrap_config_does_nothing() -> None:
    unknown = desired(3, None)
    assert is_settled(unknown, [])
    assert next_pool_step(unknown, ObservedPool([], {}), START) == PoolStep((), (), 15)


def test_events_of_a_step_name_the_deleted_machines_and_the_reason() -> None:
    machines = [capelin_machine("v1") for _ in range(6)]
    for number, machine in enumerate(machines):
        machine.metadata.name = f"m{number}"
        machine.metadata.labels[REVISION_LABEL] = "r0" if number < 5 else "r1"
    observed = ObservedPool(machines, {})
    step = PoolStep(("m0", "m1", "m2", "m3", "m5"), (None, None), 2)
    assert step_events(desired(3), observed, step) == [
        ("RollingOut", "deleting m0, m1, m2 and 1 more, which are outdated"),
        ("ScalingDown", "deleting m5, which are too many"),
        ("MachinesCreated", "created 2 of 3 machines"),
    ]
    assert step_events(desired(3), observed, PoolStep((), (), 2)) == []


def test_new_machines_are_spread_over_the_failure_domains() -> None:
    placed = capelin_machine("v1")
    placed.metadata.labels[REVISION_LABEL] = "r1"
    placed.spec.failure_domain = "east"
    step = next_pool_step(desired(4), ObservedPool([placed], {}), START)
    assert (sorted(map(str, step.create)), step.delete) == (["east", "west", "west"], ())


@pytest.mark.parametrize(
    ("under_way", "waiting", "count"),
    [(0, 0, 50), (10, 10, 40), (49, 0, 1), (50, 0, 0), (60, 0, 0)],
)
def test_a_pool_deletes_at_most_fifty_machines_per_minute(
    under_way: int, waiting: int, count: int
) -> None:
    def info(seconds: int | None) -> MachineInfo:
        since = None if seconds is None else START - timedelta(seconds=seconds)
        return MachineInfo(since, node_ready=True, delete_first=False)

    machines: list[CapelinMachine] = []
    infos: dict[str, MachineInfo] = {}
    for number in range(100):
        machine = capelin_machine("v1")
        machine.metadata.name = f"m{number:03}"
        machine.metadata.labels[REVISION_LABEL] = "r1"
        machines.append(machine)
        # Some deletions have just started, and others wait for their pods.
        is_under_way, is_waiting = number < under_way, number < under_way + waiting
        infos[machine.name] = info(59 if is_under_way else 60 if is_waiting else None)
    step = next_pool_step(desired(0), ObservedPool(machines, infos), START)
    assert (len(step.delete), step.create) == (count, ())


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({}, False),
        ({"controller": True, "block_owner_deletion": True}, False),
        ({"api_version": "cluster.x-k8s.io/v1beta1"}, False),
        ({"uid": "before the move"}, True),
        ({"name": "other"}, True),
        ({"kind": "MachinePool"}, True),
    ],
    ids=str,
)
def test_an_owner_reference_is_written_only_if_it_is_missing(
    changed: dict[str, Any], needed: bool
) -> None:
    owner = Cluster.read({"metadata": {"name": "demo", "uid": "1"}})
    reference = OwnerReference(
        api_version=Cluster.resource.api_version, kind="Cluster", name="demo", uid="1"
    )
    assert needs_owner([reference.model_copy(update=changed)], owner) is needed


def settled_pool(**counted: Any) -> tuple[DesiredPool, CapelinMachine]:
    """A pool with its only machine, and the status of its MachinePool."""
    machine_pool = MachinePool.read({"metadata": {"name": "p"}, "status": counted})
    desired = DesiredPool(
        cluster="c", machine_pool=machine_pool, limits=RolloutLimits(1), revision="r"
    )
    now = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": now}
    machine = CapelinMachine.read(
        {
            "metadata": {"name": "m", "labels": {REVISION_LABEL: "r"}},
            "spec": {"version": "v1.34.4"},
            "status": {"conditions": [ready]},
        }
    )
    return desired, machine


COUNTED: dict[str, Any] = {
    "readyReplicas": 1,
    "availableReplicas": 1,
    "upToDateReplicas": 1,
    "versions": [{"version": "v1.34.4", "replicas": 1}],
}
STILL_COUNTED = {"versions": [{"version": "v1.33.13", "replicas": 1}, *COUNTED["versions"]]}
LEAVING = MachineInfo(START - timedelta(seconds=5), node_ready=False, delete_first=False)
STUCK = replace(LEAVING, deleting_since=START - timedelta(hours=1))


@pytest.mark.parametrize(
    ("counted", "infos", "miscounted", "seconds"),
    [
        (COUNTED, {}, False, 60),
        (COUNTED | STILL_COUNTED, {}, True, 2),
        (COUNTED | STILL_COUNTED, {"old": LEAVING}, False, 2),
        (COUNTED | STILL_COUNTED, {"old": STUCK}, False, 15),
        (COUNTED | {"readyReplicas": 0}, {"m": replace(LEAVING, deleting_since=None)}, False, 15),
    ],
)
def test_settled_pool_looks_again_until_core_has_counted_its_machines(
    counted: dict[str, Any], infos: dict[str, MachineInfo], seconds: float, *, miscounted: bool
) -> None:
    desired, machine = settled_pool(**counted)
    observed = ObservedPool([machine], infos, miscounted)
    assert next_pool_step(desired, observed, START) == PoolStep((), (), seconds)


@pytest.mark.parametrize(("age", "seconds"), [(5, 2), (120, 15)])
def test_settled_pool_looks_at_a_new_machine_again_soon(age: float, seconds: float) -> None:
    desired, machine = settled_pool(**COUNTED | {"availableReplicas": 0})
    machine.metadata.creation_timestamp = START - timedelta(seconds=age)
    step = next_pool_step(desired, ObservedPool([machine], {}), START)
    assert step == PoolStep((), (), seconds)


def test_pool_whose_machines_start_does_not_wait_for_core() -> None:
    desired, machine = settled_pool()
    assert not is_counted(desired, [machine])
    starting = machine.model_copy(update={"status": None})
    assert is_counted(desired, [starting])
    assert is_counted(desired, [machine, starting])


def conditions(type_: str, status: str, reason: str) -> dict[str, Any]:
    """The status of an object with one condition."""
    now = "2026-01-01T00:00:00Z"
    condition = {"type": type_, "status": status, "reason": reason, "lastTransitionTime": now}
    return {"conditions": [condition]}


@pytest.mark.parametrize(
    ("status", "needed"), [(None, False), ("True", False), ("Unknown", False), ("False", True)]
)
def test_a_health_check_asks_for_another_machine(status: str | None, needed: bool) -> None:
    reported = {} if status is None else conditions("OwnerRemediated", status, "X")
    assert needs_remediation(Machine.read({"status": reported})) is needed


@pytest.mark.parametrize(
    ("reported", "spec", "misses"),
    [
        ({}, {}, False),
        ({}, {"paused": True}, True),
        (conditions("Paused", "True", "Paused"), {"paused": True}, False),
        (conditions("Paused", "True", "Paused"), {}, True),
        (conditions("Paused", "False", "NotPaused"), {}, False),
    ],
)
def test_the_condition_paused_follows_the_cluster(
    reported: dict[str, Any], spec: dict[str, Any], misses: bool
) -> None:
    machine = CapelinMachine.read({"metadata": {"name": "m"}, "spec": {}, "status": reported})
    assert misses_pause(machine, Cluster.read({"spec": spec})) is misses


ASLEEP = conditions("ControlPlaneAvailable", "False", "Asleep")


@pytest.mark.parametrize(
    ("reported", "cluster_status", "misses"),
    [
        ({}, {}, False),
        ({}, ASLEEP, True),
        (conditions("Ready", "True", "Ready"), {}, False),
        (conditions("Ready", "True", "Ready"), ASLEEP, True),
        (conditions("Ready", "False", "Asleep"), ASLEEP, False),
        (conditions("Ready", "False", "Asleep"), {}, True),
    ],
)
def test_the_condition_ready_reports_the_sleep_of_the_cluster(
    reported: dict[str, Any], cluster_status: dict[str, Any], misses: bool
) -> None:
    machine = CapelinMachine.read({"metadata": {"name": "m"}, "spec": {}, "status": reported})
    assert misses_sleep(machine, Cluster.read({"status": cluster_status})) is misses


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({}, False),
        ({"labels": {"a": "1", "own": "x"}}, False),
        ({"labels": {"a": "2"}}, True),
        ({"labels": {}}, True),
        ({"ownerReferences": []}, True),
        ({"labels": {}, "deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
    ],
    ids=str,
)
def test_lost_metadata_of_a_machine_is_written_again(changed: dict[str, Any], needed: bool) -> None:
    pool = CapelinMachinePool.of("p", "team", spec=MachinePoolSpec())
    pool.metadata.uid = "1"
    owner = reference_to(pool).dump()
    metadata = {"name": "m", "labels": {"a": "1"}, "ownerReferences": [owner], **changed}
    machine = CapelinMachine.read({"metadata": metadata, "spec": {}})
    assert needs_metadata(machine, pool, {"a": "1"}) is needed


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_the_facts_of_a_machine_decide_which_one_goes(
    deleting: bool, ready: bool, marked: bool
) -> None:
    metadata: dict[str, Any] = {"name": "m"}
    if deleting:
        metadata["deletionTimestamp"] = START.isoformat()
    if marked:
        metadata["annotations"] = {"cluster.x-k8s.io/delete-machine": ""}
    status = conditions("NodeReady", "True" if ready else "False", "X")
    assert machine_info(Machine.read({"metadata": metadata, "status": status})) == MachineInfo(
        START if deleting else None, node_ready=ready, delete_first=marked
    )
