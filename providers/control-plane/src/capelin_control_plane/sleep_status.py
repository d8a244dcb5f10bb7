"""Status and conditions of a control plane that sleeps. Pure."""

from typing import Final

from capelin.contract import ASLEEP, AVAILABLE, ConditionSpec, update_conditions
from capelin.provider import VersionCount

from capelin_control_plane import status as conditions
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.operations.move_phases import MOVING

_STOPPED: Final = (
    conditions.ETCD_CLUSTER_AVAILABLE,
    conditions.API_SERVERS_AVAILABLE,
    conditions.CONTROLLER_MANAGER_AVAILABLE,
    conditions.SCHEDULER_AVAILABLE,
    conditions.WORKLOAD_OBJECTS_AVAILABLE,
)
_QUIET: Final = (
    conditions.SCALING_UP,
    conditions.SCALING_DOWN,
    conditions.REMEDIATING,
)
_ACTIVITIES: Final = (*_QUIET, conditions.ROLLING_OUT)
_TEXT: Final = "the control plane sleeps: no component runs, and its data stays"


def asleep_status(
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    observed: Observed,
    waiting: tuple[str, ...],
) -> Status:
    """The status of a control plane that sleeps or falls asleep."""
    before = control_plane.status or Status()
    text = f"{_TEXT}. Until it wakes, these wait: {', '.join(waiting)}" if waiting else _TEXT
    asleep = ConditionSpec(ASLEEP, "True", Reason.ASLEEP, text)
    if observed.alive:
        message = "the components of the control plane stop"
        asleep = ConditionSpec(ASLEEP, "True", Reason.FALLING_ASLEEP, message)
    own = [
        ConditionSpec(AVAILABLE, "False", Reason.ASLEEP, text),
        asleep,
        conditions.certificates_available(),
        *(ConditionSpec(type_, "False", Reason.ASLEEP) for type_ in _STOPPED),
        *(ConditionSpec(type_, "False", f"Not{type_}") for type_ in _ACTIVITIES),
    ]
    # A move that was abandoned leaves its condition.
    types = {MOVING, *(spec.type for spec in own)}
    # Those of backups, of encryption and the like describe data that does not change.
    kept = [ConditionSpec.of(it) for it in before.conditions if it.type not in types]
    return before.model_copy(
        update={
            "accepted_move": None,
            "conditions": update_conditions(
                before.conditions,
                [*own, *kept],
                now=desired.now,
                generation=control_plane.metadata.generation,
            ),
            "observed_generation": control_plane.metadata.generation,
            "replicas": 0,
            "ready_replicas": 0,
            "available_replicas": 0,
            "up_to_date_replicas": 0,
            "versions": [VersionCount(version=count.version) for count in before.versions],
        }
    )
