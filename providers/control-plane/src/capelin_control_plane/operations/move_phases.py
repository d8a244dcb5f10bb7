"""Moves of control planes on pods to another management cluster: phases and requirements. Pure.

`clusterctl move` pauses the Cluster, waits until no annotation blocks the move, creates the objects
in the other management cluster and deletes them here. The data moves as a backup. Annotations on
the control plane are the whole operation, and move with it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from capelin.contract import (
    BLOCK_MOVE_ANNOTATION,
    MOVE_LABEL,
    PAUSED,
    ConditionSpec,
    find_condition,
    is_condition_true,
)

from capelin_control_plane.api import CapelinControlPlane, Spec, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import (
    MOVE_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    RESTORE_ANNOTATION,
    ControlPlane,
    InvalidSpecError,
    annotated_moment,
)
from capelin_control_plane.desired.instances import Observed, Remains
from capelin_control_plane.operations.engine import (
    Operation,
    in_progress,
    obstacle,
    waiting_text,
)

VALIDITY: Final = timedelta(hours=1)
MOVABLE: Final = "Movable"
"""Whether `clusterctl move` takes the control plane to another management cluster."""
MOVING: Final = "Moving"

_IN_CLUSTER: Final = (".svc", ".cluster.local")


class MovePhase(StrEnum):
    """The phases of a move, in their order. Their names are reasons of conditions."""

    STOPPING = "StoppingForMove"
    """API servers and their controllers stop: from here on, no write is acknowledged."""
    BACKING_UP = "TakingFinalBackup"
    """etcd still runs. The final backup has all writes."""
    RELEASING = "ReleasingForMove"
    """The final backup is named. Everything stops but the volumes and etcd's state."""
    READY = "ReadyForMove"
    """Nothing blocks `clusterctl move` any more."""


def move_phase(control_plane: CapelinControlPlane, remains: Remains) -> MovePhase:
    """The phase of a move while the Cluster is paused."""
    if not is_handed_over(control_plane):
        return MovePhase.STOPPING if remains.clients else MovePhase.BACKING_UP
    is_blocking = BLOCK_MOVE_ANNOTATION in control_plane.metadata.annotations
    return MovePhase.RELEASING if remains.any or is_blocking else MovePhase.READY


def is_handed_over(control_plane: CapelinControlPlane) -> bool:
    """Whether the final backup of this object is named. False in the other management cluster."""
    return control_plane.metadata.annotations.get(MOVED_FROM_ANNOTATION) == control_plane.uid


def is_moving(control_plane: CapelinControlPlane, now: datetime) -> bool:
    """Whether the present pause of its Cluster is that of a move."""
    if is_handed_over(control_plane):
        return True
    status = control_plane.status or Status()
    # The spec may have changed since, for example to another destination of backups.
    is_checked = status.observed_generation == control_plane.metadata.generation
    if not is_checked or not is_condition_true(status.conditions, MOVABLE):
        return False
    if _has_begun(control_plane, status):
        return True
    # No provider may have run when the hour ended, or since another request.
    request = control_plane.metadata.annotations.get(MOVE_ANNOTATION)
    return status.accepted_move == request and _is_valid(control_plane, now)


def _has_begun(control_plane: CapelinControlPlane, status: Status) -> bool:
    """Whether the move began in the present pause. It continues after the hour."""
    is_requested = MOVE_ANNOTATION in control_plane.metadata.annotations
    # An abandoned move can leave its condition until a reconcile succeeds.
    is_paused = is_condition_true(status.conditions, PAUSED)
    return is_requested and is_paused and find_condition(status.conditions, MOVING) is not None


def _is_valid(control_plane: CapelinControlPlane, now: datetime) -> bool:
    try:
        return move_request(control_plane, now).valid
    except InvalidSpecError:
        return False


def handing_over(control_plane: CapelinControlPlane, backup: str) -> dict[str, str | None]:
    """The annotations that name the final backup."""
    return {MOVED_FROM_ANNOTATION: control_plane.uid, RESTORE_ANNOTATION: backup}


UNBLOCKING: Final[dict[str, str | None]] = {BLOCK_MOVE_ANNOTATION: None, MOVE_ANNOTATION: None}
"""The annotations that let clusterctl continue. A later pause is an ordinary one."""
ABANDONING: Final[dict[str, str | None]] = {MOVED_FROM_ANNOTATION: None, RESTORE_ANNOTATION: None}
"""The annotations of a control plane whose Cluster continues here: its data is still here."""


def user_objects(spec: Spec) -> list[tuple[str, str]]:
    """Kind and name of the users' objects that a spec names. They belong to no Cluster."""
    secrets: list[str] = []
    config_maps: list[str] = []
    if (backup := spec.etcd.backup) is not None:
        secrets.append(backup.encryption_key.name)
        if backup.destination.s3 is not None:
            secrets.append(backup.destination.s3.credentials.name)
    if (encryption := spec.api_server.encryption) and encryption.keys_from:
        secrets.append(encryption.keys_from.name)
    if (audit_policy := spec.api_server.audit_policy) is not None:
        config_maps.append(audit_policy.config_map.name)
    if spec.pods is not None:
        secrets += spec.pods.images.pull_secrets
    kinds = (("secret", secrets), ("configmap", config_maps))
    return [(kind, name) for kind, names in kinds for name in sorted(set(names))]


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Whether a pause is that of a move now, and when to look again."""

    valid: bool = False
    next: datetime | None = None


def move_request(control_plane: CapelinControlPlane, now: datetime) -> MoveRequest:
    """The request of a move. It is valid for an hour.

    Raises:
        InvalidSpecError: the annotation is not a moment.
    """
    requested = annotated_moment(control_plane, MOVE_ANNOTATION)
    if requested is None or now >= requested + VALIDITY:
        return MoveRequest()
    if now < requested:
        # The clock of the client is ahead.
        return MoveRequest(next=requested)
    return MoveRequest(valid=True, next=requested + VALIDITY)


def movable(
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    observed: Observed,
    *,
    host: str,
    own_hosts: Collection[str],
    staying: Collection[str],
) -> ConditionSpec:
    """Whether a control plane whose move was requested can move.

    Args:
        control_plane: The object.
        desired: Its desired state.
        observed: Its observed state.
        host: The host of its endpoint.
        own_hosts: The addresses of this management cluster.
        staying: Users' objects that clusterctl would leave behind, such as `secret backup-key`.
    """
    refusal = _refusal(control_plane.spec, host, own_hosts, staying)
    if refusal is not None:
        return ConditionSpec(MOVABLE, "False", Reason.MOVE_REFUSED, refusal)
    if obstacle := _obstacle(desired, observed):
        return ConditionSpec(MOVABLE, "False", Reason.MOVE_POSTPONED, obstacle)
    return ConditionSpec(
        MOVABLE,
        "True",
        Reason.MOVE_REQUESTED,
        "the next pause of the Cluster stops the API, for clusterctl move",
    )


def accepted_move(control_plane: CapelinControlPlane, condition: ConditionSpec) -> str | None:
    """The request that a true condition `Movable` accepts. The condition does not name it."""
    if condition.status != "True":
        return None
    return control_plane.metadata.annotations[MOVE_ANNOTATION]


def not_requested(problem: InvalidSpecError | None = None) -> ConditionSpec:
    """The condition of a control plane on pods without a request, or with an invalid one."""
    if problem is not None:
        return ConditionSpec(MOVABLE, "False", Reason.MOVE_REFUSED, str(problem))
    return ConditionSpec(
        MOVABLE,
        "False",
        Reason.MOVE_NOT_REQUESTED,
        "clusterctl move would wait for an annotation and then fail. Request the move with capelin"
        " move before",
    )


def _refusal(
    spec: Spec, host: str, own_hosts: Collection[str], staying: Collection[str]
) -> str | None:
    """Why a control plane cannot move, and how to change that."""
    backup, pods = spec.etcd.backup, spec.pods
    if backup is None or backup.destination.s3 is None:
        return (
            "its data moves as a backup: set spec.etcd.backup with a bucket that both management"
            " clusters reach"
        )
    if pods is not None and pods.etcd_volume.medium == "Memory":
        return "spec.pods.etcdVolume.medium: data in memory cannot be restored"
    is_portable = pods is not None and pods.exposure.portable
    if not is_portable and (host in own_hosts or host.endswith(_IN_CLUSTER)):
        return (
            f"its endpoint {host} is an address of this management cluster, and machines would not"
            " reach the API elsewhere. If the other management cluster can have the same address,"
            " set spec.pods.exposure.portable. Otherwise create another cluster whose"
            " spec.controlPlaneEndpoint is a DNS name or an address of yours"
        )
    if staying:
        commands = "; ".join(f"kubectl label {each} {MOVE_LABEL}=" for each in staying)
        return f"clusterctl would leave objects behind that the spec names. Run: {commands}"
    return None


def _obstacle(desired: ControlPlane, observed: Observed) -> str:
    """The operation to wait for: the other management cluster could not complete it."""
    readiness = "" if observed.answers else "an API server to be ready"
    text = waiting_text(obstacle(Operation.MOVE, in_progress(desired, observed)), readiness)
    return f"a move waits for {text}" if text else ""
