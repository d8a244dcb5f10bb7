"""From what a request can be about to the request of any hook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from capelin.api import Unstructured
from capelin.runtime.catalog import AnyHook, CatalogError
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


def request_for(
    hook: AnyHook, scene: Scene, settings: Mapping[str, str] | None = None
) -> Unstructured:
    """A request of a hook about a scene, as Cluster API would send it.

    Raises:
        CatalogError: the hook is not one of Cluster API's.
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
            return {"current": dict(objects), "desired": dict(objects)}
    if issubclass(kind, UpdateMachineRequest):
        return {"desired": dict(scene.machine)}
    raise CatalogError(f"nobody knows what a request of {hook.id} is about; give it in a file")


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
