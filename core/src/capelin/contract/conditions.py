"""Conditions: their types and reasons, their order, and the time of their last change.

What a controller says is a `ConditionSpec`, a condition without its history; `update_conditions`
makes conditions of it by looking at those before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from capelin.api import BaseObject, Condition
from capelin.api.capi import Cluster
from capelin.contract.labels import PAUSED_ANNOTATION

# Conditions that several kinds have

AVAILABLE: Final = "Available"
"""It does what it is there for, even if something about it is broken or being changed."""
READY: Final = "Ready"
"""It is as it is to be; of contract v1beta1, and of machines."""
UP_TO_DATE: Final = "UpToDate"
"""It is as the spec now wants it."""
ROLLING_OUT: Final = "RollingOut"
"""Some replicas are not yet as the spec wants them."""
SCALING_UP: Final = "ScalingUp"
"""There are fewer replicas than there are to be."""
SCALING_DOWN: Final = "ScalingDown"
"""There are more replicas than there are to be."""
REMEDIATING: Final = "Remediating"
"""Something unhealthy is being replaced."""
DELETING: Final = "Deleting"
"""It is being removed."""
PAUSED: Final = "Paused"
"""It is being left alone."""

# Reasons that several conditions have, besides `X` and `NotX` for a condition X

NO_REPLICAS: Final = "NoReplicas"
"""There is nothing that it could be said of."""
WAITING_FOR_CLUSTER_INFRASTRUCTURE: Final = "WaitingForClusterInfrastructureReady"
"""The Cluster's infrastructure is not provisioned yet."""
WAITING_FOR_CONTROL_PLANE: Final = "WaitingForControlPlaneInitialized"
"""The control plane does not answer yet."""
WAITING_FOR_BOOTSTRAP_DATA: Final = "WaitingForBootstrapData"
"""The bootstrap provider has not made its data yet."""
NOT_PROVISIONED: Final = "NotProvisioned"
"""The infrastructure is not there yet."""

Status = Literal["True", "False", "Unknown"]

_FIRST = (AVAILABLE, READY)
_LAST = (PAUSED, DELETING)
_LONGEST_MESSAGE = 32768


@dataclass(frozen=True, slots=True)
class ConditionSpec:
    """What there is to say about one aspect of an object: a condition without its history."""

    type: str
    status: Status
    reason: str
    message: str = ""
    since: datetime | None = None
    """When it became so, where that is known better than by looking now: in a mirror."""

    @classmethod
    def of(cls, condition: Condition) -> "ConditionSpec":
        return cls(
            condition.type,
            condition.status,
            condition.reason,
            condition.message,
            condition.last_transition_time,
        )


def update_conditions(
    present: Iterable[Condition], wanted: Iterable[ConditionSpec], *, now: datetime, generation: int
) -> list[Condition]:
    """The wanted conditions, in order, each with the time at which its status last changed.

    Others' conditions are left out: with server-side apply, whoever sends one owns it.
    """
    before = {condition.type: condition for condition in present}
    after: dict[str, Condition] = {}
    for aspect in wanted:
        if aspect.type in after:
            raise ValueError(f"condition {aspect.type} is said twice")
        after[aspect.type] = _dated(aspect, before.get(aspect.type), now, generation)
    return _in_order(after.values())


def _in_order(conditions: Iterable[Condition]) -> list[Condition]:
    """Conditions as people want to read them: Available and Ready first, Paused, Deleting last."""
    return sorted(conditions, key=_place)


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_condition_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether a condition is there and true."""
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status == "True"


def _dated(
    aspect: ConditionSpec, before: Condition | None, now: datetime, generation: int
) -> Condition:
    if before is not None and before.status == aspect.status:
        moment = before.last_transition_time
    else:
        moment = aspect.since or now
        if before is not None:
            # A clock that was set back must not make it look as if the change came first.
            moment = max(moment, before.last_transition_time)
    return Condition(
        type=aspect.type,
        status=aspect.status,
        reason=aspect.reason,
        message=_shortened(aspect.message),
        last_transition_time=moment,
        observed_generation=generation,
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
    """The condition that says whether the object, or the Cluster that it is part of, is paused."""
    reasons: list[str] = []
    if cluster is not None and cluster.spec.paused:
        reasons.append("Cluster spec.paused is set to true")
    if PAUSED_ANNOTATION in obj.metadata.annotations:
        reasons.append(f"{obj.resource.kind} has the {PAUSED_ANNOTATION} annotation")
    if reasons:
        return ConditionSpec(PAUSED, "True", "Paused", ", ".join(reasons))
    return ConditionSpec(PAUSED, "False", "NotPaused")
