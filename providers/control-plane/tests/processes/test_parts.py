"""What is told of the parts of a control plane."""

from pathlib import Path

from capelin_control_plane.backends.processes.composition import composition
from capelin_control_plane.backends.processes.parts import parts
from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.desired import PROGRAMS, Program
from capelin_control_plane.plan import Plan

from .rig import control_plane

PLACE = Place(Path("/state/127.64.0.9"), "127.64.0.9")


def test_nobody_can_tell_what_is_current_without_the_programs_that_are_wanted() -> None:
    wanted = control_plane()
    programs: dict[Program, Path] = {program: Path("/bin") / program for program in PROGRAMS}
    goal = composition(wanted, PLACE, PLACE.address, programs)
    plan = Plan((*goal.etcd, goal.relay, goal.api_server(0), *goal.others))
    told = [parts(plan, one, {}, PLACE, wanted.tuning) for one in (goal, None)]
    assert [{part.current for part in each} for each in told] == [{True}, {None}]
