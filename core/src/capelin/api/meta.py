"""Types that all Kubernetes objects share: metadata, owners, conditions, times."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from annotated_types import Ge, MaxLen, MinLen
from pydantic import AfterValidator, Field, GetCoreSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from capelin.api.fields import Int64, map_list
from capelin.api.model import Model


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _seconds(moment: datetime) -> str:
    return _utc(moment).isoformat(timespec="seconds") + "Z"


def _microseconds(moment: datetime) -> str:
    return _utc(moment).isoformat(timespec="microseconds") + "Z"


# Go's zero time, or a year that stays a year in every time zone.
_TIME = (
    r"^(0001-01-01T00:00:00Z|[12][0-9]{3}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(\.[0-9]{1,9})?([Zz]|[+-](0[0-9]|1[0-9]|2[0-3]):[0-5][0-9]))$"
)


def _to_the_second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0) if moment.microsecond else moment


class _Moment:
    """Accepts exactly the times that the API server accepts."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        moment = core_schema.datetime_schema(tz_constraint="aware", strict=False)
        written = core_schema.chain_schema([core_schema.str_schema(pattern=_TIME), moment])
        given = core_schema.datetime_schema(tz_constraint="aware", strict=True)
        return core_schema.union_schema(
            [written, given],
            mode="left_to_right",
            custom_error_type="time",
            custom_error_message="a time has to look like 2006-01-02T15:04:05Z",
        )


_Any = Annotated[
    datetime,
    _Moment(),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _TIME}),
]

Time = Annotated[_Any, AfterValidator(_to_the_second), PlainSerializer(_seconds)]
"""A time with seconds, like `metav1.Time`."""

MicroTime = Annotated[_Any, PlainSerializer(_microseconds)]
"""A time with microseconds, like `metav1.MicroTime`."""


class OwnerReference(Model):
    """An owner of an object. Kubernetes deletes the object together with its last owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """Metadata of an object."""

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


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


class Condition(Model):
    """A condition of an object, as Kubernetes' `metav1.Condition`."""

    type: Annotated[
        str,
        MinLen(1),
        MaxLen(316),
        Field(pattern=rf"^({_LABEL}(\.{_LABEL})*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"),
    ]
    """Type of the condition, such as `Available`."""

    status: Literal["True", "False", "Unknown"]
    """Status of the condition, one of True, False, Unknown."""

    reason: Annotated[
        str,
        MinLen(1),
        MaxLen(1024),
        Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    ]
    """Reason for the status, in one CamelCase word."""

    message: Annotated[str, MaxLen(32768)] = ""
    """Details about the status, for people."""

    last_transition_time: Time
    """Time of the last change of the status."""

    observed_generation: Annotated[Int64, Ge(0)] | None = None
    """Generation of the spec that the condition was set for."""


Conditions = Annotated[list[Condition], map_list("type"), MaxLen(32)]
"""Conditions of an object, one of each type."""
