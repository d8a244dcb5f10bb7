"""What there is of a control plane, told from its plan and from what its processes do."""

from collections.abc import Mapping
from dataclasses import replace

from capelin.embedded.processes import Phase, State

from capelin_control_plane.backends import Part
from capelin_control_plane.backends.processes import members
from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.desired import Program, Tuning
from capelin_control_plane.plan import Composition, Instance, Plan, is_current
from capelin_control_plane.remedies import remedy

_FAILING = frozenset({Phase.BACKING_OFF, Phase.FAILED})


def parts(
    plan: Plan,
    goal: Composition | None,
    states: Mapping[str, State],
    place: Place,
    tuning: Mapping[Program, Tuning],
) -> tuple[Part, ...]:
    """Everything that runs or is to run, and the etcd members that are being replaced."""
    names = {one.name for one in plan.instances}
    replaced = [one for one in (goal.etcd if goal else ()) if one.name not in names]
    return (
        *(
            replace(
                _part(one, states.get(one.name), goal),
                failure=_failure(one, states.get(one.name), plan, place, tuning),
            )
            for one in plan.instances
        ),
        *map(_being_replaced, replaced),
    )


def _part(one: Instance, state: State | None, goal: Composition | None) -> Part:
    return Part(
        name=one.name,
        component=one.component,
        version=one.version,
        ready=state is not None and state.phase is Phase.RUNNING,
        current=None if goal is None else _is_as_wanted(one, goal),
    )


def _being_replaced(one: Instance) -> Part:
    return Part(
        name=one.name,
        component=one.component,
        version=one.version,
        ready=False,
        current=True,
        failure="lost its data, and is being replaced from the others",
    )


def _is_as_wanted(one: Instance, goal: Composition) -> bool:
    wanted = _wanted(one, goal)
    return wanted is not None and is_current(one, wanted)


def _wanted(one: Instance, goal: Composition) -> Instance | None:
    """What is wanted in place of an instance."""
    if one.component == "kube-apiserver":
        return goal.api_server(one.slot)
    others = {other.name: other for other in (*goal.etcd, goal.relay, *goal.others)}
    return others.get(one.name)


def _failure(
    one: Instance,
    state: State | None,
    plan: Plan,
    place: Place,
    tuning: Mapping[Program, Tuning],
) -> str:
    """Why an instance ended, and what to do about it where that is not for us to do."""
    if state is None or state.phase not in _FAILING:
        return ""
    tuned = Tuning() if one.component == "relay" else tuning[one.component]
    what_to_do = remedy(one.component, state.reason, tuned.arguments)
    is_replaceable = (
        one.component == "etcd" and len(plan.of("etcd")) > 1 and members.has_data(place, one.slot)
    )
    if not what_to_do and state.phase is Phase.FAILED and is_replaceable:
        folder = place.etcd(one.slot)
        what_to_do = f"if its data is broken, remove {folder}: the others replace it"
    return f"{state.reason}; {what_to_do}" if what_to_do else state.reason
