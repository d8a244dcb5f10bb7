"""Templates for changes by handlers, their users, and the builtin variables."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import Field

from capelin.api import Unstructured
from capelin.runtime.messages import Part, read
from capelin.runtime.topology.draft import Draft
from capelin.runtime.topology.patches import is_object
from capelin.runtime.v1alpha1 import HolderReference

VariablesT_co = TypeVar("VariablesT_co", covariant=True)


PartT = TypeVar("PartT", bound=Part)

BUILTIN = "builtin"


class Metadata(Part):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Reference(Part):
    name: str = ""


class ClassReference(Part):
    name: str
    namespace: str


class Topology(Part):
    """The topology of the Cluster."""

    version: str = ""
    """The target version of the whole cluster. Parts of it may be on another version."""
    class_ref: ClassReference | None = None
    class_: str = ""
    class_namespace: str = ""


class Network(Part):
    service_domain: str | None = None
    services: list[str] = []
    pods: list[str] = []


class ClusterBuiltins(Part):
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
    """The version of this template."""
    metadata: Metadata = Field(default_factory=Metadata)
    name: str = ""
    replicas: int | None = None
    machine_template: MachineTemplate = Field(default_factory=MachineTemplate)


class Bootstrap(Part):
    config_ref: Reference = Field(default_factory=Reference)


class WorkerBuiltins(Part):
    """A MachineDeployment or MachinePool, for the templates that belong to it."""

    version: str = ""
    """The version of this template."""
    metadata: Metadata = Field(default_factory=Metadata)
    class_: str = ""
    name: str = ""
    topology_name: str = ""
    replicas: int | None = None
    bootstrap: Bootstrap = Field(default_factory=Bootstrap)
    infrastructure_ref: Reference = Field(default_factory=Reference)


class Builtins:
    """Cluster API's own variables: the cluster, and the user of the template.

    Each part is read on first use: most changes use only one.
    """

    def __init__(self, document: object) -> None:
        self._document: dict[str, Any] = document if is_object(document) else {}

    @cached_property
    def cluster(self) -> ClusterBuiltins:
        return read(ClusterBuiltins, self._document.get("cluster") or {})

    @cached_property
    def control_plane(self) -> ControlPlaneBuiltins | None:
        return self._part(ControlPlaneBuiltins, "controlPlane")

    @cached_property
    def machine_deployment(self) -> WorkerBuiltins | None:
        return self._part(WorkerBuiltins, "machineDeployment")

    @cached_property
    def machine_pool(self) -> WorkerBuiltins | None:
        return self._part(WorkerBuiltins, "machinePool")

    def _part(self, model: type[PartT], name: str) -> PartT | None:
        document = self._document.get(name)
        return None if document is None else read(model, document)


class TemplateRef:
    """The user of a template, and its builtin variables."""

    def __init__(self, holder: HolderReference, builtin: Builtins) -> None:
        self.holder = holder
        self.builtin = builtin


class Template(TemplateRef, Generic[VariablesT_co]):
    """A template to change in place. The patch contains the differences.

    Cluster API accepts changes of `spec` and of the template's own labels and annotations.
    """

    def __init__(self, draft: Draft, variables: VariablesT_co, ref: TemplateRef) -> None:
        super().__init__(ref.holder, ref.builtin)
        self._draft = draft
        self.variables = variables

    @property
    def kind(self) -> str:
        return str(self._draft.document.get("kind", ""))

    @property
    def api_version(self) -> str:
        return str(self._draft.document.get("apiVersion", ""))

    @property
    def object(self) -> Unstructured:
        """The whole template."""
        return self._draft.document

    @property
    def own_metadata(self) -> dict[str, Any]:
        """The template's own metadata: its labels, annotations and name."""
        return self._draft.mapping(("metadata",))

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the objects made from it."""
        return self.mapping()

    @property
    def metadata(self) -> dict[str, Any]:
        """The labels and annotations of the objects made from it."""
        return self._draft.mapping(("spec", "template", "metadata"))

    def mapping(self, *path: str) -> dict[str, Any]:
        """The object at a path in `spec`. Creates it if missing, so use it only to fill it.

        Raises:
            UnexpectedTemplateError: The template has another type of value there.
        """
        return self._draft.mapping(("spec", "template", "spec", *path))

    def sequence(self, *path: str) -> list[Any]:
        """The list at a path in `spec`. Creates it if missing, so use it only to fill it.

        Raises:
            UnexpectedTemplateError: The template has another type of value there.
        """
        return self._draft.sequence(("spec", "template", "spec", *path))


Selector = Callable[[TemplateRef], bool]
"""Whether a change applies to this template."""


def infrastructure_cluster(ref: TemplateRef) -> bool:
    """The template of the cluster's infrastructure."""
    return (ref.holder.kind, ref.holder.field_path) == ("Cluster", "spec.infrastructureRef")


def control_plane(ref: TemplateRef) -> bool:
    """The templates of the control plane and of its machines."""
    holder = ref.holder
    return (holder.kind, holder.field_path) == ("Cluster", "spec.controlPlaneRef") or (
        holder.field_path
        in {"spec.machineTemplate.spec.infrastructureRef", "spec.machineTemplate.infrastructureRef"}
    )


def machine_deployments(*classes: str) -> Selector:
    """The templates of MachineDeployments: of all, or of classes by name, such as `default-*`."""

    def selector(ref: TemplateRef) -> bool:
        if ref.holder.kind != "MachineDeployment":
            return False
        worker = ref.builtin.machine_deployment
        return _is_one_of(worker.class_ if worker else "", classes)

    return selector


def machine_pools(*classes: str) -> Selector:
    """The templates of MachinePools: of all, or of classes by name, such as `default-*`."""

    def selector(ref: TemplateRef) -> bool:
        if ref.holder.kind != "MachinePool":
            return False
        worker = ref.builtin.machine_pool
        return _is_one_of(worker.class_ if worker else "", classes)

    return selector


def _is_one_of(name: str, classes: tuple[str, ...]) -> bool:
    return not classes or any(fnmatchcase(name, pattern) for pattern in classes)
