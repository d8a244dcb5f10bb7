"""Namespaces, and what is kept in them: secrets, config maps, service accounts."""

from typing import ClassVar

from pydantic import ConfigDict, Field

from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import Bytes, StateCondition


@kind(group="", version="v1", name="Secret")
class Secret(BaseObject):
    """Data that must stay secret: neither `repr` nor a validation error shows it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(hide_input_in_errors=True)

    type: str | None = None
    data: dict[str, Bytes] = Field(default={}, repr=False)
    immutable: bool | None = None


@kind(group="", version="v1")
class ConfigMap(BaseObject):
    """Data that everybody may read."""

    data: dict[str, str] = {}
    binary_data: dict[str, Bytes] = {}
    immutable: bool | None = None


@kind(group="", version="v1")
class ServiceAccount(BaseObject):
    """Who a process is to the API server."""

    automount_service_account_token: bool | None = None


class NamespaceSpec(Model):
    """What keeps a namespace from going."""

    finalizers: list[str] = []


class NamespaceStatus(Model):
    """Whether a namespace is there or going."""

    phase: str | None = None
    conditions: list[StateCondition] = []


@kind(group="", version="v1", namespaced=False)
class Namespace(BaseObject):
    """A room for names."""

    spec: NamespaceSpec = Field(default_factory=NamespaceSpec)
    status: NamespaceStatus = Field(default_factory=NamespaceStatus)
