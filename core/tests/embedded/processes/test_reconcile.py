import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from capelin.embedded.processes import Backoff, Command, Phase, ProcessSpec
from capelin.embedded.processes.proc import Identity, MarkedProcess
from capelin.embedded.processes.reconcile import (
    Observed,
    Steps,
    is_hung,
    next_steps,
    phase,
    poll_pause,
    strays,
)
from hypothesis import given
from hypothesis import strategies as st

OLD, NEW = Command(("old",)), Command(("new",))


def wanted(*names: str, command: Command = NEW, **after: str) -> dict[str, ProcessSpec]:
    return {
        name: ProcessSpec(name=name, command=command, after=tuple(after.get(name, "").split()))
        for name in names
    }


def running(*, ready: bool = True, after: str = "", command: Command = NEW) -> Observed:
    return Observed(alive=True, hash=command.hash, after=tuple(after.split()), ready=ready)


class TestNextSteps:
    def test_what_waits_for_nothing_starts(self) -> None:
        assert next_steps(wanted("a", "b"), {}, 0) == Steps(start=("a", "b"))

    def test_what_waits_for_another_starts_when_that_is_ready(self) -> None:
        both = wanted("a", "b", b="a")
        assert next_steps(both, {}, 0) == Steps(start=("a",))
        assert next_steps(both, {"a": running(ready=False)}, 0) == Steps()
        assert next_steps(both, {"a": running()}, 0) == Steps(start=("b",))

    def test_what_waits_for_another_itself_starts_when_that_is_reachable(self) -> None:
        both = wanted("a", "b", b="a")
        reachable = replace(running(ready=False), reachable=True)
        assert next_steps(both, {"a": reachable}, 0) == Steps(start=("b",))
        assert phase(both["a"], reachable) is Phase.STARTING

    def test_what_is_about_to_be_replaced_is_not_waited_for(self) -> None:
        seen = {"a": running(command=OLD)}
        assert next_steps(wanted("a", "b", b="a"), seen, 0) == Steps(stop=("a",))

    def test_what_is_stopping_is_not_waited_for_and_not_stopped_again(self) -> None:
        seen = {"a": replace(running(), stopping=True)}
        assert next_steps(wanted("a", "b", b="a"), seen, 0) == Steps()
        assert next_steps({}, seen, 0) == Steps()

    def test_what_runs_as_declared_is_left_alone(self) -> None:
        assert next_steps(wanted("a"), {"a": running()}, 0) == Steps()

    def test_users_stop_before_what_they_use(self) -> None:
        seen = {"etcd": running(), "api": running(after="etcd"), "manager": running(after="api")}
        assert next_steps({}, seen, 0) == Steps(stop=("manager",))
        del seen["manager"]
        assert next_steps({}, seen, 0) == Steps(stop=("api",))
        del seen["api"]
        assert next_steps({}, seen, 0) == Steps(stop=("etcd",))

    def test_a_user_that_stays_does_not_keep_what_is_no_longer_declared(self) -> None:
        seen = {"a": running(), "b": running(after="a")}
        assert next_steps(wanted("b"), seen, 0) == Steps(stop=("a",))

    def test_what_is_said_to_use_each_other_stops_all_the_same(self) -> None:
        seen = {"a": running(after="b"), "b": running(after="a")}
        assert next_steps({}, seen, 0) == Steps(stop=("a", "b"))

    def test_what_ended_waits_for_its_time(self) -> None:
        seen = {"a": Observed(alive=False, failures=2, retry_at=5.0)}
        assert next_steps(wanted("a"), seen, 4.0) == Steps(requeue_at=5.0)
        assert next_steps(wanted("a"), seen, 5.0) == Steps(start=("a",))

    def test_what_ended_is_not_looked_at_again_before_what_it_waits_for_is_ready(self) -> None:
        seen = {"b": Observed(alive=False, failures=2, retry_at=5.0), "a": running(ready=False)}
        assert next_steps(wanted("a", "b", b="a"), seen, 4.0) == Steps()


@pytest.mark.parametrize(
    ("declared", "seen", "expected"),
    [
        (True, None, Phase.WAITING),
        (True, Observed(alive=False), Phase.WAITING),
        (True, running(ready=False), Phase.STARTING),
        (True, running(), Phase.RUNNING),
        (True, replace(running(), serving=False), Phase.NOT_READY),
        (True, replace(running(ready=False), serving=False), Phase.STARTING),
        (True, running(command=OLD), Phase.STOPPING),
        (False, running(), Phase.STOPPING),
        (True, replace(running(), stopping=True), Phase.STOPPING),
        (True, Observed(alive=False, failures=1), Phase.BACKING_OFF),
        (True, Observed(alive=False, failures=3), Phase.FAILED),
    ],
)
def test_phases_of_a_process(declared: bool, seen: Observed | None, expected: Phase) -> None:
    assert phase(wanted("a")["a"] if declared else None, seen) is expected


class TestBackoff:
    @given(failures=st.integers(1, 100_000))
    def test_it_grows_and_never_passes_the_longest(self, failures: int) -> None:
        backoff = Backoff()
        assert backoff.delay(failures) <= backoff.delay(failures + 1) <= backoff.longest

    @given(failures=st.integers(1, 8))
    def test_it_doubles_until_the_longest(self, failures: int) -> None:
        backoff = Backoff(first=0.1, factor=2.0, longest=30.0)
        assert math.isclose(backoff.delay(failures), 0.1 * 2.0 ** (failures - 1))

    @given(failures=st.integers(10, 100_000))
    def test_it_reaches_the_longest(self, failures: int) -> None:
        assert Backoff(first=0.1, factor=2.0, longest=30.0).delay(failures) == 30.0

    @given(before=st.integers(0, 1000), ran_for=st.floats(0, 59.9))
    def test_a_short_run_adds_to_the_count(self, before: int, ran_for: float) -> None:
        assert Backoff(steady_after=60.0).failures(before, ran_for) == before + 1

    @given(before=st.integers(0, 1000), ran_for=st.floats(60.0, 1e9))
    def test_a_long_run_starts_the_count_anew(self, before: int, ran_for: float) -> None:
        assert Backoff(steady_after=60.0).failures(before, ran_for) == 1

    @given(before=st.integers(0, 1000), ready_for=st.floats(1.0, 1e9))
    def test_a_run_that_was_ready_starts_the_count_anew(
        self, before: int, ready_for: float
    ) -> None:
        assert Backoff().failures(before, ready_for + 1, ready_for) == 1


@pytest.mark.parametrize(
    ("failed", "stalled", "expected"),
    [(0, True, False), (1, True, False), (2, True, True), (2, False, False), (9, False, True)],
)
def test_when_a_process_counts_as_hung(failed: int, stalled: bool, expected: bool) -> None:
    assert is_hung(failed, 9, stalled=stalled) is expected


def test_polls_are_fine_at_first_and_sparse_later() -> None:
    assert poll_pause(0) == 0.015
    assert poll_pause(2) == 0.02
    assert poll_pause(3600) == 0.5


def test_a_stray_belongs_to_no_remembered_session() -> None:
    def marked(pid: int, session: int) -> MarkedProcess:
        return MarkedProcess(Identity(pid, 7, "boot"), session, "a")

    remembered, its_child, stray = marked(10, 10), marked(11, 10), marked(20, 20)
    assert strays([remembered, its_child, stray], {10}) == [stray.identity]


@dataclass
class World:
    """Processes that do at once what they are told, for playing decisions through."""

    seen: dict[str, Observed] = field(default_factory=dict[str, Observed])
    now: float = 0.0

    def kill(self, names: set[str]) -> None:
        for name in names & self.seen.keys():
            failures = self.seen[name].failures + 1
            self.seen[name] = Observed(alive=False, failures=failures, retry_at=self.now + 1)

    def play(self, declared: Mapping[str, ProcessSpec]) -> None:
        """Follow the decisions until there is nothing left to do."""
        for name, one in declared.items():
            if name in self.seen and self.seen[name].hash == one.command.hash:
                self.seen[name] = replace(self.seen[name], after=one.after)
        for _ in range(50):
            steps = next_steps(declared, self.seen, self.now)
            if steps == Steps():
                return
            self.stop(steps.stop, declared)
            self.start(steps.start, declared)
            self.now = max(self.now, steps.requeue_at or 0.0)
        raise AssertionError("the decisions never come to rest")

    def stop(self, names: tuple[str, ...], declared: Mapping[str, ProcessSpec]) -> None:
        unwanted = {n: one for n, one in self.seen.items() if one.alive and n not in declared}
        for name in names:
            users = {n for n, one in unwanted.items() if name in one.after}
            assert name in declared or not users, f"{name} stopped before {users}"
            self.seen[name] = Observed(alive=False)

    def start(self, names: tuple[str, ...], declared: Mapping[str, ProcessSpec]) -> None:
        for name in names:
            one = declared[name]
            for other in one.after:
                assert self.seen[other].ready, f"{name} started before {other} was ready"
            self.seen[name] = Observed(
                alive=True, hash=one.command.hash, after=one.after, ready=True
            )


@st.composite
def declarations(draw: st.DrawFn) -> dict[str, ProcessSpec]:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    declared: dict[str, ProcessSpec] = {}
    for index, name in enumerate(names):
        after = draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        command = draw(st.sampled_from([OLD, NEW]))
        declared[name] = ProcessSpec(name=name, command=command, after=tuple(after))
    return declared


@given(changes=st.lists(st.tuples(declarations(), st.sets(st.sampled_from("abcd"))), max_size=4))
def test_steps_end_with_running(
    changes: list[tuple[dict[str, ProcessSpec], set[str]]],
) -> None:
    world = World()
    for declared, dying in changes:
        world.kill(dying)
        world.play(declared)
        alive = {name: one.hash for name, one in world.seen.items() if one.alive}
        assert alive == {name: one.command.hash for name, one in declared.items()}
