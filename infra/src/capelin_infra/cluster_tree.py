"""A workload cluster as a tree of its objects, each with what it says of itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from capelin.api import Model, ObjectMeta

State = Literal["good", "bad", "waiting", "unknown"]

_WORST_FIRST: Final[tuple[State, ...]] = ("bad", "waiting", "unknown", "good")
_GROUP_LABELS: Final = {
    "MachineDeployment": "cluster.x-k8s.io/deployment-name",
    "MachinePool": "cluster.x-k8s.io/pool-name",
}


class Said(Model):
    """A condition of any object, whatever contract it follows."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Initialization(Model):
    """Whether an infrastructure object is there."""

    provisioned: bool | None = None


class Versioned(Model):
    """Whatever has a version."""

    version: str | None = None


class Template(Model):
    """What Machines are made from."""

    spec: Versioned = Versioned()


class Wanted(Versioned):
    """What is wanted of an object, as far as it is shown."""

    replicas: int | None = None
    template: Template = Template()
    topology: Versioned = Versioned()


class Seen(Model):
    """What is seen of an object, as far as it is shown."""

    conditions: list[Said] = []
    ready_replicas: int | None = None
    initialization: Initialization = Initialization()


class Shown(Model):
    """Any object of Cluster API's or a provider's, as far as it is shown."""

    kind: str
    metadata: ObjectMeta
    spec: Wanted = Wanted()
    status: Seen = Seen()


@dataclass(frozen=True, slots=True)
class Node:
    """An object, and those that it consists of."""

    title: str
    state: State = "unknown"
    counts: str = ""
    version: str = ""
    message: str = ""
    children: Sequence["Node"] = field(default_factory=tuple)

    def dump(self) -> dict[str, Any]:
        """The node for programs."""
        said: dict[str, Any] = {
            "object": self.title,
            "state": self.state,
            "replicas": self.counts,
            "version": self.version,
            "message": self.message,
            "children": [child.dump() for child in self.children],
        }
        return {key: value for key, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one cluster."""

    cluster: Shown
    infrastructure: Shown | None
    control_plane: Shown | None
    workers: Sequence[Shown]
    """MachinePools and MachineDeployments."""
    machines: Sequence[Shown]


def tree(parts: Parts) -> Node:
    """The cluster, its infrastructure, its control plane and its workers, each with Machines."""
    control_plane_machines = [each for each in parts.machines if _is_control_plane(each)]
    worker_nodes = [_node(each, _machines(_of(parts.machines, each))) for each in parts.workers]
    children = [
        *([_node(parts.infrastructure)] if parts.infrastructure else []),
        *(
            [_node(parts.control_plane, _machines(control_plane_machines))]
            if parts.control_plane
            else []
        ),
        *([Node("Workers", _worst(worker_nodes), children=worker_nodes)] if worker_nodes else []),
    ]
    return _node(parts.cluster, children)


def _node(obj: Shown, children: Iterable[Node] = ()) -> Node:
    state, message = _said(obj)
    return Node(
        title=f"{obj.kind}/{obj.metadata.name}",
        state=state,
        counts=_counts(obj),
        version=_version(obj),
        message=message,
        children=tuple(children),
    )


def _machines(machines: Sequence[Shown]) -> list[Node]:
    """Machines one by one, those in order taken together where there are several."""
    nodes = [_node(each) for each in machines]
    good = [node for node in nodes if node.state == "good"]
    others = [node for node in nodes if node.state != "good"]
    if len(good) < 2:
        return nodes
    versions = sorted({node.version for node in good})
    return [Node(f"{len(good)} Machines", "good", version=", ".join(versions)), *others]


def _said(obj: Shown) -> tuple[State, str]:
    """What an object says of itself in `Available`, or else in `Ready`.

    A MachinePool of Cluster API has neither; then its numbers say it.
    """
    if obj.metadata.deletion_timestamp is not None:
        return "waiting", "is being deleted"
    conditions = {each.type: each for each in obj.status.conditions}
    condition = conditions.get("Available") or conditions.get("Ready")
    if condition is None:
        return _counted(obj), ""
    if condition.status == "True":
        return "good", ""
    message = " ".join((condition.message or condition.reason).split()).removeprefix("* ")
    return ("bad" if condition.status == "False" else "waiting"), message


def _counted(obj: Shown) -> State:
    if obj.spec.replicas is not None:
        return "good" if obj.status.ready_replicas == obj.spec.replicas else "waiting"
    return "good" if obj.status.initialization.provisioned else "unknown"


def _counts(obj: Shown) -> str:
    wanted = obj.spec.replicas
    return "" if wanted is None else f"{obj.status.ready_replicas or 0}/{wanted}"


def _version(obj: Shown) -> str:
    spec = obj.spec
    return spec.version or spec.topology.version or spec.template.spec.version or ""


def _is_control_plane(machine: Shown) -> bool:
    return "cluster.x-k8s.io/control-plane" in machine.metadata.labels


def _of(machines: Iterable[Shown], workers: Shown) -> list[Shown]:
    label = _GROUP_LABELS[workers.kind]
    return [each for each in machines if each.metadata.labels.get(label) == workers.metadata.name]


def _worst(nodes: Sequence[Node]) -> State:
    states = {node.state for node in nodes}
    return next(state for state in _WORST_FIRST if state in states)
