"""Conditions: their types, reasons and order, and the time of their last change.

A controller sets a `ConditionSpec`, a condition without its history. `update_conditions` adds the
history from the previous conditions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, Protocol, TypeVar

from capelin.api import BaseObject, Condition
from capelin.api.capi import Cluster
from capelin.contract.labels import PAUSED_ANNOTATION

# Conditions that several kinds have

AVAILABLE: Final = "Available"
"""The object serves its purpose, even if a part of it is broken or changing."""
READY: Final = "Ready"
"""The object is in its desired state. For contract v1beta1, and for machines."""
UP_TO_DATE: Final = "UpToDate"
"""The object matches its spec."""
ROLLING_OUT: Final = "RollingOut"
"""Some replicas do not match the spec yet."""
SCALING_UP: Final = "ScalingUp"
"""There are fewer replicas than desired."""
SCALING_DOWN: Final = "ScalingDown"
"""There are more replicas than desired."""
REMEDIATING: Final = "Remediating"
"""The controller is replacing something unhealthy."""
DELETING: Final = "Deleting"
"""The object is being deleted."""
PAUSED: Final = "Paused"
"""Controllers ignore the object."""
ASLEEP: Final = "Asleep"
"""The control plane runs no component until it wakes. Also the reason of other conditions."""
WAKING: Final = "Waking"
"""The control plane starts after a sleep, and does not serve yet. A reason."""

# Reasons that several conditions have, besides `X` and `NotX` for a condition X

NO_REPLICAS: Final = "NoReplicas"
"""The condition does not apply: there are no replicas."""
WAITING_FOR_CLUSTER_INFRASTRUCTURE: Final = "WaitingForClusterInfrastructureReady"
"""The Cluster's infrastructure is not provisioned yet."""
WAITING_FOR_CONTROL_PLANE: Final = "WaitingForControlPlaneInitialized"
"""The control plane does not answer yet."""
WAITING_FOR_BOOTSTRAP_DATA: Final = "WaitingForBootstrapData"
"""The bootstrap provider has not created its data yet."""
NOT_PROVISIONED: Final = "NotProvisioned"
"""The infrastructure does not exist yet."""

Status = Literal["True", "False", "Unknown"]

_FIRST = (AVAILABLE, READY)
_LAST = (PAUSED, DELETING)
_LONGEST_MESSAGE = 32768


@dataclass(frozen=True, slots=True)
class ConditionSpec:
    """One aspect of an object's state: a condition without its history."""

    type: str
    status: Status
    reason: str
    message: str = ""
    since: datetime | None = None
    """The time of the change, if a mirrored condition provides it."""
    observed_generation: int | None = None
    """The generation that it describes. Default: the present one."""

    @classmethod
    def of(cls, condition: Condition) -> "ConditionSpec":
        return cls(
            condition.type,
            condition.status,
            condition.reason,
            condition.message,
            condition.last_transition_time,
        )

    @classmethod
    def kept(cls, condition: Condition) -> "ConditionSpec":
        """A condition of the same object, from an earlier reconcile and about its generation."""
        return replace(cls.of(condition), observed_generation=condition.observed_generation)


def update_conditions(
    present: Iterable[Condition], wanted: Iterable[ConditionSpec], *, now: datetime, generation: int
) -> list[Condition]:
    """The desired conditions, each with the time at which its status last changed.

    Available and Ready come first, Paused and Deleting last.
    This omits conditions of other controllers: server-side apply makes the sender their owner.
    """
    before = {condition.type: condition for condition in present}
    after: dict[str, Condition] = {}
    for aspect in wanted:
        if aspect.type in after:
            raise ValueError(f"condition {aspect.type} is set twice")
        after[aspect.type] = _dated(aspect, before.get(aspect.type), now, generation)
    return sorted(after.values(), key=_place)


class AnyCondition(Protocol):
    """A condition of Cluster API's kinds, or of a Node or Pod."""

    @property
    def type(self) -> str: ...

    @property
    def status(self) -> str: ...


ConditionT = TypeVar("ConditionT", bound=AnyCondition)


def find_condition(conditions: Iterable[ConditionT], type_: str) -> ConditionT | None:
    """The condition of a type, or `None`."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_condition_true(conditions: Iterable[AnyCondition], type_: str) -> bool:
    """Whether a condition exists and is true."""
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status == "True"


def is_asleep(cluster: Cluster) -> bool:
    """Whether the provider of a Cluster's control plane reports that it sleeps or wakes.

    Cluster API mirrors the control plane's condition `Available` with its reason.
    """
    available = find_condition(cluster.status.conditions, "ControlPlaneAvailable")
    return available is not None and available.reason in {ASLEEP, WAKING}


def _dated(
    aspect: ConditionSpec, before: Condition | None, now: datetime, generation: int
) -> Condition:
    if before is not None and before.status == aspect.status:
        moment = before.last_transition_time
    else:
        moment = aspect.since or now
        if before is not None:
            # After the clock was set back, the change must not appear to come first.
            moment = max(moment, before.last_transition_time)
    return Condition(
        type=aspect.type,
        status=aspect.status,
        reason=aspect.reason,
        message=_shortened(aspect.message),
        last_transition_time=moment,
        observed_generation=(
            generation if aspect.observed_generation is None else aspect.observed_generation
        ),
    )


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return message[: _LONGEST_MESSAGE - 1] + "…"


def _place(condition: Condition) -> tuple[int, str]:
    if condition.type in _FIRST:
        return _FIRST.index(condition.type), ""
    if condition.type in _LAST:
        return len(_FIRST) + 1 + _LAST.index(condition.type), ""
    return len(_FIRST), condition.type


def paused(obj: BaseObject, cluster: Cluster | None) -> ConditionSpec:
    """The condition that shows whether the object, or its Cluster, is paused."""
    reasons: list[str] = []
    if cluster is not None and cluster.spec.paused:
        reasons.append("Cluster spec.paused is set to true")
    if PAUSED_ANNOTATION in obj.metadata.annotations:
        reasons.append(f"{obj.resource.kind} has the {PAUSED_ANNOTATION} annotation")
    if reasons:
        return ConditionSpec(PAUSED, "True", "Paused", ", ".join(reasons))
    return ConditionSpec(PAUSED, "False", "NotPaused")
