from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from capelin.api import Condition
from capelin.contract.conditions import (
    ConditionSpec,
    Status,
    find,
    in_order,
    is_true,
    merge,
    mirror,
    read,
    summary,
    update,
)
from hypothesis import given
from hypothesis import strategies as st

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
    assert update(
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
    (after,) = update(
        [condition("Ready")],
        [ConditionSpec("Ready", "True", "Other", "words")],
        now=NOW,
        generation=2,
    )
    assert after.last_transition_time == SECOND - HOUR
    assert (after.reason, after.message, after.observed_generation) == ("Other", "words", 2)


def test_the_time_changes_with_the_status() -> None:
    (after,) = update(
        [condition("Ready")], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert after.last_transition_time == SECOND


def test_a_clock_that_was_set_back_does_not_turn_history_around() -> None:
    before = condition("Ready", since=SECOND + HOUR)
    (after,) = update([before], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1)
    assert after.last_transition_time == SECOND + HOUR


def test_a_time_that_is_known_better_is_taken() -> None:
    aspect = ConditionSpec("Ready", "True", "R", since=SECOND - 2 * HOUR)
    (after,) = update([], [aspect], now=NOW, generation=1)
    assert after.last_transition_time == SECOND - 2 * HOUR


def test_what_is_not_wanted_any_more_goes_and_others_are_left_to_others() -> None:
    present = [condition("Old"), condition("Ready")]
    (after,) = update(present, [ConditionSpec("Ready", "True", "R")], now=NOW, generation=1)
    assert after.type == "Ready"


def test_merging_keeps_what_others_said() -> None:
    theirs = condition("Theirs", since=SECOND - 3 * HOUR)
    merged = merge(
        [theirs, condition("Ready")], [ConditionSpec("Ready", "False", "R")], now=NOW, generation=1
    )
    assert [one.type for one in merged] == ["Ready", "Theirs"]
    assert merged[1] == theirs
    assert merged[0].status == "False"


def test_saying_something_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="condition Ready is said twice"):
        update(
            [],
            [ConditionSpec("Ready", "True", "A"), ConditionSpec("Ready", "False", "B")],
            now=NOW,
            generation=1,
        )


def test_a_message_that_is_too_long_is_cut() -> None:
    (after,) = update([], [ConditionSpec("Ready", "True", "R", "x" * 40000)], now=NOW, generation=1)
    assert len(after.message) == 32768
    assert after.message.endswith("x…")
    (after,) = update([], [ConditionSpec("Ready", "True", "R", "x" * 32768)], now=NOW, generation=1)
    assert after.message == "x" * 32768


def test_the_most_important_comes_first_and_pausing_and_deleting_last() -> None:
    types = ["Paused", "B", "Ready", "Deleting", "A", "Available"]
    ordered = in_order(map(condition, types))
    assert [one.type for one in ordered] == ["Available", "Ready", "A", "B", "Paused", "Deleting"]


@given(present_lists, wanted_lists, st.integers(0, 9), moments, moments)
def test_saying_the_same_again_changes_nothing(
    present: list[Condition],
    wanted: list[ConditionSpec],
    generation: int,
    now: datetime,
    later: datetime,
) -> None:
    for settle in (update, merge):
        once = settle(present, wanted, now=now, generation=generation)
        assert settle(once, wanted, now=later, generation=generation) == once
        assert settle(once, reversed(wanted), now=later, generation=generation) == once


@given(present_lists, wanted_lists, st.integers(0, 9), moments)
def test_times_never_go_back_and_change_with_the_status_only(
    present: list[Condition], wanted: list[ConditionSpec], generation: int, now: datetime
) -> None:
    before = {one.type: one for one in present}
    after = update(present, wanted, now=now, generation=generation)
    assert {one.type for one in after} == {aspect.type for aspect in wanted}
    for one in after:
        if one.type in before:
            earlier = before[one.type]
            assert one.last_transition_time >= earlier.last_transition_time
            if one.status == earlier.status:
                assert one.last_transition_time == earlier.last_transition_time


@given(present_lists, wanted_lists, st.integers(0, 9), moments)
def test_merging_loses_nothing_and_changes_nothing_of_others(
    present: list[Condition], wanted: list[ConditionSpec], generation: int, now: datetime
) -> None:
    merged = merge(present, wanted, now=now, generation=generation)
    ours = {aspect.type for aspect in wanted}
    assert {one.type for one in merged} == ours | {one.type for one in present}
    assert [one for one in merged if one.type not in ours] == in_order(
        one for one in present if one.type not in ours
    )
    assert merge(reversed(present), wanted, now=now, generation=generation) == merged


def test_a_condition_is_found_by_its_type() -> None:
    present = [condition("A"), condition("B", "False"), condition("C", "Unknown")]
    assert find(present, "B") == present[1]
    assert find(present, "D") is None
    assert [is_true(present, type_) for type_ in "ABCD"] == [True, False, False, False]


def said(**said_of: Status) -> list[ConditionSpec]:
    return [
        ConditionSpec(type_, status, f"{type_}Reason", f"{type_} is {status}")
        for type_, status in said_of.items()
    ]


def test_a_sum_of_good_things_is_good() -> None:
    parts = [ConditionSpec("A", "True", "Fine"), ConditionSpec("B", "True", "Fine", "though slow")]
    assert summary("Available", parts, ["A", "B"]) == ConditionSpec(
        "Available", "True", "Available", "* B: though slow"
    )


def test_a_bad_part_makes_the_sum_bad() -> None:
    parts = [*said(A="True", B="Unknown", C="False"), ConditionSpec("E", "False", "Broken")]
    assert summary("Ready", parts, ["C", "B", "A", "E"]) == ConditionSpec(
        "Ready", "False", "NotReady", "* C: C is False\n* B: B is Unknown\n* E: Broken"
    )


def test_an_unknown_part_makes_the_sum_unknown() -> None:
    assert summary("Ready", said(A="True", B="Unknown"), ["A", "B"]) == ConditionSpec(
        "Ready", "Unknown", "ReadyUnknown", "* B: B is Unknown"
    )


def test_what_nobody_reported_is_unknown_unless_it_is_optional() -> None:
    assert summary("Ready", said(A="True"), ["A", "B"]).message == "* B: Condition not yet reported"
    assert summary("Ready", said(A="True"), ["A", "B"]).status == "Unknown"
    assert summary("Ready", said(A="True"), ["A", "B"], optional=["B"]).status == "True"
    assert summary("Ready", said(A="True", B="False"), ["A", "B"], optional=["B"]).status == "False"


def test_some_parts_are_well_when_they_are_false() -> None:
    parts = said(A="True", Deleting="False")
    assert summary("Ready", parts, ["A", "Deleting"], negative=["Deleting"]).status == "True"
    parts = said(A="True", Deleting="True")
    assert summary("Ready", parts, ["A", "Deleting"], negative=["Deleting"]) == ConditionSpec(
        "Ready", "False", "NotReady", "* Deleting: Deleting is True"
    )


def test_a_sum_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="condition Ready cannot be summed up from nothing"):
        summary("Ready", said(A="True"), ["B"], optional=["B"])


def test_messages_of_several_lines_are_indented() -> None:
    parts = [
        ConditionSpec("A", "False", "R", "* one: bad\n  * inner\n* two: bad"),
        ConditionSpec("B", "False", "R", "first\nsecond"),
        ConditionSpec("C", "False", "R", "* alone: bad"),
    ]
    assert summary("Ready", parts, ["A", "B", "C"]).message == (
        "* A:\n  * one: bad\n    * inner\n  * two: bad\n"
        "* B:\n  * first\n  * second\n"
        "* C:\n  * alone: bad"
    )


@given(st.lists(aspects, min_size=1, unique_by=lambda aspect: aspect.type), st.randoms())
def test_a_sum_does_not_depend_on_the_order_of_what_is_said(
    parts: list[ConditionSpec], random: Any
) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert summary("Sum", shuffled, TYPES) == summary("Sum", parts, TYPES)


def test_a_mirror_shows_another_object_s_condition_with_its_time() -> None:
    source = [ConditionSpec("Ready", "False", "Down", "no power", SECOND - HOUR)]
    assert mirror(source, "Ready", target="InfrastructureReady") == ConditionSpec(
        "InfrastructureReady", "False", "Down", "no power", SECOND - HOUR
    )


def test_a_mirror_of_nothing_is_unknown_or_its_fallback() -> None:
    assert mirror([], "Ready", target="InfrastructureReady") == ConditionSpec(
        "InfrastructureReady", "Unknown", "NotYetReported", "Condition Ready not yet reported"
    )
    fallback = ConditionSpec("Whatever", "False", "NotProvisioned", "wait", SECOND)
    assert mirror([], "Ready", target="InfrastructureReady", fallback=fallback) == ConditionSpec(
        "InfrastructureReady", "False", "NotProvisioned", "wait"
    )


def test_an_aspect_says_what_a_condition_says() -> None:
    assert ConditionSpec.of(condition("Ready")) == ConditionSpec(
        "Ready", "True", "R", "", SECOND - HOUR
    )


def test_conditions_of_any_object_are_read() -> None:
    manifest = {
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Good",
                    "message": "all well",
                    "lastTransitionTime": "2026-03-01T12:00:00Z",
                    "severity": "Info",
                },
                {"type": "Bare", "status": "False"},
            ]
        }
    }
    assert read(manifest) == [
        ConditionSpec("Ready", "True", "Good", "all well", SECOND),
        ConditionSpec("Bare", "False", "NoReasonReported"),
    ]


def test_newer_conditions_of_an_object_between_generations_are_read() -> None:
    manifest = {
        "status": {
            "conditions": [{"type": "Old", "status": "True"}],
            "v1beta2": {"conditions": [{"type": "New", "status": "True"}]},
        }
    }
    assert [aspect.type for aspect in read(manifest)] == ["New"]


@pytest.mark.parametrize("status", ["true", "", None, True, ["True"], {}])
def test_a_status_that_is_none_becomes_unknown(status: object) -> None:
    manifest = {"status": {"conditions": [{"type": "Ready", "status": status, "reason": "R"}]}}
    assert read(manifest) == [
        ConditionSpec(
            "Ready",
            "Unknown",
            "InvalidConditionReported",
            "Condition Ready has a status that is neither True, False nor Unknown",
        )
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"reason": 1}, ConditionSpec("Ready", "True", "NoReasonReported")),
        ({"reason": "not a-reason"}, ConditionSpec("Ready", "True", "NoReasonReported")),
        ({"reason": "R", "message": 5}, ConditionSpec("Ready", "True", "R")),
        ({"reason": "R", "lastTransitionTime": "yesterday"}, ConditionSpec("Ready", "True", "R")),
        ({"reason": "R", "lastTransitionTime": "2026-03-01"}, ConditionSpec("Ready", "True", "R")),
        ({"reason": "R", "lastTransitionTime": 7}, ConditionSpec("Ready", "True", "R")),
    ],
)
def test_what_cannot_be_understood_of_a_condition_is_left_out(
    entry: dict[str, Any], expected: ConditionSpec
) -> None:
    manifest = {"status": {"conditions": [{"type": "Ready", "status": "True", **entry}]}}
    (aspect,) = read(manifest)
    assert aspect == expected
    assert update([], [aspect], now=NOW, generation=1)[0].last_transition_time == SECOND


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"status": None},
        {"status": []},
        {"status": {"conditions": None}},
        {"status": {"conditions": {"type": "Ready"}}},
        {"status": {"conditions": [None, 1, "Ready", {}, {"type": 1}, {"type": ""}]}},
    ],
)
def test_an_object_without_conditions_has_none(manifest: dict[str, Any]) -> None:
    assert read(manifest) == []


def test_of_conditions_with_the_same_type_the_first_counts() -> None:
    entries = [{"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}]
    assert [aspect.status for aspect in read({"status": {"conditions": entries}})] == ["True"]
