"""ClusterClasses: the shapes that Clusters are made in."""

from typing import Any

from pydantic import Field

from capelin.api.meta import Condition
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.capi.shared import Metadata, TemplateReference


class ClassTemplate(Model):
    """A template that a class is made from."""

    template_ref: TemplateReference | None = None


class ControlPlaneClass(ClassTemplate):
    """The control planes of the class."""

    metadata: Metadata = Field(default_factory=Metadata)
    machine_infrastructure: ClassTemplate | None = None


class WorkerClass(Model):
    """MachineDeployments or MachinePools of the class."""

    class_: str | None = None
    metadata: Metadata = Field(default_factory=Metadata)
    bootstrap: ClassTemplate | None = None
    infrastructure: ClassTemplate | None = None


class WorkersClass(Model):
    """The workers of the class."""

    machine_deployments: list[WorkerClass] = []
    machine_pools: list[WorkerClass] = []


class VariableSchema(Model):
    """What values a variable takes, as a schema of OpenAPI v3."""

    openapi_schema: dict[str, Any] = Field(
        default={}, validation_alias="openAPIV3Schema", serialization_alias="openAPIV3Schema"
    )


class ClassVariable(Model):
    """A variable of the class."""

    name: str
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class ExternalPatch(Model):
    """The hooks that patch and check what is made from the class."""

    generate_patches_extension: str | None = None
    validate_topology_extension: str | None = None
    discover_variables_extension: str | None = None
    settings: dict[str, str] = {}


class ClassPatch(Model):
    """A change of the templates for a Cluster."""

    name: str
    description: str | None = None
    enabled_if: str | None = None
    definitions: list[dict[str, Any]] = []
    external: ExternalPatch | None = None


class ExternalUpgrade(Model):
    """The hook that plans upgrades."""

    generate_upgrade_plan_extension: str | None = None


class ClassUpgrade(Model):
    """How Clusters of the class are upgraded."""

    external: ExternalUpgrade | None = None


class ClusterClassSpec(Model):
    """Templates, variables and patches."""

    infrastructure: ClassTemplate | None = None
    control_plane: ControlPlaneClass | None = None
    workers: WorkersClass = Field(default_factory=WorkersClass)
    variables: list[ClassVariable] = []
    patches: list[ClassPatch] = []
    upgrade: ClassUpgrade | None = None
    kubernetes_versions: list[str] = []


class VariableDefinition(Model):
    """Who defines a variable, and how."""

    from_: str | None = None
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class StatusVariable(Model):
    """A variable with all its definitions."""

    name: str
    definitions_conflict: bool | None = None
    definitions: list[VariableDefinition] = []


class ClusterClassStatus(Model):
    """Which variables the class has, and whether all is well."""

    conditions: list[Condition] = []
    variables: list[StatusVariable] = []
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class ClusterClass(BaseObject):
    """A shape that Clusters are made in."""

    spec: ClusterClassSpec = Field(default_factory=ClusterClassSpec)
    status: ClusterClassStatus = Field(default_factory=ClusterClassStatus)
