"""When a control plane sleeps, and the requests that wait until it wakes. Pure.

Nothing is stored: the latest moment among the annotations and the schedule decides. So the state
survives the provider and `clusterctl move`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin.contract import ASLEEP, is_condition_true

from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import (
    ControlPlane,
    InvalidSpecError,
    annotated_moment,
)
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.desired.schedules import is_older, occurrences
from capelin_control_plane.keys.rotation import Progress
from capelin_control_plane.operations.engine import Operation, obstacle
from capelin_control_plane.operations.rotation import rotation_requests

SLEEP_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/sleep-after"
"""Its value is a moment, after which the control plane sleeps."""
WAKE_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/wake-after"
"""Its value is a moment, after which the control plane is awake."""
_FIELD: Final = "spec.sleep"


@dataclass(frozen=True, slots=True)
class SleepState:
    """Whether a control plane sleeps now, and when to look again."""

    asleep: bool = False
    next: datetime | None = None
    since: datetime | None = None
    """The moment that decided. None if no moment is in the past."""


def sleep_state(control_plane: CapelinControlPlane, now: datetime) -> SleepState:
    """Whether a control plane sleeps now: the latest moment in the past decides.

    One that never served does not sleep, and neither does one with a requested restore.

    Raises:
        InvalidSpecError: the schedule or an annotation cannot be read.
    """
    moments: list[tuple[datetime, bool]] = []
    for annotation, asleep in ((SLEEP_ANNOTATION, True), (WAKE_ANNOTATION, False)):
        moment = annotated_moment(control_plane, annotation)
        if moment is not None:
            moments.append((moment, asleep))
    sleep = control_plane.spec.sleep
    if sleep is not None:
        for field, expression, asleep in (("start", sleep.start, True), ("end", sleep.end, False)):
            around = occurrences(
                expression,
                sleep.time_zone,
                now,
                field=f"{_FIELD}.{field}",
                zone_field=f"{_FIELD}.timeZone",
            )
            moments += [(moment, asleep) for moment in around]
    past = [(moment, not asleep) for moment, asleep in moments if moment <= now]
    following = min((moment for moment, _ in moments if moment > now), default=None)
    # Of two at the same moment, the control plane is awake.
    is_asleep = bool(past) and not max(past)[1]
    has_served = control_plane.spec.control_plane_endpoint is not None
    since = max(past)[0] if past else None
    return SleepState(is_asleep and has_served, following, since)


def stays_asleep(control_plane: CapelinControlPlane, now: datetime) -> bool:
    """Whether to start nothing while the desired state is unknown."""
    try:
        return sleep_state(control_plane, now).asleep
    except InvalidSpecError:
        return is_condition_true((control_plane.status or Status()).conditions, ASLEEP)


def waiting_requests(
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    observed: Observed,
    progress: Progress,
) -> tuple[str, ...]:
    """The requests that wait until the control plane wakes."""
    status, now = control_plane.status or Status(), desired.now
    backup = _moment(control_plane, BACKUP_ANNOTATION)
    last = status.backup.time if status.backup else None
    versions = {count.version for count in status.versions}
    is_upgraded = not versions or desired.version in versions
    is_due = backup is not None and backup <= now and (last is None or is_older(last, backup, now))
    is_rotating = progress.stage is not None or _is_rotation_due(control_plane, progress, now)
    is_resized = observed.voters in {0, desired.etcd_replicas}
    members = f"the change of etcd to {desired.etcd_replicas} members"
    requests = (
        (Operation.ROLLOUT, f"the upgrade to {desired.version}", not is_upgraded),
        (Operation.MEMBERS, members, not is_resized),
        (Operation.ENCRYPTION, str(Operation.ENCRYPTION), desired.encryption.changing),
        (Operation.BACKUP, str(Operation.BACKUP), is_due),
        (Operation.ROTATION, "a rotation of CAs", is_rotating),
    )
    return tuple(
        text
        for operation, text, is_requested in requests
        if is_requested and obstacle(operation, {Operation.SLEEP}) is not None
    )


def _is_rotation_due(control_plane: CapelinControlPlane, progress: Progress, now: datetime) -> bool:
    try:
        return rotation_requests(control_plane, now).includes(progress.created)
    except InvalidSpecError:
        return False


def _moment(control_plane: CapelinControlPlane, annotation: str) -> datetime | None:
    try:
        return annotated_moment(control_plane, annotation)
    except InvalidSpecError:
        # The task that reads it reports that.
        return None
