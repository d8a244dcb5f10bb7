"""Workload clusters as Cluster API objects: what to create, and what to change. Nothing is sent."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, MachineDeployment, MachinePool
from capelin.errors import InvalidInputError

DEMO_CLASS: Final = "capelin"
"""The ClusterClass of our own providers."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.(\d+)")

WorkerKind = Literal["machinePools", "machineDeployments"]
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a user wants a new cluster to be."""

    name: str
    namespace: str
    cluster_class: str
    version: str | None
    control_plane_replicas: int
    workers: int


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What a user wants to have more or fewer of."""

    workers: int | None
    pool: str | None
    control_plane: int | None


def check_name(name: str) -> None:
    """Refuse what could not be a cluster's name.

    Raises:
        InvalidInputError: with what a name looks like.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot be the name of a cluster.",
            reason="A name has 1 to 63 lower-case letters, digits and hyphens.",
            hint="Choose another name.",
        )


def numbers(version: str) -> tuple[int, int, int]:
    """A version's numbers, to compare by.

    Raises:
        InvalidInputError: if it is not of the form v1.34.4.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise InvalidInputError(
            f"{version!r} is not a version of Kubernetes.",
            reason="A version has three numbers after a v.",
            hint="Write it as v1.34.4.",
        )
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)


def check_upgrade(before: str, after: str) -> None:
    """Refuse an upgrade that Kubernetes does not have.

    Raises:
        InvalidInputError: for the same version, a downgrade, or more than one minor version.
    """
    old, new = numbers(before), numbers(after)
    if new == old:
        raise InvalidInputError(
            f"The cluster runs {before} already.",
            reason="There is nothing to upgrade.",
            hint="Name a later version.",
        )
    if new < old:
        raise InvalidInputError(
            f"{after} is older than {before}.",
            reason="Kubernetes has no way back to an older version.",
            hint="Name a later version, or create a new cluster.",
        )
    if (new[0], new[1]) > (old[0], old[1] + 1):
        raise InvalidInputError(
            f"{after} is more than one minor version after {before}.",
            reason="Kubernetes is upgraded one minor version at a time.",
            hint=f"Upgrade to a v{old[0]}.{old[1] + 1} version first.",
        )


def new_cluster(shape: ClusterOptions, version: str, cluster_class: ClusterClass) -> Unstructured:
    """A Cluster of a class, with one group of workers.

    Raises:
        InvalidInputError: if workers are wanted and the class has none.
    """
    check_name(shape.name)
    numbers(version)
    topology: Unstructured = {
        "classRef": {"name": shape.cluster_class},
        "version": version,
        "controlPlane": {"replicas": shape.control_plane_replicas},
    }
    if shape.workers:
        kind, worker_class = _worker_class(cluster_class)
        group = {"class": worker_class, "name": "workers", "replicas": shape.workers}
        topology["workers"] = {kind: [group]}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": shape.name, "namespace": shape.namespace},
        "spec": {
            "clusterNetwork": {
                "pods": {"cidrBlocks": ["10.244.0.0/16"]},
                "services": {"cidrBlocks": ["10.96.0.0/16"]},
                "serviceDomain": "cluster.local",
            },
            "topology": topology,
        },
    }


def upgrade(version: str) -> list[Operation]:
    """The JSON patch of a Cluster that upgrades it."""
    return [{"op": "replace", "path": "/spec/topology/version", "value": version}]


def scaling(cluster: Cluster, counts: ScaleOptions) -> list[Operation]:
    """The JSON patch of a Cluster that changes its numbers.

    Raises:
        InvalidInputError: if it has no workers, several groups of which none is named, or no such.
    """
    operations: list[Operation] = []
    if counts.control_plane is not None:
        path = "/spec/topology/controlPlane/replicas"
        operations.append({"op": "add", "path": path, "value": counts.control_plane})
    if counts.workers is not None:
        path, name = _workers(cluster, counts.pool)
        # The index was looked up: if the list has changed since, nothing must be patched.
        operations.append({"op": "test", "path": f"{path}/name", "value": name})
        operations.append({"op": "add", "path": f"{path}/replicas", "value": counts.workers})
    return operations


def topology_version(cluster: Cluster) -> str:
    """The version that a Cluster is to have.

    Raises:
        InvalidInputError: if it is not of a ClusterClass.
    """
    topology = cluster.spec.topology
    if topology is None or topology.version is None:
        raise InvalidInputError(
            f"Cluster {cluster.name} is not made from a ClusterClass.",
            reason="Its control plane and its workers have versions and numbers of their own.",
            hint="Change these objects with kubectl.",
        )
    return topology.version


def missing(
    cluster: Cluster | None, workers: Iterable[MachinePool | MachineDeployment]
) -> str | None:
    """What a Cluster still needs to be as it was asked to be; nothing when it is."""
    if cluster is None:
        return "it does not exist yet"
    topology = cluster.spec.topology
    # Cluster API counts a Cluster as available whatever its MachinePools do.
    replicas = [(each.spec.replicas, each) for each in workers]
    for condition in ("TopologyReconciled", "Available"):
        if condition == "TopologyReconciled" and topology is None:
            continue
        if (lack := _lacks(cluster, condition)) is not None:
            return lack
    for wanted, each in replicas:
        ready = each.status.ready_replicas or 0
        if wanted is not None and ready != wanted:
            return f"{each.resource.kind} {each.name} has {ready} of {wanted} machines ready"
        if (old := _outdated(each)) is not None:
            return f"{each.resource.kind} {each.name} still has machines of {old}"
    return _not_up_to_date(cluster)


def _outdated(workers: MachinePool | MachineDeployment) -> str | None:
    """The version of workers that are still to be replaced: Cluster API counts them as current."""
    wanted = workers.spec.template.spec.version
    found = (one.version for one in workers.status.versions)
    return next((version for version in found if wanted and version != wanted), None)


def _lacks(cluster: Cluster, condition: str) -> str | None:
    found = next((each for each in cluster.status.conditions if each.type == condition), None)
    if found is None:
        return f"{condition} is not known yet"
    if found.status == "True" and found.observed_generation in {None, cluster.metadata.generation}:
        return None
    return found.message.replace("\n", " ").strip("* ") or f"{condition} is {found.status}"


def _not_up_to_date(cluster: Cluster) -> str | None:
    for title, replicas in (
        ("control plane", cluster.status.control_plane),
        ("workers", cluster.status.workers),
    ):
        if replicas is None or replicas.desired_replicas is None:
            continue
        current = replicas.up_to_date_replicas or 0
        if current != replicas.desired_replicas or replicas.replicas != current:
            return f"{title}: {current} of {replicas.desired_replicas} are up to date"
    return None


def _worker_class(cluster_class: ClusterClass) -> tuple[WorkerKind, str]:
    workers = cluster_class.spec.workers
    if workers.machine_pools and workers.machine_pools[0].class_:
        return "machinePools", workers.machine_pools[0].class_
    if workers.machine_deployments and workers.machine_deployments[0].class_:
        return "machineDeployments", workers.machine_deployments[0].class_
    raise InvalidInputError(
        f"ClusterClass {cluster_class.name} has no workers.",
        reason="It names neither MachinePools nor MachineDeployments.",
        hint="Use --workers 0, or another --class.",
    )


def _workers(cluster: Cluster, pool: str | None) -> tuple[str, str]:
    """The path of a group of workers in a Cluster, and its name."""
    topology_version(cluster)
    workers = cluster.spec.topology.workers if cluster.spec.topology else None
    groups = (
        []
        if workers is None
        else [
            (f"/spec/topology/workers/{kind}/{index}", each.name or "")
            for kind, several in (
                ("machinePools", workers.machine_pools),
                ("machineDeployments", workers.machine_deployments),
            )
            for index, each in enumerate(several)
        ]
    )
    chosen = [group for group in groups if pool in {None, group[1]}]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(name for _, name in groups) or "none"
    raise InvalidInputError(
        f"It is not clear which workers of {cluster.name} are meant.",
        reason=f"Its pools are: {names}.",
        hint="Name one of them with --pool.",
    )
