"""From what a request can be about to the request of any hook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from capelin.api import Unstructured
from capelin.runtime.catalog import AnyHook, CatalogError
from capelin.runtime.topology.builtins import BUILTIN
from capelin.runtime.v1alpha1.common import ClusterRequest
from capelin.runtime.v1alpha1.in_place import (
    CanUpdateMachineRequest,
    CanUpdateMachineSetRequest,
    UpdateMachineRequest,
)
from capelin.runtime.v1alpha1.lifecycle import (
    AfterClusterUpgradeRequest,
    UpgradedRequest,
    UpgradeRequest,
)
from capelin.runtime.v1alpha1.topology import (
    DiscoverVariablesRequest,
    GeneratePatchesRequest,
    ValidateTopologyRequest,
)
from capelin.runtime.v1alpha1.upgrade_plan import GenerateUpgradePlanRequest


@dataclass(frozen=True, slots=True)
class UsedTemplate:
    """A template, and what uses it."""

    object: Unstructured
    holder: Unstructured
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What differs for it."""


@dataclass(frozen=True, slots=True)
class UsedPatch:
    """A patch of the ClusterClass: which handlers answer for it, and what they are told."""

    name: str
    handlers: Mapping[str, str] = field(default_factory=dict[str, str])
    """By the name of their hook, as `handler.extension`; none for an inline patch."""
    variables: frozenset[str] = frozenset()
    """Those that it has defined: it sees no others."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster that requests are about: what it is made from, and where it is going."""

    cluster: Unstructured
    from_version: str
    to_version: str
    templates: Sequence[UsedTemplate] = ()
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    machine: Mapping[str, Unstructured] = field(default_factory=dict[str, Unstructured])
    """`machine`, `infrastructureMachine` and `bootstrapConfig`, as they are to be."""
    machine_set: Mapping[str, Unstructured] = field(default_factory=dict[str, Unstructured])
    """`machineSet` and the templates of its machines, as they are to be."""
    patches: Sequence[UsedPatch] = ()
    """The patches of the cluster's class, in its order."""

    def seen_by(self, patch: UsedPatch, hook: AnyHook) -> "Scene":
        """The scene with the variables that Cluster API lets the handlers of a patch see."""
        if issubclass(hook.request_type(), ValidateTopologyRequest):
            # Cluster API asks about what the last patch has left, its variables included.
            patch = self.patches[-1]
        return replace(
            self,
            variables=_visible(self.variables, patch),
            templates=[
                replace(one, variables=_visible(one.variables, patch)) for one in self.templates
            ],
        )


def _visible(values: Mapping[str, Any], patch: UsedPatch) -> dict[str, Any]:
    return {
        name: value for name, value in values.items() if name == BUILTIN or name in patch.variables
    }


def request_for(
    hook: AnyHook, scene: Scene, settings: Mapping[str, str] | None = None
) -> Unstructured:
    """A request of a hook about a scene, as Cluster API would send it.

    Raises:
        CatalogError: the hook is not one of Cluster API's, or is about a machine where the scene
            has none.
    """
    kind = hook.request_type()
    head = {"apiVersion": hook.id.api_version, "kind": kind.__name__}
    if hook.singleton:
        return head
    return {**head, **({"settings": dict(settings)} if settings else {}), **_about(hook, scene)}


def _about(hook: AnyHook, scene: Scene) -> Unstructured:
    kind = hook.request_type()
    if issubclass(kind, ClusterRequest):
        return {"cluster": scene.cluster, **_versions(kind, scene)}
    if issubclass(kind, GeneratePatchesRequest | ValidateTopologyRequest):
        items = [_item(template) for template in scene.templates]
        if issubclass(kind, GeneratePatchesRequest):
            items = [{"uid": str(UUID(int=number + 1)), **one} for number, one in enumerate(items)]
        return {"variables": _variables(scene.variables), "items": items}
    if issubclass(kind, DiscoverVariablesRequest):
        return {}
    for wanted, objects in (
        (CanUpdateMachineRequest, scene.machine),
        (CanUpdateMachineSetRequest, scene.machine_set),
    ):
        if issubclass(kind, wanted):
            return {"current": _given(hook, objects), "desired": _given(hook, objects)}
    if issubclass(kind, UpdateMachineRequest):
        return {"desired": _given(hook, scene.machine)}
    raise CatalogError(f"nobody knows what a request of {hook.id} is about; give it in a file")


def _given(hook: AnyHook, objects: Mapping[str, Unstructured]) -> Unstructured:
    if not objects:
        raise CatalogError(
            f"a request of {hook.id.name} is about a machine as it is and as it is wanted, and a"
            " Cluster tells of none; give it in a file"
        )
    return dict(objects)


def _versions(kind: type[Any], scene: Scene) -> Unstructured:
    steps = [{"version": scene.to_version}]
    if issubclass(kind, UpgradeRequest):
        return {
            "fromKubernetesVersion": scene.from_version,
            "toKubernetesVersion": scene.to_version,
            "controlPlaneUpgrades": steps,
            "workersUpgrades": steps,
        }
    if issubclass(kind, UpgradedRequest | AfterClusterUpgradeRequest):
        return {"kubernetesVersion": scene.to_version}
    if issubclass(kind, GenerateUpgradePlanRequest):
        return {
            "fromControlPlaneKubernetesVersion": scene.from_version,
            "fromWorkersKubernetesVersion": scene.from_version,
            "toKubernetesVersion": scene.to_version,
        }
    return {}


def _item(template: UsedTemplate) -> Unstructured:
    return {
        "holderReference": template.holder,
        "object": template.object,
        "variables": _variables(template.variables),
    }


def _variables(values: Mapping[str, Any]) -> list[Unstructured]:
    return [{"name": name, "value": value} for name, value in values.items()]
