"""Decides which Kubernetes events an object gets, from its conditions. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from capelin.api import Condition
from capelin.contract import (
    DELETING,
    PAUSED,
    REMEDIATING,
    ROLLING_OUT,
    SCALING_DOWN,
    SCALING_UP,
)

_FINISHED: Final = {
    ROLLING_OUT: "RolledOut",
    SCALING_UP: "ScaledUp",
    SCALING_DOWN: "ScaledDown",
    REMEDIATING: "Remediated",
    DELETING: "",
}
"""Conditions that are true during an activity, and the reason of the event at its end."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object that becomes an event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def changes(
    before: Mapping[str, Condition], after: Iterable[Condition], ready_condition: str
) -> list[Change]:
    """The changes of an object between two reads of its conditions.

    An activity that begins with another reason, for example a blocked rollout, is a warning.
    """
    found: list[Change] = []
    for condition in after:
        earlier = before.get(condition.type)
        was, now = earlier is not None and earlier.status == "True", condition.status == "True"
        message = " ".join(condition.message.split())
        if condition.type == ready_condition and now and not was:
            found.append(Change("Normal", ready_condition, message or "it is as it should be"))
        elif condition.type == ready_condition and was and not now:
            found.append(Change("Warning", condition.reason, message or "it was before"))
        elif condition.type in _FINISHED and now and not was:
            expected = condition.reason == condition.type and condition.type != REMEDIATING
            type_ = "Normal" if expected else "Warning"
            found.append(Change(type_, condition.reason, message or "it has begun"))
        elif condition.type in _FINISHED and was and not now and _FINISHED[condition.type]:
            found.append(Change("Normal", _FINISHED[condition.type], "it is done"))
    return found


def transitions(before: Mapping[str, Condition], after: Iterable[Condition]) -> list[str]:
    """A phrase for each condition whose status or reason changed, for the log."""
    quiet = {*_FINISHED, PAUSED}
    return [
        f"{condition.type} is {condition.status} ({condition.reason})"
        + (f": {message}" if (message := " ".join(condition.message.split())) else "")
        for condition in after
        if (
            not (condition.type in quiet and condition.status == "False")
            if (earlier := before.get(condition.type)) is None
            else (earlier.status, earlier.reason) != (condition.status, condition.reason)
        )
    ]
