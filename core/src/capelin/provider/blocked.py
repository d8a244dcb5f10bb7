"""Why a reconcile cannot continue: `Blocked`, and the messages of other exceptions."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Self, cast

from capelin.controller import explained, redact

_LONGEST = 1024
# Details that differ each time in the same situation would change a condition for ever.
_CHANGING = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # a uid
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"  # a time
    r"|\b0x[0-9a-f]{6,}\b"  # the address of a Python object
    r"|\b\d+\.\d+(?= ?(ms|s|seconds)\b)",  # a duration
    re.IGNORECASE,
)


class Reasons(StrEnum):
    """Base of the reasons of a provider's conditions. Its documentation shows their texts."""

    _value_: str
    meaning: str
    next_step: str

    def __new__(cls, value: str, meaning: str, next_step: str) -> Self:
        """A reason in CamelCase, its meaning for users, and what they do next."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning = meaning
        reason.next_step = next_step
        return reason


class FrameReason(Reasons):
    """The reasons that every provider's conditions can have."""

    RECONCILE_FAILED = (
        "ReconcileFailed",
        "a request failed, or the provider has a bug. The message has the error",
        "wait: the provider tries again. If it remains, search the provider's log for the object",
    )
    WAITING_FOR_OWNER = (
        "WaitingForOwner",
        "no Cluster or Machine owns the object yet",
        "refer to the object in one",
    )
    CLUSTER_NOT_FOUND = (
        "ClusterNotFound",
        "the Cluster of the object no longer exists",
        "delete the object",
    )
    OWNER_NOT_FOUND = (
        "OwnerNotFound",
        "the Machine or MachinePool of the object no longer exists",
        "delete the object",
    )
    WORKLOAD_UNREACHABLE = (
        "WorkloadClusterUnreachable",
        "the API server of the workload cluster does not answer",
        "check the API server of the workload cluster and the network to it",
    )
    INVALID_RESPONSE = (
        "InvalidResponse",
        "the API server of the workload cluster sends an unreadable or too large response",
        "check the server at the endpoint of the Cluster",
    )


class Blocked(Exception):  # noqa: N818 - a state of the object, not a fault of the program
    """A reconcile cannot continue now. The framework sets a condition and tries again.

    Args:
        reason: The condition's reason, in CamelCase.
        message: The problem. The same situation gives the same message, without times, ids or
            counters. Otherwise the condition would change with every reconcile.
        hint: The action that a person can take.
        retry_seconds: When to try again. None if a watched object will change first.
    """

    def __init__(
        self, reason: str, message: str, hint: str = "", *, retry_seconds: float | None = 5.0
    ) -> None:
        super().__init__(reason, message, hint)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.retry_seconds = retry_seconds

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocked) and vars(self) == vars(other)

    __hash__ = Exception.__hash__


def root_cause(error: BaseException) -> BaseException:
    """The exception itself, or the first one of a task group, `Blocked` before others."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if isinstance(leaf, Blocked)), leaves[0])


def describe(error: BaseException) -> str:
    """An exception in one line, without secrets. The same situation gives the same words."""
    text = " ".join(explained(error).split())
    name = type(error).__name__
    return redact(_CHANGING.sub("...", f"{name}: {text}" if text else name))[:_LONGEST]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
