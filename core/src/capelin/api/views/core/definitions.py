"""Custom resource definitions, as far as one reads which kinds there are."""

from typing import Annotated, Any

from pydantic import Field

from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import NULL_IS_EMPTY, StateCondition


class Names(Model):
    """What a kind is called."""

    kind: str | None = None
    list_kind: str | None = None
    plural: str | None = None
    singular: str | None = None
    short_names: list[str] = []
    categories: list[str] = []


class DefinedVersion(Model):
    """A version of a kind."""

    name: str
    served: bool | None = None
    storage: bool | None = None
    deprecated: bool | None = None
    subresources: dict[str, Any] = {}


class CustomResourceDefinitionSpec(Model):
    """A kind's names, scope and versions."""

    group: str | None = None
    scope: str | None = None
    names: Names = Field(default_factory=Names)
    versions: list[DefinedVersion] = []
    conversion: dict[str, Any] = {}


class CustomResourceDefinitionStatus(Model):
    """Whether the API server serves a kind."""

    conditions: Annotated[list[StateCondition], NULL_IS_EMPTY] = []
    accepted_names: Names = Field(default_factory=Names)
    stored_versions: Annotated[list[str], NULL_IS_EMPTY] = []


@kind(group="apiextensions.k8s.io", version="v1", namespaced=False)
class CustomResourceDefinition(BaseObject):
    """A kind that is not Kubernetes' own."""

    spec: CustomResourceDefinitionSpec = Field(default_factory=CustomResourceDefinitionSpec)
    status: CustomResourceDefinitionStatus = Field(default_factory=CustomResourceDefinitionStatus)
