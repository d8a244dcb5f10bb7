"""The types that every Kubernetes object shares: metadata, owners, conditions, times."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from annotated_types import MaxLen, MinLen
from pydantic import AwareDatetime, PlainSerializer, WithJsonSchema

from capelin.api.model import Model


def _seconds(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _microseconds(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_DATE_TIME = WithJsonSchema({"type": "string", "format": "date-time"})

Time = Annotated[AwareDatetime, PlainSerializer(_seconds), _DATE_TIME]
"""A moment to the second, as Kubernetes' `metav1.Time`."""

MicroTime = Annotated[AwareDatetime, PlainSerializer(_microseconds), _DATE_TIME]
"""A moment to the microsecond, as Kubernetes' `metav1.MicroTime`."""


class OwnerReference(Model):
    """Who an object belongs to: when the owner goes, so does it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """An object's name, place, labels, owners and history."""

    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []
    managed_fields: list[dict[str, Any]] | None = None


class Condition(Model):
    """One aspect of an object's state, as Kubernetes' `metav1.Condition`."""

    type: Annotated[str, MinLen(1), MaxLen(316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, MinLen(1), MaxLen(1024)]
    message: Annotated[str, MaxLen(32768)] = ""
    last_transition_time: Time
    observed_generation: int | None = None
