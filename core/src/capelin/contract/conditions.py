"""Conditions: giving them their times, keeping them in order, summing up, mirroring, reading.

What a controller wants to say is a `ConditionSpec`: a condition without its history. `update` makes
conditions of it by looking at what was said before. Rules `*/conditions`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast, get_args

from capelin.api import Condition, Unstructured

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
MACHINES_READY: Final = "MachinesReady"
"""All Machines are ready."""
MACHINES_UP_TO_DATE: Final = "MachinesUpToDate"
"""All Machines are as the spec now wants them."""
REMEDIATING: Final = "Remediating"
"""Something unhealthy is being replaced."""
DELETING: Final = "Deleting"
"""It is being removed."""
PAUSED: Final = "Paused"
"""It is being left alone."""

# Reasons that several conditions have, besides `X` and `NotX` for a condition X

NOT_YET_REPORTED: Final = "NotYetReported"
"""Nobody has said anything about it yet."""
NO_REASON_REPORTED: Final = "NoReasonReported"
"""Somebody said something about it, but not why."""
INVALID_CONDITION_REPORTED: Final = "InvalidConditionReported"
"""Somebody said something about it that cannot be understood."""
INTERNAL_ERROR: Final = "InternalError"
"""Something went wrong that is not supposed to; the log says what."""
OBJECT_DOES_NOT_EXIST: Final = "ObjectDoesNotExist"
"""What it is about is not there yet."""
OBJECT_DELETED: Final = "ObjectDeleted"
"""What it is about is gone."""
CONNECTION_DOWN: Final = "ConnectionDown"
"""The workload cluster cannot be reached."""
INSPECTION_FAILED: Final = "InspectionFailed"
"""The workload cluster could not be asked."""
NO_REPLICAS: Final = "NoReplicas"
"""There is nothing that it could be said of."""
WAITING_FOR_REPLICAS_SET: Final = "WaitingForReplicasSet"
"""Nobody has said yet how many replicas there are to be."""
WAITING_FOR_CLUSTER_INFRASTRUCTURE: Final = "WaitingForClusterInfrastructureReady"
"""The Cluster's infrastructure is not provisioned yet."""
WAITING_FOR_CONTROL_PLANE: Final = "WaitingForControlPlaneInitialized"
"""The control plane does not answer yet."""
WAITING_FOR_BOOTSTRAP_DATA: Final = "WaitingForBootstrapData"
"""The bootstrap provider has not made its data yet."""
PROVISIONED: Final = "Provisioned"
"""The infrastructure is there."""
NOT_PROVISIONED: Final = "NotProvisioned"
"""The infrastructure is not there yet."""
DELETION_COMPLETED: Final = "DeletionCompleted"
"""Everything is gone, and the object may go."""

Status = Literal["True", "False", "Unknown"]

_FIRST = (AVAILABLE, READY)
_LAST = (PAUSED, DELETING)
_LONGEST_MESSAGE = 32768
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)


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
        """What a condition says."""
        return cls(
            condition.type,
            condition.status,
            condition.reason,
            condition.message,
            condition.last_transition_time,
        )


def update(
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
    return in_order(after.values())


def merge(
    present: Iterable[Condition], wanted: Iterable[ConditionSpec], *, now: datetime, generation: int
) -> list[Condition]:
    """As `update`, together with the conditions that others have set."""
    before = {condition.type: condition for condition in present}
    after = update(before.values(), wanted, now=now, generation=generation)
    return in_order((before | {condition.type: condition for condition in after}).values())


def in_order(conditions: Iterable[Condition]) -> list[Condition]:
    """Conditions as people want to read them: Available and Ready first, Paused, Deleting last."""
    return sorted(conditions, key=_place)


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether a condition is there and true."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def summary(
    type_: str,
    aspects: Iterable[ConditionSpec],
    of: Sequence[str],
    *,
    negative: Collection[str] = (),
    optional: Collection[str] = (),
) -> ConditionSpec:
    """One aspect that is true when all those that it is made `of` are well.

    Args:
        type_: What to call it. Its reasons are `X`, `NotX` and `XUnknown`.
        aspects: Everything that is said about the object.
        of: The types that count, the most important first; messages come in this order.
        negative: Those of them that are well when they are false, such as `Deleting`.
        optional: Those that do not count while nobody has reported them.
    """
    said = {aspect.type: aspect for aspect in aspects}
    parts = [
        said.get(part)
        or ConditionSpec(part, "Unknown", NOT_YET_REPORTED, "Condition not yet reported")
        for part in of
        if part in said or part not in optional
    ]
    if not parts:
        raise ValueError(f"condition {type_} cannot be summed up from nothing")
    bad = [part for part in parts if part.status == ("True" if part.type in negative else "False")]
    unknown = [part for part in parts if part.status == "Unknown"]
    if bad:
        status, reason = "False", f"Not{type_}"
    elif unknown:
        status, reason = "Unknown", f"{type_}Unknown"
    else:
        status, reason = "True", type_
    troubled = [part for part in parts if part in bad or part in unknown]
    spoken = troubled or [part for part in parts if part.message]
    return ConditionSpec(type_, status, reason, "\n".join(map(_bullet, spoken)))


def mirror(
    source: Iterable[ConditionSpec],
    type_: str,
    *,
    target: str,
    fallback: ConditionSpec | None = None,
) -> ConditionSpec:
    """Another object's aspect as one of ours, with its time.

    Args:
        source: What is said about the other object.
        type_: Which of it.
        target: What to call it here.
        fallback: What to say while the other object says nothing.
    """
    found = next((aspect for aspect in source if aspect.type == type_), None)
    if found is not None:
        return ConditionSpec(target, found.status, found.reason, found.message, found.since)
    if fallback is not None:
        return ConditionSpec(target, fallback.status, fallback.reason, fallback.message)
    message = f"Condition {type_} not yet reported"
    return ConditionSpec(target, "Unknown", NOT_YET_REPORTED, message)


def read(manifest: Unstructured) -> list[ConditionSpec]:
    """What is said about an object of a kind that is not ours, as far as it can be understood.

    Only the type is required. A status that is none of the three becomes `Unknown`, with the
    reason `InvalidConditionReported`, as core does with the conditions of providers.
    """
    status = _mapping(manifest.get("status"))
    # Where a provider still has conditions of the older generation, the newer ones are here.
    listed = _list(_mapping(status.get("v1beta2")).get("conditions"), status.get("conditions"))
    found: dict[str, ConditionSpec] = {}
    for entry in map(_mapping, listed):
        type_ = entry.get("type")
        if isinstance(type_, str) and type_:
            found.setdefault(type_, _understood(type_, entry))
    return list(found.values())


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


def _bullet(part: ConditionSpec) -> str:
    lines = (part.message or part.reason).splitlines()
    if len(lines) == 1 and not lines[0].startswith("* "):
        return f"* {part.type}: {lines[0]}"
    nested = (f"  {line}" if line.startswith(("* ", "  ")) else f"  * {line}" for line in lines)
    return "\n".join((f"* {part.type}:", *nested))


def _understood(type_: str, entry: dict[str, Any]) -> ConditionSpec:
    reason: object = entry.get("reason")
    message: object = entry.get("message")
    status: object = entry.get("status")
    if status not in get_args(Status):
        complaint = f"Condition {type_} has a status that is neither True, False nor Unknown"
        return ConditionSpec(type_, "Unknown", INVALID_CONDITION_REPORTED, complaint)
    return ConditionSpec(
        type_,
        cast("Status", status),
        reason if isinstance(reason, str) and _REASON.fullmatch(reason) else NO_REASON_REPORTED,
        message if isinstance(message, str) else "",
        _moment(entry.get("lastTransitionTime")),
    )


def _moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _list(*values: object) -> list[object]:
    """The first of these that is a list at all."""
    for value in values:
        if isinstance(value, list):
            return cast("list[object]", value)
    return []


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
