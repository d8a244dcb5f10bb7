"""What a managed topology is made from and by, from a Cluster and its ClusterClass."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from capelin.api import Unstructured
from capelin.api.views.capi import Cluster, ClusterClass
from capelin.api.views.capi.classes import ClassTemplate, ExternalPatch, WorkerClass
from capelin.api.views.capi.cluster import Topology, VariableOverrides, WorkerTopology
from capelin.runtime.requests.scene import UsedPatch, UsedTemplate
from capelin.runtime.topology.builtins import BUILTIN
from capelin.runtime.v1alpha1 import DiscoverVariables, GeneratePatches, ValidateTopology

CORE = "cluster.x-k8s.io/v1beta2"

FindTemplate = Callable[[ClassTemplate], Unstructured]
"""The template that a ClusterClass refers to."""

HIDDEN_ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "cluster.x-k8s.io/conversion-data",
)
"""What Cluster API tells nobody: long, and about no more than what is told anyway."""

_INLINE = "inline"
"""Who defines the variables that stand in the class itself."""

_MACHINES = "spec.machineTemplate.spec.infrastructureRef"
_BOOTSTRAP = "spec.template.spec.bootstrap.configRef"
_INFRASTRUCTURE = "spec.template.spec.infrastructureRef"


def used_templates(
    cluster: Cluster, shape: ClusterClass, find: FindTemplate
) -> Iterator[UsedTemplate]:
    """Every template that Cluster API would have patched for the Cluster, before any patch."""
    topology = cluster.spec.topology
    if topology is None:
        return
    spec, name = shape.spec, cluster.metadata.name
    classes = spec.workers
    if spec.infrastructure is not None:
        holder = _holder(cluster, "Cluster", name, "spec.infrastructureRef")
        yield UsedTemplate(find(spec.infrastructure), holder)
    if spec.control_plane is not None:
        found = find(spec.control_plane)
        holder = _holder(cluster, "Cluster", name, "spec.controlPlaneRef")
        own = {
            BUILTIN: {"controlPlane": _control_plane(cluster, topology)},
            **_overrides(topology.control_plane.variables),
        }
        yield UsedTemplate(found, holder, own)
        if spec.control_plane.machine_infrastructure is not None:
            kind = str(found["kind"]).removesuffix("Template")
            holder = _holder(cluster, kind, name, _MACHINES) | {"apiVersion": found["apiVersion"]}
            yield UsedTemplate(find(spec.control_plane.machine_infrastructure), holder, own)
    for kind, workers, shapes in (
        ("MachineDeployment", topology.workers.machine_deployments, classes.machine_deployments),
        ("MachinePool", topology.workers.machine_pools, classes.machine_pools),
    ):
        for worker in workers:
            for one in shapes:
                if one.class_ == worker.class_:
                    yield from _of_worker(cluster, kind, worker, one, find)


def builtins(cluster: Cluster) -> Unstructured:
    """What Cluster API says of the cluster itself, as patches see it."""
    network = cluster.spec.cluster_network
    topology = cluster.spec.topology or Topology()
    namespace = topology.class_ref.namespace or cluster.metadata.namespace
    return {
        "cluster": {
            "name": cluster.metadata.name,
            "namespace": cluster.metadata.namespace,
            "uid": cluster.metadata.uid,
            "metadata": {
                "labels": cluster.metadata.labels,
                "annotations": shown(cluster.metadata.annotations),
            },
            "topology": {
                "version": topology.version,
                "class": topology.class_ref.name,
                "classNamespace": namespace,
                "classRef": {"name": topology.class_ref.name, "namespace": namespace},
            },
            "network": {
                "serviceDomain": network.service_domain,
                "services": network.services.cidr_blocks,
                "pods": network.pods.cidr_blocks,
            },
        }
    }


def shown(annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations as Cluster API sends them."""
    return {key: value for key, value in annotations.items() if key not in HIDDEN_ANNOTATIONS}


def used_patches(shape: ClusterClass) -> Iterator[UsedPatch]:
    """The patches of a class, and which variables each of them has defined."""
    for patch in shape.spec.patches:
        origin = _INLINE if patch.external is None else patch.name
        said = patch.external or ExternalPatch()
        handlers = {
            GeneratePatches.id.name: said.generate_patches_extension,
            ValidateTopology.id.name: said.validate_topology_extension,
            DiscoverVariables.id.name: said.discover_variables_extension,
        }
        yield UsedPatch(
            name=patch.name,
            handlers={hook: handler for hook, handler in handlers.items() if handler},
            variables=frozenset(
                variable.name
                for variable in shape.status.variables
                if any(definition.from_ == origin for definition in variable.definitions)
            ),
            settings=said.settings,
        )


def variables(cluster: Cluster, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the whole cluster: its own, and defaults for those it does not set."""
    topology = cluster.spec.topology or Topology()
    own = {variable.name: variable.value for variable in topology.variables}
    return {BUILTIN: builtins(cluster), **defaults, **own}


def _of_worker(
    cluster: Cluster, kind: str, worker: WorkerTopology, shape: WorkerClass, find: FindTemplate
) -> Iterator[UsedTemplate]:
    name = f"{cluster.metadata.name}-{worker.name}"
    said = {
        "version": (cluster.spec.topology or Topology()).version,
        "class": worker.class_,
        "name": name,
        "topologyName": worker.name,
        "replicas": worker.replicas,
        "metadata": worker.metadata.dump(),
    }
    own = {BUILTIN: {kind[0].lower() + kind[1:]: said}, **_overrides(worker.variables)}
    for template, path in ((shape.bootstrap, _BOOTSTRAP), (shape.infrastructure, _INFRASTRUCTURE)):
        if template is not None:
            yield UsedTemplate(find(template), _holder(cluster, kind, name, path), own)


def _control_plane(cluster: Cluster, topology: Topology) -> Unstructured:
    return {
        "version": topology.version,
        "name": cluster.metadata.name,
        "replicas": topology.control_plane.replicas,
        "metadata": topology.control_plane.metadata.dump(),
    }


def _overrides(said: VariableOverrides | None) -> dict[str, Any]:
    return {} if said is None else {one.name: one.value for one in said.overrides}


def _holder(cluster: Cluster, kind: str, name: str, path: str) -> Unstructured:
    return {
        "apiVersion": CORE,
        "kind": kind,
        "namespace": cluster.metadata.namespace,
        "name": name,
        "fieldPath": path,
    }
