"""The command lines of a control plane on processes."""

from dataclasses import replace
from datetime import UTC, datetime
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


def test_a_rollout_replaces_all_but_etcd() -> None:
    wanted = control_plane()
    before = composed(wanted)
    after = composed(replace(wanted, rollout_after=datetime(2026, 1, 1, tzinfo=UTC)))
    assert not is_current(before.api_server(0), after.api_server(0))
    assert not any(map(is_current, before.others, after.others))
    assert all(map(is_current, before.etcd, after.etcd))


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
