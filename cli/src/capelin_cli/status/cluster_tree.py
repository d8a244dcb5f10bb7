"""A Cluster with the objects that belong to it, and their tree with states and messages."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from capelin.api import Model, ObjectMeta, Resource
from capelin.api.capi import Cluster, ContractReference, Machine, MachineDeployment, MachinePool
from capelin.client import Client
from capelin.contract import (
    ASLEEP,
    AVAILABLE,
    CLUSTER_NAME_LABEL,
    CONTROL_PLANE_LABEL,
    find_condition,
    served_resource,
)
from capelin_lifecycle.api import LifecycleResult

from capelin_cli.status.condition_messages import (
    blocking_hooks,
    is_upgrading,
    one_line,
    topology_summary,
)

State = Literal["good", "bad", "waiting", "unknown", "asleep"]

_WORST_FIRST: Final[tuple[State, ...]] = ("bad", "waiting", "unknown", "asleep", "good")
# Conditions of unfinished work, such as a rollout or an upgrade that a hook blocks.
_UNFINISHED: Final = (
    ("TopologyReconciled", "False"),
    ("RollingOut", "True"),
    ("ScalingUp", "True"),
    ("ScalingDown", "True"),
)
_SET_LABELS: Final = {
    "MachineDeployment": "cluster.x-k8s.io/deployment-name",
    "MachinePool": "cluster.x-k8s.io/pool-name",
}
CONTROL_PLANE: Final = "ControlPlane"
"""The set of Machines of a control plane, whatever its kind is."""


class StatusCondition(Model):
    """A condition of any object, whatever contract it follows."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Initialization(Model):
    provisioned: bool | None = None


class VersionField(Model):
    version: str | None = None


class MachineTemplate(Model):
    spec: VersionField = VersionField()


class ObjectSpec(VersionField):
    """The desired state of an object, as far as it is shown."""

    replicas: int | None = None
    template: MachineTemplate = MachineTemplate()
    topology: VersionField = VersionField()


class ObjectStatus(Model):
    """The observed state of an object, as far as it is shown."""

    conditions: list[StatusCondition] = []
    replicas: int | None = None
    ready_replicas: int | None = None
    up_to_date_replicas: int | None = None
    version: str | None = None
    versions: list[VersionField] = []
    """Of the machines of workers."""
    initialization: Initialization = Initialization()


class ClusterObject(Model):
    """Any object of Cluster API's or a provider's, as far as it is shown."""

    kind: str
    metadata: ObjectMeta
    spec: ObjectSpec = ObjectSpec()
    status: ObjectStatus = ObjectStatus()


@dataclass(frozen=True, slots=True)
class Node:
    """An object, and those that it consists of."""

    title: str
    state: State = "unknown"
    counts: str = ""
    version: str = ""
    message: str = ""
    namespace: str = ""
    """Of a cluster, where that is not the default one."""
    children: Sequence["Node"] = field(default_factory=tuple)

    @property
    def is_good(self) -> bool:
        """Whether this and all that it consists of is as it should be."""
        return self.state in {"good", "asleep"} and all(child.is_good for child in self.children)

    def dump(self) -> dict[str, Any]:
        """The node for programs."""
        fields: dict[str, Any] = {
            "object": self.title,
            "namespace": self.namespace,
            "state": self.state,
            "replicas": self.counts,
            "version": self.version,
            "message": self.message,
            "children": [child.dump() for child in self.children],
        }
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class ClusterGraph:
    """A Cluster and the objects that belong to it, as far as they were read."""

    cluster: Cluster
    infrastructure: ClusterObject | None = None
    control_plane: ClusterObject | None = None
    workers: Sequence[ClusterObject] = ()
    """MachinePools and MachineDeployments."""
    machines: Sequence[ClusterObject] = ()
    results: Sequence[LifecycleResult] = ()
    """The results of policies, if hooks block the Cluster."""

    @property
    def versions(self) -> set[str]:
        """The versions of Kubernetes that the control plane and the workers run."""
        running = {it.version for workers in self.workers for it in workers.status.versions}
        if self.control_plane is not None:
            running.add(self.control_plane.status.version)
        return {version for version in running if version}


async def read_graph(
    client: Client, cluster: Cluster, results: Sequence[LifecycleResult] = (), *, whole: bool
) -> ClusterGraph:
    """Read the objects of a Cluster. Its readiness needs neither infrastructure nor Machines."""
    namespace, labels = cluster.namespace, {CLUSTER_NAME_LABEL: cluster.name}

    async def listed(resource: Resource) -> list[ClusterObject]:
        found = (await client.list(resource, namespace, labels=labels)).items
        return sorted(map(ClusterObject.read, found), key=lambda obj: obj.metadata.name)

    async def referenced(reference: ContractReference | None) -> ClusterObject | None:
        if reference is None or not (reference.api_group and reference.kind and reference.name):
            return None
        resource = await served_resource(client, reference.api_group, reference.kind)
        found = resource and await client.find(resource, reference.name, namespace)
        return None if found is None else ClusterObject.read(found)

    return ClusterGraph(
        cluster,
        infrastructure=await referenced(cluster.spec.infrastructure_ref) if whole else None,
        control_plane=await referenced(cluster.spec.control_plane_ref),
        workers=[*await listed(MachinePool.resource), *await listed(MachineDeployment.resource)],
        machines=await listed(Machine.resource) if whole else (),
        results=results,
    )


def build_tree(graph: ClusterGraph, *, whole: bool = False) -> Node:
    """The cluster, its infrastructure, its control plane and its workers, each with Machines.

    Unless `whole` is set, one entry stands for all healthy Machines.
    """
    control_plane_machines = _of(graph.machines, CONTROL_PLANE)
    worker_nodes = [
        _node(workers, _machines(_of(graph.machines, title_of(workers)), whole=whole))
        for workers in graph.workers
    ]
    children = [
        *([_node(graph.infrastructure)] if graph.infrastructure else []),
        *(
            [_node(graph.control_plane, _machines(control_plane_machines, whole=whole))]
            if graph.control_plane
            else []
        ),
        *(
            [Node("Workers", worst({it.state for it in worker_nodes}), children=worker_nodes)]
            if worker_nodes
            else []
        ),
    ]
    namespace = graph.cluster.namespace or "default"
    root = _asleep(graph) or _node(ClusterObject.read(graph.cluster.dump()), children)
    return root if namespace == "default" else replace(root, namespace=namespace)


def _asleep(graph: ClusterGraph) -> Node | None:
    """A cluster whose control plane sleeps. Its parts wait, and none of them has failed."""
    conditions = graph.control_plane.status.conditions if graph.control_plane else []
    available = find_condition(conditions, AVAILABLE)
    cluster = graph.cluster
    if available is None or available.reason != ASLEEP or cluster.metadata.deletion_timestamp:
        return None
    topology = cluster.spec.topology
    return Node(
        title=f"Cluster/{cluster.name}",
        state="asleep",
        version=(topology and topology.version) or "",
        message=one_line(available.message),
    )


def with_children(node: Node, children: Sequence[Node]) -> Node:
    """A node with further ones under it, before its own."""
    return replace(node, children=(*children, *node.children)) if children else node


def _node(obj: ClusterObject, children: Iterable[Node] = ()) -> Node:
    state, message = state_of(obj)
    desired = obj.spec.replicas
    return Node(
        title=title_of(obj),
        state=state,
        counts="" if desired is None else f"{obj.status.ready_replicas or 0}/{desired}",
        version=_version(obj),
        message=message,
        children=tuple(children),
    )


def _machines(machines: Sequence[ClusterObject], *, whole: bool) -> list[Node]:
    """Machines one by one, but one entry for several healthy ones."""
    nodes = [_node(machine) for machine in machines]
    good = [node for node in nodes if node.state == "good"]
    others = [node for node in nodes if node.state != "good"]
    if whole or len(good) < 2:
        return nodes
    versions = sorted({node.version for node in good})
    return [Node(f"{len(good)} Machines", "good", version=", ".join(versions)), *others]


def state_of(obj: ClusterObject) -> tuple[State, str]:
    """The state and message of an object, from `Available` or else from `Ready`.

    A MachinePool of Cluster API has neither: its numbers decide.
    """
    conditions = {condition.type: condition for condition in obj.status.conditions}
    blocked = _blocked_lifetime(conditions)
    if obj.metadata.deletion_timestamp is not None:
        return "waiting", blocked or "is being deleted"
    if blocked:
        return "waiting", blocked
    condition = conditions.get("Available") or conditions.get("Ready")
    if condition is not None and condition.status != "True":
        message = one_line(condition.message) or condition.reason
        return ("bad" if condition.status == "False" else "waiting"), message
    # An available object may still not be as desired.
    if (message := _unfinished(obj, conditions)) is not None:
        return "waiting", message
    return ("good" if condition else _counted(obj)), ""


def _blocked_lifetime(conditions: Mapping[str, StatusCondition]) -> str:
    """The hook that the creation or deletion of a Cluster waits for."""
    topology = conditions.get("TopologyReconciled")
    if topology is None or is_upgrading(topology.message) or not blocking_hooks(topology.message):
        return ""
    return topology_summary(topology.message)


def _unfinished(obj: ClusterObject, conditions: Mapping[str, StatusCondition]) -> str | None:
    for name, status in _UNFINISHED:
        condition = conditions.get(name)
        if condition is not None and condition.status == status:
            return topology_summary(condition.message) or condition.reason or name
    if obj.status.version and obj.spec.version and obj.status.version != obj.spec.version:
        return f"runs {obj.status.version}, not {obj.spec.version} yet"
    replicas, ready = obj.spec.replicas, obj.status.ready_replicas or 0
    if conditions and replicas is not None and ready != replicas:
        return f"{ready} of {replicas} replicas are ready"
    return None


def _counted(obj: ClusterObject) -> State:
    if obj.spec.replicas is not None:
        return "good" if obj.status.ready_replicas == obj.spec.replicas else "waiting"
    return "good" if obj.status.initialization.provisioned else "unknown"


def _version(obj: ClusterObject) -> str:
    spec = obj.spec
    return spec.version or spec.topology.version or spec.template.spec.version or ""


def title_of(obj: ClusterObject) -> str:
    """Kind and name, such as `MachinePool/workers`."""
    return f"{obj.kind}/{obj.metadata.name}"


def machine_set(machine: ClusterObject) -> str:
    """The title of the workers that a Machine belongs to, or `ControlPlane`. Empty for neither."""
    labels = machine.metadata.labels
    if CONTROL_PLANE_LABEL in labels:
        return CONTROL_PLANE
    named = ((kind, labels.get(label)) for kind, label in _SET_LABELS.items())
    return next((f"{kind}/{name}" for kind, name in named if name), "")


def _of(machines: Iterable[ClusterObject], title: str) -> list[ClusterObject]:
    return [machine for machine in machines if machine_set(machine) == title]


def worst(states: Collection[State]) -> State:
    """The state that most needs a person's attention."""
    for state in _WORST_FIRST:
        if state in states:
            return state
    return "unknown"
