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
aspects = st.builds(
    ConditionSpec,
    st.sampled_from(TYPES),
    statuses,
    st.sampled_from(["Good", "Bad"]),
    st.sampled_from(["", "m", "n"]),
    st.none() | moments,
)
wanted_lists = st.lists(aspects, unique_by=lambda aspect: aspect.type)
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


def test_the_time_stays_while_the_status_stays() -> None:
    (after,) = update_conditions(
        [condition("Ready")],
        [ConditionSpec("Ready", "True", "Other", "words")],
        now=NOW,
        generation=2,
    )
    assert after.last_transition_time == SECOND - HOUR
    assert (after.reason, after.message, after.observed_generation) == ("Other", "words", 2)


def test_the_time_changes_with_the_status() -> None:
    (after,) = update_conditions(
        [condition("Ready")], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert after.last_transition_time == SECOND


def test_a_clock_that_was_set_back_does_not_turn_history_around() -> None:
    before = condition("Ready", since=SECOND + HOUR)
    (after,) = update_conditions(
        [before], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert after.last_transition_time == SECOND + HOUR


def test_a_time_that_is_known_better_is_taken() -> None:
    aspect = ConditionSpec("Ready", "True", "R", since=SECOND - 2 * HOUR)
    (after,) = update_conditions([], [aspect], now=NOW, generation=1)
    assert after.last_transition_time == SECOND - 2 * HOUR


def test_what_is_not_wanted_any_more_goes_and_others_are_left_to_others() -> None:
    present = [condition("Old"), condition("Ready")]
    (after,) = update_conditions(
        present, [ConditionSpec("Ready", "True", "R")], now=NOW, generation=1
    )
    assert after.type == "Ready"


def test_saying_something_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="condition Ready is set twice"):
        update_conditions(
            [],
            [ConditionSpec("Ready", "True", "A"), ConditionSpec("Ready", "False", "B")],
            now=NOW,
            generation=1,
        )


def test_a_message_that_is_too_long_is_cut() -> None:
    (after,) = update_conditions(
        [], [ConditionSpec("Ready", "True", "R", "x" * 40000)], now=NOW, generation=1
    )
    assert len(after.message) == 32768
    assert after.message.endswith("x…")
    (after,) = update_conditions(
        [], [ConditionSpec("Ready", "True", "R", "x" * 32768)], now=NOW, generation=1
    )
    assert after.message == "x" * 32768


def test_the_most_important_comes_first_and_pausing_and_deleting_last() -> None:
    types = ["Paused", "B", "Ready", "Deleting", "A", "Available"]
    specs = [ConditionSpec(type_, "True", "R") for type_ in types]
    ordered = update_conditions([], specs, now=NOW, generation=1)
    assert [one.type for one in ordered] == ["Available", "Ready", "A", "B", "Paused", "Deleting"]


@given(present_lists, wanted_lists, st.integers(0, 9), moments, moments)
def test_saying_the_same_again_changes_nothing(
    present: list[Condition],
    wanted: list[ConditionSpec],
    generation: int,
    now: datetime,
    later: datetime,
) -> None:
    once = update_conditions(present, wanted, now=now, generation=generation)
    assert update_conditions(once, wanted, now=later, generation=generation) == once
    again = update_conditions(once, reversed(wanted), now=later, generation=generation)
    assert again == once


@given(present_lists, wanted_lists, st.integers(0, 9), moments)
def test_times_never_go_back_and_change_with_the_status_only(
    present: list[Condition], wanted: list[ConditionSpec], generation: int, now: datetime
) -> None:
    before = {one.type: one for one in present}
    after = update_conditions(present, wanted, now=now, generation=generation)
    assert {one.type for one in after} == {aspect.type for aspect in wanted}
    for one in after:
        if one.type in before:
            earlier = before[one.type]
            assert one.last_transition_time >= earlier.last_transition_time
            if one.status == earlier.status:
                assert one.last_transition_time == earlier.last_transition_time


def test_a_condition_is_found_by_its_type() -> None:
    present = [condition("A"), condition("B", "False"), condition("C", "Unknown")]
    assert find_condition(present, "B") == present[1]
    assert find_condition(present, "D") is None
    assert [is_condition_true(present, type_) for type_ in "ABCD"] == [True, False, False, False]


def test_an_aspect_says_what_a_condition_says() -> None:
    assert ConditionSpec.of(condition("Ready")) == ConditionSpec(
        "Ready", "True", "R", "", SECOND - HOUR
    )


ANNOTATED = "MachinePool has the cluster.x-k8s.io/paused annotation"
CLUSTER = "Cluster spec.paused is set to true"


def pool(**annotations: str) -> MachinePool:
    found = MachinePool.of("pool", "default")
    found.metadata.annotations = annotations
    return found


def cluster(*, paused: bool | None) -> Cluster:
    return Cluster.of("demo", "default", spec=ClusterSpec(paused=paused))


@pytest.mark.parametrize("value", ["", "true", "false"])
def test_the_annotation_pauses_whatever_its_value(value: str) -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": value})
    assert paused(obj, None) == ConditionSpec("Paused", "True", "Paused", ANNOTATED)
    assert paused(obj, cluster(paused=False)).status == "True"


def test_the_cluster_pauses_what_is_part_of_it() -> None:
    assert paused(pool(), cluster(paused=True)) == ConditionSpec(
        "Paused", "True", "Paused", CLUSTER
    )


def test_both_are_named() -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": ""})
    assert paused(obj, cluster(paused=True)).message == f"{CLUSTER}, {ANNOTATED}"


@pytest.mark.parametrize("of", [None, cluster(paused=None), cluster(paused=False)])
def test_nothing_else_pauses(of: Cluster | None) -> None:
    obj = pool(other="x")
    assert paused(obj, of) == ConditionSpec("Paused", "False", "NotPaused", "")
