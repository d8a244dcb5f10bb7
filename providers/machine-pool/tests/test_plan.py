"""How a pool becomes what is wanted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin_machine_pool.plan import Changes, DeletePolicy, Member, Wanted, limits, next_changes
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICIES: tuple[DeletePolicy, ...] = ("Oldest", "Newest", "Random")


def member(
    name: str,
    *,
    current: bool = True,
    ready: bool = True,
    age: int = 0,
    deleting: bool = False,
    removable: bool = True,
    goes_first: bool = False,
    lost: bool = False,
) -> Member:
    return Member(
        name=name,
        current=current,
        ready=ready and not lost,
        created=START - timedelta(hours=age),
        deleting=deleting,
        removable=removable,
        goes_first=goes_first,
        lost=lost,
    )


def several(count: int, prefix: str = "m", *, current: bool = True) -> list[Member]:
    return [member(f"{prefix}{index}", current=current) for index in range(count)]


def removed(members: list[Member], replicas: int, policy: DeletePolicy = "Oldest") -> list[str]:
    return list(next_changes(members, Wanted(replicas, policy=policy)).remove)


@st.composite
def pools(draw: st.DrawFn) -> list[Member]:
    return [
        member(
            f"m{index}",
            current=draw(st.booleans()),
            ready=draw(st.booleans()),
            age=draw(st.integers(0, 3)),
            deleting=draw(st.booleans()),
            removable=draw(st.booleans()),
            goes_first=draw(st.booleans()),
            lost=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 12)))
    ]


@st.composite
def wants(draw: st.DrawFn) -> Wanted:
    portions = st.integers(0, 4) | st.sampled_from(("0%", "25%", "50%", "100%"))
    return limits(
        draw(st.integers(0, 8)), draw(portions), draw(portions), draw(st.sampled_from(POLICIES))
    )


def alive(members: list[Member]) -> list[Member]:
    return [one for one in members if not one.deleting and not one.lost]


def after(members: list[Member], changes: Changes, turn: int) -> list[Member]:
    """What core, and the passing of time, make of it: machines go, and others become ready."""
    kept = [one for one in members if one.name not in changes.remove and not one.deleting]
    made = [member(f"n{turn}-{index}") for index in range(changes.create)]
    return [replace(one, removable=True, ready=one.current and not one.lost) for one in kept] + made


@given(pools(), wants())
def test_we_take_no_more_ready_machines_away_than_may_be_unavailable(
    members: list[Member], wanted: Wanted
) -> None:
    gone = next_changes(members, wanted).remove
    left = [one for one in alive(members) if one.ready and one.name not in gone]
    if any(one.ready for one in alive(members) if one.name in gone):
        assert len(left) >= wanted.replicas - wanted.unavailable


@given(pools(), wants())
def test_we_make_no_more_machines_than_the_surge_allows(
    members: list[Member], wanted: Wanted
) -> None:
    changes = next_changes(members, wanted)
    left = [one for one in alive(members) if one.name not in changes.remove]
    if changes.create:
        assert len(left) + changes.create <= wanted.replicas + wanted.surge


@given(pools(), wants())
def test_machines_that_are_not_ready_do_not_all_go_before_others_stand_in(
    members: list[Member], wanted: Wanted
) -> None:
    gone = next_changes(members, wanted).remove
    if any(not one.current for one in alive(members) if one.name in gone):
        left = [
            one for one in alive(members) if one.name not in gone and (one.ready or not one.current)
        ]
        surplus = sum(one.current for one in alive(members)) - wanted.replicas
        assert len(left) >= wanted.replicas - wanted.unavailable or surplus > 0


@given(pools(), wants())
def test_the_steps_end_with_as_many_machines_of_the_wanted_making(
    members: list[Member], wanted: Wanted
) -> None:
    for turn in range(60):
        changes = next_changes(members, wanted)
        following = after(members, changes, turn)
        if changes == Changes() and following == members:
            break
        members = following
    assert len(members) == wanted.replicas
    assert all(one.current and not one.lost for one in members)


@given(pools(), wants())
def test_no_machine_is_removed_before_core_has_made_its_machine(
    members: list[Member], wanted: Wanted
) -> None:
    gone = next_changes(members, wanted).remove
    assert all(one.removable and not one.deleting for one in members if one.name in gone)


@given(pools(), wants())
def test_what_is_made_and_what_goes_makes_no_circle(members: list[Member], wanted: Wanted) -> None:
    changes = next_changes(members, wanted)
    gone = [one for one in alive(members) if one.name in changes.remove and one.current]
    assert not (gone and changes.create)


def test_a_new_pool_is_made_at_once() -> None:
    assert next_changes([], Wanted(5)) == Changes(create=5)


def test_a_pool_as_wanted_is_left_alone() -> None:
    assert next_changes(several(3), Wanted(3)) == Changes()


def test_a_pool_shrinks_to_nothing_at_once() -> None:
    assert next_changes(several(3), Wanted(0)).remove == ("m0", "m1", "m2")


def test_a_rolling_update_makes_the_surge_first_when_none_may_be_away() -> None:
    assert next_changes(several(3, current=False), Wanted(3, 1, 0)) == Changes(create=1)


def test_a_rolling_update_without_surge_removes_first() -> None:
    assert next_changes(several(3, current=False), Wanted(3, 0, 1)) == Changes(1, ("m0",))


def test_machines_that_are_all_silent_are_not_replaced_all_at_once() -> None:
    silent = [member(f"m{index}", current=False, ready=False) for index in range(3)]
    assert next_changes(silent, Wanted(3, 1, 0)) == Changes(create=1)
    assert next_changes(silent, Wanted(3, 0, 1)) == Changes(1, ("m0",))


def test_a_ready_machine_does_not_go_in_place_of_a_silent_one() -> None:
    members = [
        *several(2, current=False),
        member("silent", current=False, ready=False, removable=False),
    ]
    assert next_changes(members, Wanted(2, 1, 0)) == Changes()


def test_a_bad_version_stops_at_the_first_machines_that_do_not_become_ready() -> None:
    members = [*several(3, current=False), member("new", ready=False)]
    assert next_changes(members, Wanted(3, 1, 0)) == Changes()


def test_going_back_removes_the_bad_machine_and_nothing_else() -> None:
    members = [*several(3), member("bad", current=False, ready=False)]
    assert next_changes(members, Wanted(3, 1, 0)) == Changes(0, ("bad",))


def test_a_lost_machine_is_replaced_and_removed() -> None:
    members = [*several(2), member("lost", lost=True)]
    assert next_changes(members, Wanted(3)) == Changes(1, ("lost",))


def test_a_lost_machine_that_cannot_be_removed_yet_costs_no_other_machine() -> None:
    members = [*several(3), member("lost", lost=True, removable=False)]
    assert next_changes(members, Wanted(3, 1, 1)) == Changes()


def test_an_outdated_machine_that_cannot_be_removed_yet_costs_no_new_machine() -> None:
    members = [*several(3), member("old", current=False, removable=False)]
    assert next_changes(members, Wanted(3, 1, 1)) == Changes()


def test_a_machine_on_its_way_out_is_replaced() -> None:
    members = [*several(2), member("going", deleting=True)]
    assert next_changes(members, Wanted(3)) == Changes(create=1)


def test_no_more_machines_are_made_than_have_room_when_few_may_leave() -> None:
    members = several(10, current=False)
    assert next_changes(members, Wanted(10, 2, 5)) == Changes(7, ("m0", "m1", "m2", "m3", "m4"))
    assert next_changes(members, Wanted(10, 2, 5), may_leave=2) == Changes(4, ("m0", "m1"))
    assert next_changes(members, Wanted(10, 2, 5), may_leave=0) == Changes(2, ())


def test_outdated_machines_go_before_marked_ones() -> None:
    members = [member("marked", goes_first=True), member("old", current=False)]
    assert removed(members, 1) == ["old"]


def test_marked_machines_go_before_those_that_are_not_ready() -> None:
    members = [member("starting", ready=False), member("marked", goes_first=True), member("a")]
    assert removed(members, 1) == ["marked", "starting"]


def test_machines_that_are_not_ready_go_before_the_policy_decides() -> None:
    members = [member("oldest", age=9), member("starting", ready=False)]
    assert removed(members, 1) == ["starting"]


@pytest.mark.parametrize(("policy", "goes"), [("Oldest", "old"), ("Newest", "new")])
def test_the_policy_decides_between_machines_that_are_alike(
    policy: DeletePolicy, goes: str
) -> None:
    members = [member("middle", age=2), member("old", age=3), member("new", age=1)]
    assert removed(members, 2, policy) == [goes]


def test_a_random_choice_goes_by_name_and_not_by_age_or_place() -> None:
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
    wanted = limits(replicas, max_surge, max_unavailable, "Oldest")
    assert (wanted.surge, wanted.unavailable) == expected
