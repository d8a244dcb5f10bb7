"""The templates of a managed topology with what uses them, from a Cluster and its ClusterClass."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from capelin.api import Unstructured
from capelin.api.views.capi import Cluster, ClusterClass
from capelin.api.views.capi.classes import ClassTemplate, WorkerClass
from capelin.api.views.capi.cluster import Topology, VariableOverrides, WorkerTopology
from capelin.runtime.requests.scene import UsedTemplate
from capelin.runtime.topology.builtins import BUILTIN

CORE = "cluster.x-k8s.io/v1beta2"

FindTemplate = Callable[[ClassTemplate], Unstructured]
"""The template that a ClusterClass refers to."""

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
                "annotations": cluster.metadata.annotations,
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
