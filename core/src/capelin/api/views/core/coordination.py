"""What controllers tell each other and people: leases and events."""

from pydantic import Field

from capelin.api.meta import MicroTime, Time
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import ObjectReference


class LeaseSpec(Model):
    """Who holds a lease, and until when."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int | None = None


@kind(group="coordination.k8s.io", version="v1")
class Lease(BaseObject):
    """Something that one holder at a time has."""

    spec: LeaseSpec = Field(default_factory=LeaseSpec)


class EventSeries(Model):
    """How often an event has come again."""

    count: int
    last_observed_time: MicroTime


@kind(group="events.k8s.io", version="v1")
class Event(BaseObject):
    """Something that happened to an object, told to people."""

    event_time: MicroTime | None = None
    series: EventSeries | None = None
    reporting_controller: str | None = None
    reporting_instance: str | None = None
    action: str | None = None
    reason: str | None = None
    regarding: ObjectReference | None = None
    related: ObjectReference | None = None
    note: str | None = None
    type: str | None = None
    deprecated_count: int | None = None
    deprecated_first_timestamp: Time | None = None
    deprecated_last_timestamp: Time | None = None


class EventSource(Model):
    """Who told of an event, in the older form."""

    component: str | None = None
    host: str | None = None


@kind(group="", version="v1", name="Event")
class CoreEvent(BaseObject):
    """The same events in their older form."""

    involved_object: ObjectReference | None = None
    related: ObjectReference | None = None
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    action: str | None = None
    count: int | None = None
    event_time: MicroTime | None = None
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    series: EventSeries | None = None
    source: EventSource | None = None
    reporting_component: str | None = None
    reporting_instance: str | None = None
