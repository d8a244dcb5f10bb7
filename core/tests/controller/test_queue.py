import sys
from random import Random
from typing import Any

import pytest
from capelin.controller import After, Done, ObjectKey
from capelin.controller.queue import Failed, Gone, Outcome, Queue, Taken, Timing
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

A, B, C = ObjectKey("default", "a"), ObjectKey("default", "b"), ObjectKey("default", "c")


def queue(timing: Timing | None = None) -> Queue:
    return Queue(timing or Timing(), Random(0))  # noqa: S311 - the same jitter every time


def taken_keys(work: Queue, now: float) -> list[ObjectKey]:
    keys: list[ObjectKey] = []
    while (taken := work.take(now)) is not None:
        keys.append(taken.key)
    return keys


def test_keys_run_in_the_order_of_their_arrival() -> None:
    work = queue()
    for key in (B, A, C):
        work.add(key, 0)
    assert taken_keys(work, 0) == [B, A, C]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_paused_key_runs_after_its_pause_even_if_it_changes(is_changed: bool) -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.finish(A, After(1), 0)
    work.pause(A, 60, 0)
    work.pause(B, 60, 0)
    if is_changed:
        work.add(A, 1)
    work.add(B, 1)
    assert taken_keys(work, 59) == [B]
    assert taken_keys(work, 60) == [A]


def test_repeated_requests_for_a_waiting_key_are_merged() -> None:
    work = queue()
    work.add(A, 1)
    work.add(A, 2)
    assert (work.take(5), work.take(5)) == (Taken(A, 4), None)
    assert work.adds == 1


def test_a_key_that_changes_while_it_runs_runs_once_more_afterwards() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.add(A, 1)
    work.add(A, 2)
    assert work.take(2) is None
    work.finish(A, Done(), 3)
    assert work.take(4) == Taken(A, 1)
    work.finish(A, Done(), 5)
    assert work.take(6) is None


def run_once(work: Queue, now: float) -> bool | None:
    """Run the next key, which changes itself. Returns whether the queue begins to slow it down."""
    taken = work.take(now)
    if taken is None:
        return None
    work.add(taken.key, now)
    work.finish(taken.key, Done(), now)
    return taken.is_slowed


def test_a_constantly_changing_key_is_slowed_down_after_a_burst() -> None:
    work = queue(Timing(burst=5, pace=2.0))
    work.add(A, 0)
    assert [run_once(work, 0) for _ in range(6)] == [False] * 5 + [None]
    runs = [now for now in range(21) if run_once(work, now) is not None]
    assert runs == list(range(2, 21, 2))


def test_a_slowed_key_is_reported_once() -> None:
    work = queue(Timing(burst=2, pace=1.0))
    work.add(A, 0)
    reported = [run_once(work, now / 2) for now in range(20)]
    assert reported.count(True) == 1
    assert run_once(work, 1000) is False


def test_a_slowed_key_does_not_delay_others() -> None:
    work = queue(Timing(burst=1, pace=10.0))
    work.add(A, 0)
    while run_once(work, 0) is not None:
        pass
    work.add(B, 0)
    assert taken_keys(work, 0) == [B]


def test_a_recreated_key_is_not_slowed_down() -> None:
    work = queue(Timing(burst=1, pace=10.0))
    work.add(A, 0)
    work.take(0)
    work.finish(A, Gone(), 0)
    work.add(A, 0)
    assert taken_keys(work, 0) == [A]


def test_a_key_that_changes_while_it_runs_moves_behind_waiting_keys() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.add(B, 1)
    work.add(A, 1)
    work.finish(A, Done(), 2)
    assert taken_keys(work, 2) == [B, A]


def test_after_delays_the_next_run_of_a_key() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.finish(A, After(30), 10)
    assert work.next_due() == 40
    assert work.take(39.9) is None
    assert work.take(41) == Taken(A, 1)


def test_a_change_runs_before_a_delayed_run() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.finish(A, After(30), 0)
    work.add(A, 5)
    assert taken_keys(work, 5) == [A]
    work.finish(A, Gone(), 6)
    assert work.next_due() is None
    assert work.take(1000) is None


def test_no_key_waits_longer_than_the_resync_period() -> None:
    work = queue(Timing(resync=100))
    work.add(A, 0)
    work.take(0)
    work.finish(A, After(1e9), 0)
    assert work.next_due() == 100


def test_a_finished_key_runs_again_at_its_resync_with_jitter() -> None:
    work = queue(Timing(resync=100))
    for key in (A, B):
        work.add(key, 0)
        work.take(0)
        work.finish(key, Done(), 0)
    first = work.next_due()
    assert first is not None
    assert 90 <= first < 110
    (early,) = taken_keys(work, first)
    assert work.next_due() != first
    assert {early, *taken_keys(work, 110)} == {A, B}


def test_the_queue_removes_the_key_of_a_deleted_object() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.finish(A, Gone(), 0)
    assert work.keys == set()
    assert work.next_due() is None


def test_an_object_recreated_during_its_last_run_runs_again() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.add(A, 0)
    work.finish(A, Gone(), 0)
    assert taken_keys(work, 0) == [A]


def test_the_wait_doubles_with_each_failure_up_to_the_maximum() -> None:
    timing = Timing(first_retry=1, longest_retry=10)
    work = queue(timing)
    work.add(A, 0)
    waits: list[float] = []
    for _ in range(6):
        now = work.next_due() or 0.0
        assert work.take(now) is not None
        work.finish(A, Failed(), now)
        waits.append((work.next_due() or 0.0) - now)
    for waited, expected in zip(waits, [1, 2, 4, 8, 10, 10], strict=True):
        assert 0.8 * expected <= waited <= 1.2 * expected
    assert work.retries == 6


def test_a_success_resets_the_backoff() -> None:
    work = queue(Timing(first_retry=1))
    work.add(A, 0)
    for outcome in (Failed(), Failed(), Failed(), Done(), Failed()):
        work.add(A, 0)
        work.take(0)
        work.finish(A, outcome, 0)
    assert (work.next_due() or 0) <= 1.2


def test_running_for_returns_the_durations_of_running_keys() -> None:
    work = queue()
    work.add(A, 0)
    work.add(B, 0)
    work.take(1)
    work.take(3)
    assert work.running_for(5) == [4, 2]
    assert work.depth == 0


def test_a_million_failures_do_not_overflow() -> None:
    assert Timing().retry(1_000_000, Random(0)) <= 1.2 * Timing().longest_retry  # noqa: S311


def test_a_change_during_a_failing_run_is_not_delayed() -> None:
    work = queue()
    work.add(A, 0)
    work.take(0)
    work.add(A, 0)
    work.finish(A, Failed(), 1)
    assert work.take(1) == Taken(A, 0)


def test_retry_soon_runs_only_failed_keys() -> None:
    work = queue(Timing(first_retry=1000, longest_retry=1000))
    outcomes: list[tuple[ObjectKey, Outcome]] = [(A, Failed()), (B, Done())]
    for key, outcome in outcomes:
        work.add(key, 0)
        work.take(0)
        work.finish(key, outcome, 0)
    work.retry_soon(10, within=2)
    assert taken_keys(work, 12) == [A]


def test_add_all_runs_every_known_key() -> None:
    work = queue()
    for key in (A, B, C):
        work.add(key, 0)
    work.take(0)
    work.take(0)
    work.finish(A, Done(), 0)
    work.add_all(1)
    work.finish(B, Done(), 2)
    assert taken_keys(work, 2) == [C, A, B]


def test_superseded_entries_do_not_accumulate() -> None:
    work = queue()
    work.add(B, 0)
    work.take(0)
    work.finish(B, After(20_000), 0)
    for now in range(10_000):
        work.add(A, now)
        work.take(now)
        work.finish(A, Done(), now)
    assert len(work._heap) < 100  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_after_rejects_invalid_durations(seconds: float) -> None:
    with pytest.raises(ValueError, match="is not a delay"):
        After(seconds)


def test_a_group_uses_no_more_workers_than_its_limit() -> None:
    work = Queue(Timing(), Random(0), group_limit=2)  # noqa: S311 - the same jitter every time
    silent = [ObjectKey("mallory", str(number)) for number in range(100)]
    for key in silent:
        work.set_group(key, "silent")
        work.add(key, 0)
    work.set_group(A, "demo")
    for key in (A, B):
        work.add(key, 1)
    assert taken_keys(work, 1) == [*silent[:2], A, B]
    assert work.depth == 98
    work.finish(silent[0], Done(), 2)
    assert taken_keys(work, 2) == [silent[2]]


def test_the_longest_waiting_group_runs_next() -> None:
    work = Queue(Timing(), Random(0), group_limit=1)  # noqa: S311 - the same jitter every time
    for now, (key, group) in enumerate([(B, "b"), (C, "c"), (A, None)]):
        work.set_group(key, group)
        work.add(key, now)
    assert taken_keys(work, 3) == [B, C, A]


def test_a_key_keeps_its_position_when_its_group_changes() -> None:
    work = Queue(Timing(), Random(0), group_limit=1)  # noqa: S311 - the same jitter every time
    work.add(A, 0)
    work.set_group(A, "a")
    assert (work.take(5), work.take(5)) == (Taken(A, 5), None)
    work.finish(A, Gone(), 6)
    assert work.keys == set()


def run(work: Queue, key: ObjectKey, now: float, seconds: float) -> None:
    assert work.take(now) == Taken(key, 0)
    work.finish(key, Done(), now + seconds)


def keys_of_slow_groups(work: Queue, number: int) -> list[ObjectKey]:
    """Keys of groups whose last run took 5 s, all ready at 5."""
    keys = [ObjectKey("mallory", str(number)) for number in range(number)]
    for key in keys:
        work.set_group(key, f"group of {key}")
        work.add(key, 0)
        run(work, key, 0, 5)
    for key in keys:
        work.add(key, 5)
    return keys


def test_slow_groups_leave_workers_to_other_groups() -> None:
    work = Queue(Timing(), Random(0), group_limit=3, slow_limit=2)  # noqa: S311
    slow = keys_of_slow_groups(work, 10)
    assert taken_keys(work, 5) == slow[:2]
    work.set_group(A, "quick")
    for key in (A, B):
        work.add(key, 6)
    assert taken_keys(work, 6) == [A, B]
    work.finish(slow[1], Done(), 7)
    assert taken_keys(work, 7) == [slow[2]]


def test_a_key_without_a_group_can_be_slow() -> None:
    work = Queue(Timing(), Random(0), slow_limit=1)  # noqa: S311
    for key in (A, B):
        work.add(key, 0)
        run(work, key, 0, 5)
    for key in (A, B, C):
        work.add(key, 5)
    assert taken_keys(work, 5) == [A, C]


def test_a_long_first_run_counts_as_slow() -> None:
    work = Queue(Timing(), Random(0), slow_limit=1)  # noqa: S311
    (slow,) = keys_of_slow_groups(work, 1)
    work.add(A, 0)
    assert work.take(0) == Taken(A, 0)
    assert work.take(5) is None
    work.finish(A, Done(), 6)
    assert taken_keys(work, 6) == [slow]


def test_a_group_stays_slow_until_its_runs_are_quick_for_a_minute() -> None:
    work = Queue(Timing(), Random(0), slow_limit=1)  # noqa: S311
    first, second = keys_of_slow_groups(work, 2)
    for now in (5.0, 64.0):
        assert taken_keys(work, now) == [first]
        work.finish(first, Done(), now)
        assert taken_keys(work, now) == [second]
        work.finish(second, Done(), now)
        work.add(first, now)
        work.add(second, now)
    for key in (first, second):
        assert work.take(66) is not None
        work.finish(key, Done(), 66)
        work.add(key, 66)
    assert taken_keys(work, 66) == [first, second]


def test_a_deleted_group_is_no_longer_slow() -> None:
    work = Queue(Timing(), Random(0), slow_limit=1)  # noqa: S311
    slow = keys_of_slow_groups(work, 3)
    for key in slow:
        assert work.take(5) is not None
        work.finish(key, Gone(), 5)
    for key in slow:
        work.set_group(key, f"group of {key}")
        work.add(key, 6)
    assert taken_keys(work, 6) == slow


def calls_to_take(groups: int) -> int:
    """Number of function calls to take and finish 10 keys of `groups` groups."""
    work = Queue(Timing(), Random(0), group_limit=1)  # noqa: S311
    for number in range(groups):
        key = ObjectKey("default", f"{number:05}")
        work.set_group(key, number)
        work.add(key, 0)
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += "call" in event

    sys.setprofile(count)
    try:
        for _ in range(10):
            taken = work.take(0)
            assert taken is not None
            work.finish(taken.key, Done(), 0)
    finally:
        sys.setprofile(None)
    return calls


def test_taking_a_key_costs_the_same_with_many_groups() -> None:
    assert calls_to_take(10_000) <= calls_to_take(20)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """The queue compared with a model of pending keys and deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        timing = Timing(first_retry=0.5, longest_retry=8, resync=50)
        self.work = Queue(timing, Random(0), group_limit=1)  # noqa: S311
        self.groups: dict[ObjectKey, str | None] = {}
        self.running: dict[ObjectKey, str | None] = {}
        """Running keys and their groups."""
        self.pending: set[ObjectKey] = set()
        """Keys that changed since their last run started."""
        self.deadlines: dict[ObjectKey, float] = {}
        """Time by which a key must run again without a change."""

    @rule(key=st.sampled_from([A, B, C]))
    def change(self, key: ObjectKey) -> None:
        self.work.add(key, self.now)
        self.pending.add(key)

    @rule(key=st.sampled_from([A, B, C]), group=st.sampled_from(["x", "y", None]))
    def change_group(self, key: ObjectKey, group: str | None) -> None:
        if key in self.work.keys:
            self.work.set_group(key, group)
            self.groups[key] = group

    @rule()
    def take(self) -> None:
        taken = self.work.take(self.now)
        overdue = {key for key, by in self.deadlines.items() if by <= self.now}
        full = set(self.running.values()) - {None}
        if taken is None:
            waiting = (self.pending | overdue) - self.running.keys()
            assert all(self.groups.get(key) in full for key in waiting)
            return
        group = self.groups.get(taken.key)
        assert taken.key not in self.running, "the key runs twice at once"
        assert group not in full, "the group exceeds its limit"
        assert taken.waited >= 0
        self.running[taken.key] = group
        self.pending.discard(taken.key)
        self.deadlines.pop(taken.key, None)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        outcome=st.one_of(
            st.just(Done()),
            st.just(Failed()),
            st.just(Gone()),
            st.floats(0.1, 200).map(After),
        ),
    )
    def finish(self, data: st.DataObject, outcome: Outcome) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.work.finish(key, outcome, self.now)
        del self.running[key]
        if key in self.pending:
            return
        if isinstance(outcome, Gone):
            self.groups.pop(key, None)
            return
        match outcome:
            case After(seconds):
                longest = min(seconds, 50.0)
            case Failed():
                longest = 9.6
            case _:
                longest = 55.0
        self.deadlines[key] = self.now + longest

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def lose_events(self) -> None:
        self.work.add_all(self.now)
        self.pending |= self.running.keys() | self.deadlines.keys()

    @rule()
    def recover(self) -> None:
        self.work.retry_soon(self.now, within=2)

    @invariant()
    def every_key_is_known(self) -> None:
        assert self.running.keys() | self.pending | self.deadlines.keys() == self.work.keys

    @invariant()
    def every_delayed_key_has_a_due_time(self) -> None:
        waiting = self.deadlines.keys() - self.pending - self.running.keys()
        due = self.work.next_due()
        for key in waiting:
            ready = self.work.depth > 0
            assert ready or (due is not None and due <= self.deadlines[key])


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(stateful_step_count=40, deadline=None)


@given(st.integers(1, 10_000), st.integers(0, 2**32))
def test_retry_delays_are_limited(failures: int, seed: int) -> None:
    wait = Timing().retry(failures, Random(seed))  # noqa: S311
    assert 0.8 * 0.005 <= wait <= 1.2 * 300
