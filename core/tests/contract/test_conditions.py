from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import pytest
from capelin.api import Condition
from capelin.api.capi import Cluster, ClusterSpec, MachinePool
from capelin.contract import (
    ConditionSpec,
    find_condition,
    is_condition_true,
    paused,
    update_conditions,
)
from hypothesis import given
from hypothesis import strategies as st

Status = Literal["True", "False", "Unknown"]

NOW = datetime(2026, 3, 1, 12, 0, 0, 987654, tzinfo=UTC)
SECOND = NOW.replace(microsecond=0)
HOUR = timedelta(hours=1)

TYPES = ["Available", "Ready", "Abc", "EtcdAvailable", "RollingOut", "Deleting", "Paused"]
statuses = st.sampled_from(get_args(Status))
moments = st.integers(0, 10**9).map(lambda seconds: SECOND + timedelta(seconds=seconds))
specs = st.builds(
    ConditionSpec,
    st.sampled_from(TYPES),
    statuses,
    st.sampled_from(["Good", "Bad"]),
    st.sampled_from(["", "m", "n"]),
    st.none() | moments,
)
desired_lists = st.lists(specs, unique_by=lambda spec: spec.type)
present_lists = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from([*TYPES, "TheirsA", "TheirsB"]),
            "status": statuses,
            "reason": st.just("Good"),
            "message": st.sampled_from(["", "m"]),
            "last_transition_time": moments,
            "observed_generation": st.integers(0, 5),
        }
    ).map(Condition.model_validate),
    unique_by=lambda condition: condition.type,
)


def condition(type_: str, status: Status = "True", since: datetime = SECOND - HOUR) -> Condition:
    return Condition(
        type=type_, status=status, reason="R", last_transition_time=since, observed_generation=1
    )


def test_a_new_condition_begins_now() -> None:
    assert update_conditions(
        [], [ConditionSpec("Ready", "True", "Good", "all well")], now=NOW, generation=3
    ) == [
        Condition(
            type="Ready",
            status="True",
            reason="Good",
            message="all well",
            last_transition_time=SECOND,
            observed_generation=3,
        )
    ]


def test_an_unchanged_status_keeps_its_transition_time() -> None:
    (after,) = update_conditions(
        [condition("Ready")],
        [ConditionSpec("Ready", "True", "Other", "words")],
        now=NOW,
        generation=2,
    )
    assert after.last_transition_time == SECOND - HOUR
    assert (after.reason, after.message, after.observed_generation) == ("Other", "words", 2)


def test_a_changed_status_gets_a_new_transition_time() -> None:
    (after,) = update_conditions(
        [condition("Ready")], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert after.last_transition_time == SECOND


def test_a_transition_time_never_goes_back() -> None:
    before = condition("Ready", since=SECOND + HOUR)
    (after,) = update_conditions(
        [before], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert after.last_transition_time == SECOND + HOUR


def test_a_given_transition_time_takes_precedence() -> None:
    spec = ConditionSpec("Ready", "True", "R", since=SECOND - 2 * HOUR)
    (after,) = update_conditions([], [spec], now=NOW, generation=1)
    assert after.last_transition_time == SECOND - 2 * HOUR


def test_update_drops_conditions_that_are_not_desired() -> None:
    present = [condition("Old"), condition("Ready")]
    (after,) = update_conditions(
        present, [ConditionSpec("Ready", "True", "R")], now=NOW, generation=1
    )
    assert after.type == "Ready"


def test_a_duplicate_type_fails() -> None:
    with pytest.raises(ValueError, match="condition Ready is set twice"):
        update_conditions(
            [],
            [ConditionSpec("Ready", "True", "A"), ConditionSpec("Ready", "False", "B")],
            now=NOW,
            generation=1,
        )


def test_a_long_message_is_truncated() -> None:
    (after,) = update_conditions(
        [], [ConditionSpec("Ready", "True", "R", "x" * 40000)], now=NOW, generation=1
    )
    assert len(after.message) == 32768
    assert after.message.endswith("x…")
    (after,) = update_conditions(
        [], [ConditionSpec("Ready", "True", "R", "x" * 32768)], now=NOW, generation=1
    )
    assert after.message == "x" * 32768


def test_available_and_ready_come_first_and_deleting_last() -> None:
    types = ["Paused", "B", "Ready", "Deleting", "A", "Available"]
    specs = [ConditionSpec(type_, "True", "R") for type_ in types]
    ordered = update_conditions([], specs, now=NOW, generation=1)
    assert [condition.type for condition in ordered] == [
        "Available",
        "Ready",
        "A",
        "B",
        "Paused",
        "Deleting",
    ]


@given(present_lists, desired_lists, st.integers(0, 9), moments, moments)
def test_updating_twice_changes_nothing(
    present: list[Condition],
    desired: list[ConditionSpec],
    generation: int,
    now: datetime,
    later: datetime,
) -> None:
    once = update_conditions(present, desired, now=now, generation=generation)
    assert update_conditions(once, desired, now=later, generation=generation) == once
    again = update_conditions(once, reversed(desired), now=later, generation=generation)
    assert again == once


@given(present_lists, desired_lists, st.integers(0, 9), moments)
def test_transition_times_change_only_with_the_status(
    present: list[Condition], desired: list[ConditionSpec], generation: int, now: datetime
) -> None:
    before = {condition.type: condition for condition in present}
    after = update_conditions(present, desired, now=now, generation=generation)
    assert {condition.type for condition in after} == {spec.type for spec in desired}
    for condition in after:
        if condition.type in before:
            earlier = before[condition.type]
            assert condition.last_transition_time >= earlier.last_transition_time
            if condition.status == earlier.status:
                assert condition.last_transition_time == earlier.last_transition_time


def test_find_condition_and_is_condition_true_select_by_type() -> None:
    present = [condition("A"), condition("B", "False"), condition("C", "Unknown")]
    assert find_condition(present, "B") == present[1]
    assert find_condition(present, "D") is None
    assert [is_condition_true(present, type_) for type_ in "ABCD"] == [True, False, False, False]


def test_a_spec_of_a_condition_has_the_same_content() -> None:
    assert ConditionSpec.of(condition("Ready")) == ConditionSpec(
        "Ready", "True", "R", "", SECOND - HOUR
    )


def test_kept_condition_describes_its_generation() -> None:
    spec = ConditionSpec.kept(condition("Ready"))
    (after,) = update_conditions([], [spec], now=SECOND, generation=2)
    assert after.observed_generation == 1


ANNOTATED = "MachinePool has the cluster.x-k8s.io/paused annotation"
CLUSTER = "Cluster spec.paused is set to true"


def pool(**annotations: str) -> MachinePool:
    pool = MachinePool.of("pool", "default")
    pool.metadata.annotations = annotations
    return pool


def cluster(*, paused: bool | None) -> Cluster:
    return Cluster.of("demo", "default", spec=ClusterSpec(paused=paused))


@pytest.mark.parametrize("value", ["", "true", "false"])
def test_the_annotation_pauses_whatever_its_value(value: str) -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": value})
    assert paused(obj, None) == ConditionSpec("Paused", "True", "Paused", ANNOTATED)
    assert paused(obj, cluster(paused=False)).status == "True"


def test_a_paused_cluster_pauses_its_objects() -> None:
    assert paused(pool(), cluster(paused=True)) == ConditionSpec(
        "Paused", "True", "Paused", CLUSTER
    )


def test_the_message_names_both_causes_of_a_pause() -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": ""})
    assert paused(obj, cluster(paused=True)).message == f"{CLUSTER}, {ANNOTATED}"


@pytest.mark.parametrize("of", [None, cluster(paused=None), cluster(paused=False)])
def test_other_annotations_do_not_pause(of: Cluster | None) -> None:
    obj = pool(other="x")
    assert paused(obj, of) == ConditionSpec("Paused", "False", "NotPaused", "")
