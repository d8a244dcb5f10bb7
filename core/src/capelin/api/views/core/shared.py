"""What several of Kubernetes' own kinds are made of."""

from base64 import b64decode, b64encode
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from capelin.api.meta import Time
from capelin.api.model import Model


def _decoded(value: object) -> object:
    return b64decode(value, validate=True) if isinstance(value, str) else value


def _encoded(value: bytes) -> str:
    return b64encode(value).decode()


def _empty_for_null(value: object) -> object:
    return [] if value is None else value


NULL_IS_EMPTY = BeforeValidator(_empty_for_null)
"""For lists that Go writes as `null` when they are empty."""

Bytes = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(_encoded)]
"""Bytes in Python, base64 on the wire."""


class ObjectReference(Model):
    """Another object, by whatever is known of it."""

    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    field_path: str | None = None


class LabelSelector(Model):
    """Which objects, by their labels."""

    class Requirement(Model):
        """One condition on one label."""

        key: str
        operator: str
        values: list[str] = []

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []


class StateCondition(Model):
    """One aspect of a core object's state: older and looser than `Condition`."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: Time | None = None
    last_heartbeat_time: Time | None = None
