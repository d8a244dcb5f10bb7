"""The variables that Cluster API itself gives to patches, under the name `builtin`."""

from functools import cached_property
from typing import Any, TypeVar

from pydantic import Field

from capelin.runtime.messages import Part, read
from capelin.runtime.topology.patches import is_object

PartT = TypeVar("PartT", bound=Part)

BUILTIN = "builtin"


class Metadata(Part):
    """Labels and annotations."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Reference(Part):
    """The name of another object."""

    name: str = ""


class ClassReference(Part):
    """The ClusterClass."""

    name: str
    namespace: str


class Topology(Part):
    """What the Cluster says of its topology."""

    version: str = ""
    """Where the cluster as a whole is going; parts of it may be on another version."""
    class_ref: ClassReference | None = None
    class_: str = ""
    class_namespace: str = ""


class Network(Part):
    """The addresses in the cluster."""

    service_domain: str | None = None
    services: list[str] = []
    pods: list[str] = []


class ClusterBuiltins(Part):
    """The Cluster."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    metadata: Metadata = Field(default_factory=Metadata)
    topology: Topology = Field(default_factory=Topology)
    network: Network = Field(default_factory=Network)


class MachineTemplate(Part):
    """The machines of the control plane."""

    infrastructure_ref: Reference = Field(default_factory=Reference)


class ControlPlaneBuiltins(Part):
    """The control plane, for the templates that belong to it."""

    version: str = ""
    """What this template is to be on."""
    metadata: Metadata = Field(default_factory=Metadata)
    name: str = ""
    replicas: int | None = None
    machine_template: MachineTemplate = Field(default_factory=MachineTemplate)


class Bootstrap(Part):
    """How the machines are bootstrapped."""

    config_ref: Reference = Field(default_factory=Reference)


class WorkerBuiltins(Part):
    """A MachineDeployment or MachinePool, for the templates that belong to it."""

    version: str = ""
    """What this template is to be on."""
    metadata: Metadata = Field(default_factory=Metadata)
    class_: str = ""
    name: str = ""
    topology_name: str = ""
    replicas: int | None = None
    bootstrap: Bootstrap = Field(default_factory=Bootstrap)
    infrastructure_ref: Reference = Field(default_factory=Reference)


class Builtins:
    """What Cluster API says of the cluster, and of what a template belongs to.

    Each part is read when it is asked for: most changes ask for one.
    """

    def __init__(self, document: object) -> None:
        self._document: dict[str, Any] = document if is_object(document) else {}

    @cached_property
    def cluster(self) -> ClusterBuiltins:
        """The Cluster."""
        return read(ClusterBuiltins, self._document.get("cluster") or {})

    @cached_property
    def control_plane(self) -> ControlPlaneBuiltins | None:
        """The control plane, for the templates that belong to it."""
        return self._part(ControlPlaneBuiltins, "controlPlane")

    @cached_property
    def machine_deployment(self) -> WorkerBuiltins | None:
        """The MachineDeployment, for the templates that belong to one."""
        return self._part(WorkerBuiltins, "machineDeployment")

    @cached_property
    def machine_pool(self) -> WorkerBuiltins | None:
        """The MachinePool, for the templates that belong to one."""
        return self._part(WorkerBuiltins, "machinePool")

    def _part(self, model: type[PartT], name: str) -> PartT | None:
        document = self._document.get(name)
        return None if document is None else read(model, document)
