import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from capelin_embedded.processes import Backoff, Command, Phase, ProcessSpec
from capelin_embedded.processes.proc import Identity, MarkedProcess
from capelin_embedded.processes.reconcile import (
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


def specs(*names: str, command: Command = NEW, **after: str) -> dict[str, ProcessSpec]:
    return {
        name: ProcessSpec(name=name, command=command, after=tuple(after.get(name, "").split()))
        for name in names
    }


def running(*, ready: bool = True, after: str = "", command: Command = NEW) -> Observed:
    return Observed(alive=True, hash=command.hash, after=tuple(after.split()), ready=ready)


class TestNextSteps:
    def test_processes_without_dependencies_start(self) -> None:
        assert next_steps(specs("a", "b"), {}, 0) == Steps(start=("a", "b"))

    def test_a_process_starts_when_its_dependency_is_ready(self) -> None:
        both = specs("a", "b", b="a")
        assert next_steps(both, {}, 0) == Steps(start=("a",))
        assert next_steps(both, {"a": running(ready=False)}, 0) == Steps()
        assert next_steps(both, {"a": running()}, 0) == Steps(start=("b",))

    def test_a_process_starts_when_its_dependency_is_reachable(self) -> None:
        both = specs("a", "b", b="a")
        reachable = replace(running(ready=False), reachable=True)
        assert next_steps(both, {"a": reachable}, 0) == Steps(start=("b",))
        assert phase(both["a"], reachable) is Phase.STARTING

    def test_a_process_waits_until_its_dependency_is_replaced(self) -> None:
        observed = {"a": running(command=OLD)}
        assert next_steps(specs("a", "b", b="a"), observed, 0) == Steps(stop=("a",))

    def test_a_stopping_process_is_not_stopped_again(self) -> None:
        observed = {"a": replace(running(), stopping=True)}
        assert next_steps(specs("a", "b", b="a"), observed, 0) == Steps()
        assert next_steps({}, observed, 0) == Steps()

    def test_a_current_process_is_not_changed(self) -> None:
        assert next_steps(specs("a"), {"a": running()}, 0) == Steps()

    def test_processes_stop_before_their_dependencies(self) -> None:
        observed = {
            "etcd": running(),
            "api": running(after="etcd"),
            "manager": running(after="api"),
        }
        assert next_steps({}, observed, 0) == Steps(stop=("manager",))
        del observed["manager"]
        assert next_steps({}, observed, 0) == Steps(stop=("api",))
        del observed["api"]
        assert next_steps({}, observed, 0) == Steps(stop=("etcd",))

    def test_an_undeclared_dependency_of_a_declared_process_stops(self) -> None:
        observed = {"a": running(), "b": running(after="a")}
        assert next_steps(specs("b"), observed, 0) == Steps(stop=("a",))

    def test_undeclared_processes_in_a_cycle_stop(self) -> None:
        observed = {"a": running(after="b"), "b": running(after="a")}
        assert next_steps({}, observed, 0) == Steps(stop=("a", "b"))

    def test_an_ended_process_restarts_after_its_backoff(self) -> None:
        observed = {"a": Observed(alive=False, failures=2, retry_at=5.0)}
        assert next_steps(specs("a"), observed, 4.0) == Steps(requeue_at=5.0)
        assert next_steps(specs("a"), observed, 5.0) == Steps(start=("a",))

    def test_a_blocked_process_is_not_requeued(self) -> None:
        observed = {"b": Observed(alive=False, failures=2, retry_at=5.0), "a": running(ready=False)}
        assert next_steps(specs("a", "b", b="a"), observed, 4.0) == Steps()


@pytest.mark.parametrize(
    ("declared", "observed", "expected"),
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
def test_phases_of_a_process(declared: bool, observed: Observed | None, expected: Phase) -> None:
    assert phase(specs("a")["a"] if declared else None, observed) is expected


class TestBackoff:
    @given(failures=st.integers(1, 100_000))
    def test_the_delay_grows_up_to_the_maximum(self, failures: int) -> None:
        backoff = Backoff()
        assert backoff.delay(failures) <= backoff.delay(failures + 1) <= backoff.longest

    @given(failures=st.integers(1, 8))
    def test_the_delay_doubles_below_the_maximum(self, failures: int) -> None:
        backoff = Backoff(first=0.1, factor=2.0, longest=30.0)
        assert math.isclose(backoff.delay(failures), 0.1 * 2.0 ** (failures - 1))

    @given(failures=st.integers(10, 100_000))
    def test_the_delay_reaches_the_maximum(self, failures: int) -> None:
        assert Backoff(first=0.1, factor=2.0, longest=30.0).delay(failures) == 30.0

    @given(before=st.integers(0, 1000), ran_for=st.floats(0, 59.9))
    def test_a_short_run_increments_the_failures(self, before: int, ran_for: float) -> None:
        assert Backoff(steady_after=60.0).failures(before, ran_for) == before + 1

    @given(before=st.integers(0, 1000), ran_for=st.floats(60.0, 1e9))
    def test_a_long_run_resets_the_failures(self, before: int, ran_for: float) -> None:
        assert Backoff(steady_after=60.0).failures(before, ran_for) == 1

    @given(before=st.integers(0, 1000), ready_for=st.floats(1.0, 1e9))
    def test_a_ready_run_resets_the_failures(self, before: int, ready_for: float) -> None:
        assert Backoff().failures(before, ready_for + 1, ready_for) == 1


@pytest.mark.parametrize(
    ("failed", "stalled", "expected"),
    [(0, True, False), (1, True, False), (2, True, True), (2, False, False), (9, False, True)],
)
def test_is_hung_needs_several_failures_unless_stalled(
    failed: int, stalled: bool, expected: bool
) -> None:
    assert is_hung(failed, 9, stalled=stalled) is expected


def test_poll_pause_grows_with_the_wait() -> None:
    assert poll_pause(0) == 0.015
    assert poll_pause(2) == 0.02
    assert poll_pause(3600) == 0.5


def test_strays_returns_processes_of_unknown_sessions() -> None:
    def marked(pid: int, session: int) -> MarkedProcess:
        return MarkedProcess(Identity(pid, 7, "boot"), session, "a")

    remembered, its_child, stray = marked(10, 10), marked(11, 10), marked(20, 20)
    assert strays([remembered, its_child, stray], {10}) == [stray.identity]


@dataclass
class World:
    """Fake processes that start and stop at once, to simulate decisions."""

    observed: dict[str, Observed] = field(default_factory=dict[str, Observed])
    now: float = 0.0

    def kill(self, names: set[str]) -> None:
        for name in names & self.observed.keys():
            failures = self.observed[name].failures + 1
            self.observed[name] = Observed(alive=False, failures=failures, retry_at=self.now + 1)

    def play(self, declared: Mapping[str, ProcessSpec]) -> None:
        """Apply the steps until there are none."""
        for name, spec in declared.items():
            if name in self.observed and self.observed[name].hash == spec.command.hash:
                self.observed[name] = replace(self.observed[name], after=spec.after)
        for _ in range(50):
            steps = next_steps(declared, self.observed, self.now)
            if steps == Steps():
                return
            self.stop(steps.stop, declared)
            self.start(steps.start, declared)
            self.now = max(self.now, steps.requeue_at or 0.0)
        raise AssertionError("the decisions do not converge")

    def stop(self, names: tuple[str, ...], declared: Mapping[str, ProcessSpec]) -> None:
        undeclared = {n: o for n, o in self.observed.items() if o.alive and n not in declared}
        for name in names:
            users = {n for n, o in undeclared.items() if name in o.after}
            assert name in declared or not users, f"{name} stopped before {users}"
            self.observed[name] = Observed(alive=False)

    def start(self, names: tuple[str, ...], declared: Mapping[str, ProcessSpec]) -> None:
        for name in names:
            spec = declared[name]
            for other in spec.after:
                assert self.observed[other].ready, f"{name} started before {other} was ready"
            self.observed[name] = Observed(
                alive=True, hash=spec.command.hash, after=spec.after, ready=True
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
def test_all_declared_processes_run_after_the_steps(
    changes: list[tuple[dict[str, ProcessSpec], set[str]]],
) -> None:
    world = World()
    for declared, dying in changes:
        world.kill(dying)
        world.play(declared)
        alive = {name: state.hash for name, state in world.observed.items() if state.alive}
        assert alive == {name: spec.command.hash for name, spec in declared.items()}
