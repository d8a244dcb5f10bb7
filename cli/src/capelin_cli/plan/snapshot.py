"""The objects of Clusters at one moment, and their roles. Pure.

Cluster API generates many names. So an object is identified by the path that leads to it from its
Cluster: `infrastructure template of MachineDeployment workers`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachinePool, MachineSet
from capelin.contract import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL, POOL_NAME_LABEL

from capelin_cli.explain.facts import labels_of, named_in, reference_of, text_at
from capelin_cli.explain.model import Reference

CORE_GROUP: Final = Cluster.resource.group
DEPLOYMENT_LABEL: Final = "cluster.x-k8s.io/deployment-name"
SET_LABEL: Final = "cluster.x-k8s.io/set-name"
_TOPOLOGY_NAMES: Final = {
    "MachineDeployment": "topology.cluster.x-k8s.io/deployment-name",
    "MachinePool": "topology.cluster.x-k8s.io/pool-name",
}
POOL: Final = "MachinePool "
"""The beginning of the name of a pool."""
_HEALTH_CHECK: Final = "MachineHealthCheck"
Roles = Mapping[str, Unstructured]
"""The objects of one Cluster by role, except Machines and their parts."""


def uid_of(obj: Unstructured) -> str:
    return text_at(obj, "metadata", "uid")


@dataclass(frozen=True)
class Snapshot:
    """The objects of Clusters at one moment."""

    objects: Mapping[Reference, Unstructured]

    @classmethod
    def of(cls, objects: Iterable[Unstructured]) -> "Snapshot":
        return cls({reference_of(obj): obj for obj in objects})

    def clusters(self) -> list[Unstructured]:
        """All Clusters, by namespace and name."""
        found = (obj for key, obj in self.objects.items() if _is(key, Cluster.resource.kind))
        return sorted(found, key=lambda obj: str(reference_of(obj).words))

    def find(self, reference: Reference | None) -> Unstructured | None:
        return None if reference is None else self.objects.get(reference)

    def of_cluster(self, cluster: Reference, kind: str) -> list[Unstructured]:
        """The objects of a core kind that belong to a Cluster, by name."""
        found = [
            obj
            for key, obj in self.objects.items()
            if _is(key, kind)
            and key.namespace == cluster.namespace
            and labels_of(obj).get(CLUSTER_NAME_LABEL) == cluster.name
        ]
        return sorted(found, key=lambda obj: reference_of(obj).name)

    def roles(self, cluster: Reference) -> Roles:
        """The objects of a Cluster by role."""
        found = self.objects.get(cluster)
        return {} if found is None else dict(self._parts(cluster, found))

    def _parts(self, key: Reference, cluster: Unstructured) -> Iterator[tuple[str, Unstructured]]:
        yield "Cluster", cluster
        infrastructure = self.find(named_in(cluster, "spec", "infrastructureRef"))
        if infrastructure is not None:
            yield "infrastructure of the Cluster", infrastructure
        control_plane = self.find(named_in(cluster, "spec", "controlPlaneRef"))
        if control_plane is not None:
            yield "control plane", control_plane
            path = ("spec", "machineTemplate", "spec", "infrastructureRef")
            template = self.find(named_in(control_plane, *path))
            if template is not None:
                yield "infrastructure template of the control plane", template
        owners: dict[str, str] = {}
        for kind in ("MachineDeployment", "MachinePool"):
            for workers in self.of_cluster(key, kind):
                owner = owner_name(workers)
                owners[reference_of(workers).name] = owner
                yield owner, workers
                yield from self._templates(workers, owner, is_pool=kind == "MachinePool")
        for health_check in self.of_cluster(key, _HEALTH_CHECK):
            name = reference_of(health_check).name
            is_own = control_plane is not None and name == reference_of(control_plane).name
            owner = "the control plane" if is_own else owners.get(name, "")
            yield (f"health check of {owner}" if owner else f"health check {name}"), health_check

    def _templates(
        self, workers: Unstructured, owner: str, *, is_pool: bool
    ) -> Iterator[tuple[str, Unstructured]]:
        word = "" if is_pool else " template"
        for path, role in (
            (("infrastructureRef",), f"infrastructure{word} of {owner}"),
            (("bootstrap", "configRef"), f"bootstrap{word} of {owner}"),
        ):
            found = self.find(named_in(workers, "spec", "template", "spec", *path))
            if found is not None:
                yield role, found

    def machines(self, cluster: Reference) -> dict[str, list[Unstructured]]:
        """The Machines of a Cluster that are not being deleted, by owner."""
        deployments = {
            reference_of(obj).name: owner_name(obj)
            for kind in (MachineDeployment.resource.kind, MachineSet.resource.kind)
            for obj in self.of_cluster(cluster, kind)
        }
        pools = {
            reference_of(obj).name: owner_name(obj)
            for obj in self.of_cluster(cluster, MachinePool.resource.kind)
        }
        found: dict[str, list[Unstructured]] = {}
        for machine in self.of_cluster(cluster, Machine.resource.kind):
            if text_at(machine, "metadata", "deletionTimestamp"):
                continue
            labels = labels_of(machine)
            name = labels.get(DEPLOYMENT_LABEL) or labels.get(SET_LABEL, "")
            if CONTROL_PLANE_LABEL in labels:
                owner = "control plane"
            elif POOL_NAME_LABEL in labels:
                owner = pools.get(labels[POOL_NAME_LABEL], "no owner")
            else:
                owner = deployments.get(name, "no owner")
            found.setdefault(owner, []).append(machine)
        return found

    def machine_parts(self, machine: Unstructured) -> dict[str, Any]:
        """The specs of the infrastructure and the bootstrap config of a Machine."""
        infrastructure = self.find(named_in(machine, "spec", "infrastructureRef"))
        bootstrap = self.find(named_in(machine, "spec", "bootstrap", "configRef"))
        return {
            "infrastructure": (infrastructure or {}).get("spec", {}),
            "bootstrap": (bootstrap or {}).get("spec", {}),
        }


def owner_name(workers: Unstructured) -> str:
    """The role of a MachineDeployment, MachineSet or MachinePool, by its name in the topology."""
    kind, name = text_at(workers, "kind"), text_at(workers, "metadata", "name")
    label = _TOPOLOGY_NAMES.get(kind, "")
    return f"{kind} {labels_of(workers).get(label, name)}"


def _is(key: Reference, kind: str) -> bool:
    return key.kind == kind and key.group == CORE_GROUP
