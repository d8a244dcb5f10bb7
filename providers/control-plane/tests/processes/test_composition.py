"""The command lines of a control plane on processes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin_control_plane.backends.processes.composition import composition, seconds_to_go
from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.desired import PROGRAMS, ControlPlane, Program, Tuning
from capelin_control_plane.plan import Composition, is_current

from .rig import control_plane

PLACE = Place(Path("/state/127.64.0.9"), "127.64.0.9")


def composed(wanted: ControlPlane, **options: set[int]) -> Composition:
    programs: dict[Program, Path] = {program: Path("/bin") / program for program in PROGRAMS}
    return composition(wanted, PLACE, PLACE.address, programs, **options)


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: int, rollout_after: datetime | None = None) -> Composition:
    """What is composed so many hours after the moment."""
    as_of = MOMENT + timedelta(hours=hours)
    return composed(replace(control_plane(), as_of=as_of, rollout_after=rollout_after))


def what_is_current(before: Composition, after: Composition) -> set[str]:
    pairs = (
        (before.api_server(0), after.api_server(0)),
        *zip((*before.etcd, *before.others), (*after.etcd, *after.others), strict=True),
    )
    return {one.component for one, wanted in pairs if is_current(one, wanted)}


def test_a_rollout_replaces_all_but_etcd_and_once() -> None:
    assert what_is_current(at(-1), at(1, MOMENT)) == {"etcd"}
    assert what_is_current(at(1, MOMENT), at(2, MOMENT)) == set(PROGRAMS)


@pytest.mark.parametrize("later", [None, MOMENT - timedelta(days=1)])
def test_a_rollout_that_is_asked_for_no_more_or_for_earlier_replaces_nothing(
    later: datetime | None,
) -> None:
    assert what_is_current(at(1, MOMENT), at(2, later)) == set(PROGRAMS)


def test_what_was_planned_after_a_rollout_is_left_alone_even_if_it_was_not_asked_for_then() -> None:
    assert what_is_current(at(1), at(2, MOMENT)) == set(PROGRAMS)


def test_what_a_rollout_replaces_runs_another_command() -> None:
    # The same would not be started again.
    pairs = zip(at(-1).others, at(1, MOMENT).others, strict=True)
    assert all(old.command.hash != new.command.hash for old, new in pairs)


def test_a_member_that_rejoined_looks_for_its_cluster_and_the_others_stay_as_they_are() -> None:
    wanted = replace(control_plane(), etcd_replicas=3)
    before, after = composed(wanted), composed(wanted, rejoined={1})
    assert "--initial-cluster-state=existing" in after.etcd[1].command.arguments
    assert after.etcd[1].rejoined
    assert is_current(before.etcd[0], after.etcd[0])
    assert is_current(before.api_server(0), after.api_server(0))


def test_an_api_server_serves_on_for_as_long_as_its_user_says_or_two_seconds() -> None:
    wanted = control_plane()
    longer = {"kube-apiserver": Tuning(arguments={"shutdown-delay-duration": "1m"})}
    patient = replace(wanted, tuning={**wanted.tuning, **longer})

    def delays(one: ControlPlane) -> list[str]:
        arguments = composed(one).api_server(0).command.arguments
        return [flag for flag in arguments if flag.startswith("--shutdown-delay-duration=")]

    assert delays(wanted) == ["--shutdown-delay-duration=2s"]
    assert delays(patient) == ["--shutdown-delay-duration=1m"]


@pytest.mark.parametrize(
    ("said", "seconds"), [(None, 12), ("0", 10), ("1m", 70), ("1m30s", 100), ("shoal", 10)]
)
def test_an_api_server_is_given_the_time_that_it_takes_to_go(
    said: str | None, seconds: float
) -> None:
    arguments = {} if said is None else {"shutdown-delay-duration": said}
    wanted = control_plane()
    tuning = {**wanted.tuning, "kube-apiserver": Tuning(arguments=arguments)}
    composed_so = composed(replace(wanted, tuning=tuning))
    assert seconds_to_go(composed_so.api_server(0)) == seconds
    assert seconds_to_go(composed_so.etcd[0]) == 10
