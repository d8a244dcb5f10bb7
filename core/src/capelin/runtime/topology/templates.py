"""A template on its way to be changed, and where it belongs."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from capelin.api import Unstructured
from capelin.runtime.topology.builtins import Builtins
from capelin.runtime.topology.drafts import Draft
from capelin.runtime.v1alpha1 import HolderReference

VariablesT_co = TypeVar("VariablesT_co", covariant=True)


class Place:
    """Where a template is used."""

    def __init__(self, holder: HolderReference, builtin: Builtins) -> None:
        self.holder = holder
        self.builtin = builtin


class Template(Place, Generic[VariablesT_co]):
    """A template that can be changed at will: a patch is made of what differs in the end.

    Cluster API takes changes of `spec` and of its own labels and annotations, no others.
    """

    def __init__(self, draft: Draft, variables: VariablesT_co, place: Place) -> None:
        super().__init__(place.holder, place.builtin)
        self._draft = draft
        self.variables = variables

    @property
    def kind(self) -> str:
        """The template's kind."""
        return str(self._draft.document.get("kind", ""))

    @property
    def api_version(self) -> str:
        """The template's group and version."""
        return str(self._draft.document.get("apiVersion", ""))

    @property
    def object(self) -> Unstructured:
        """All of the template. To ask for the part that is to change is quicker."""
        return self._draft.whole()

    @property
    def apply_metadata(self) -> dict[str, Any]:
        """The template's own labels and annotations, beside its name."""
        return self._draft.mapping(("metadata",))

    @property
    def spec(self) -> dict[str, Any]:
        """What machines, clusters or control planes made from it get as their spec."""
        return self.mapping()

    @property
    def metadata(self) -> dict[str, Any]:
        """What they get as labels and annotations."""
        return self._draft.mapping(("spec", "template", "metadata"))

    def mapping(self, *path: str) -> dict[str, Any]:
        """The object at a path in `spec`; made where it is not there, so ask only to fill it.

        Raises:
            UnexpectedTemplateError: there is something else.
        """
        return self._draft.mapping(("spec", "template", "spec", *path))

    def sequence(self, *path: str) -> list[Any]:
        """The list at a path in `spec`; made where it is not there, so ask only to fill it.

        Raises:
            UnexpectedTemplateError: there is something else.
        """
        return self._draft.sequence(("spec", "template", "spec", *path))


Where = Callable[[Place], bool]
"""Whether a template at this place is meant."""


def infrastructure_cluster(place: Place) -> bool:
    """The template of the cluster's infrastructure."""
    return (place.holder.kind, place.holder.field_path) == ("Cluster", "spec.infrastructureRef")


def control_plane(place: Place) -> bool:
    """The templates of the control plane and of its machines."""
    holder = place.holder
    return (holder.kind, holder.field_path) == ("Cluster", "spec.controlPlaneRef") or (
        holder.field_path
        in {"spec.machineTemplate.spec.infrastructureRef", "spec.machineTemplate.infrastructureRef"}
    )


def machine_deployments(*classes: str) -> Where:
    """The templates of MachineDeployments: of all, or of classes by name, as `default-*`."""

    def where(place: Place) -> bool:
        if place.holder.kind != "MachineDeployment":
            return False
        worker = place.builtin.machine_deployment
        return _is_one_of(worker.class_ if worker else "", classes)

    return where


def machine_pools(*classes: str) -> Where:
    """The templates of MachinePools: of all, or of classes by name, as `default-*`."""

    def where(place: Place) -> bool:
        if place.holder.kind != "MachinePool":
            return False
        worker = place.builtin.machine_pool
        return _is_one_of(worker.class_ if worker else "", classes)

    return where


def _is_one_of(name: str, classes: tuple[str, ...]) -> bool:
    return not classes or any(fnmatchcase(name, pattern) for pattern in classes)
