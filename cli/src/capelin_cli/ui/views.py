"""From observed objects to the JSON of the page. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from capelin.api.capi import Cluster, Topology, Variable, WorkerTopology
from capelin.contract import PAUSED_ANNOTATION

from capelin_cli.explain.model import Explanation
from capelin_cli.status.cluster_tree import (
    CONTROL_PLANE,
    ClusterGraph,
    Node,
    State,
    build_tree,
    with_children,
    worst,
)
from capelin_cli.status.condition_messages import hook_reasons
from capelin_cli.status.policies import reason_nodes
from capelin_cli.ui.model import (
    Changes,
    ClassView,
    ClusterSummary,
    ClusterView,
    Difference,
    MachineCounts,
    MachineSet,
    Row,
    Value,
)
from capelin_cli.ui.observed import Key, Machine
from capelin_cli.ui.store import Entry, Store
from capelin_cli.ui.timeline import shortened

_MOST_FIELDS: Final = 200
_UNSET: Final = "unset"
MOST_CLUSTERS: Final = 1000
MOST_MACHINES: Final = 10_000
"""In all sets of a cluster."""
_MOST_ROWS: Final = 20
"""Machines of a set that are not as desired, each as a row."""
_MOST_CHAINS: Final = 10


def differences(clusters: Sequence[Cluster]) -> tuple[list[Difference], int]:
    """The fields that differ, and the number of those that all clusters have in common."""
    fields = {
        f"{cluster.namespace}/{cluster.name}": dict(_fields(cluster.spec.topology))
        for cluster in clusters
        if cluster.spec.topology is not None
    }
    names = sorted({name for values in fields.values() for name in values}, key=_order)
    found: list[Difference] = []
    for name in names:
        by_value: dict[str, list[str]] = {}
        for cluster, values in fields.items():
            by_value.setdefault(values.get(name, _UNSET), []).append(cluster)
        if len(by_value) > 1:
            values = [Value(text=text, clusters=have) for text, have in by_value.items()]
            values.sort(key=lambda value: (-len(value.clusters), value.text))
            found.append(Difference(field=name, values=values))
    return found[:_MOST_FIELDS], len(names) - len(found)


def _order(name: str) -> tuple[bool, str]:
    """The version is first, because most changes are about it."""
    return (name != "version", name)


def _fields(topology: Topology) -> Iterator[tuple[str, str]]:
    yield "version", topology.version or _UNSET
    if topology.control_plane.replicas is not None:
        yield "control plane: replicas", str(topology.control_plane.replicas)
    overrides = topology.control_plane.variables
    yield from _variables("control plane: ", overrides.overrides if overrides else ())
    yield from _variables("", topology.variables)
    for workers in (*topology.workers.machine_deployments, *topology.workers.machine_pools):
        yield from _workers(workers)


def _workers(workers: WorkerTopology) -> Iterator[tuple[str, str]]:
    start = f"workers {workers.name}: "
    yield f"{start}class", workers.class_ or _UNSET
    if workers.replicas is not None:
        yield f"{start}replicas", str(workers.replicas)
    overrides = workers.variables
    yield from _variables(start, overrides.overrides if overrides else ())


def _variables(start: str, variables: Sequence[Variable]) -> Iterator[tuple[str, str]]:
    for variable in variables:
        yield f"{start}variable {variable.name}", shortened(_text(variable.value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def changes(store: Store, after: int) -> Changes:
    """The clusters that changed after a number of the store. 0 means all."""
    shown = store.shown()
    return Changes(
        now=store.now(),
        clusters=[
            summary(store, entry) for entry in shown[:MOST_CLUSTERS] if entry.changed > after
        ],
        removed=[joined(key) for key, number in store.removed.items() if number > after > 0],
        total=len(shown),
        loading=store.loading,
        trouble=store.trouble,
    )


def summary(store: Store, entry: Entry) -> ClusterSummary:
    """A cluster in the list of all clusters."""
    return _summary(store, entry, tree_of(store, entry))


def cluster_view(store: Store, key: Key) -> ClusterView | None:
    """Everything about a cluster. None if it does not exist."""
    entry = store.entries.get(key)
    if entry is None or entry.cluster is None:
        return None
    node = tree_of(store, entry)
    return ClusterView(
        summary=_summary(store, entry, node),
        tree=_row(node),
        machines=machine_sets(entry.machines.values()),
        timeline=entry.timeline.lanes(),
    )


def class_view(store: Store, key: Key) -> ClassView | None:
    """The differences between the clusters of a ClusterClass. None if it has no clusters."""
    entries = [entry for entry in store.shown() if entry.class_key == key]
    if not entries:
        return None
    found, same = differences([entry.existing for entry in entries])
    return ClassView(
        name=joined(key),
        clusters=[joined(entry.key) for entry in entries[:MOST_CLUSTERS]],
        differences=found,
        same=same,
    )


def joined(key: Key) -> str:
    """Namespace and name in one text."""
    return "/".join(key)


def tree_of(store: Store, entry: Entry) -> Node:
    """The tree that `capelin status` shows, with rows for the Machines that need attention."""
    cluster = entry.existing
    infrastructure = store.part(entry, cluster.spec.infrastructure_ref)
    control_plane = store.part(entry, cluster.spec.control_plane_ref)
    tree = build_tree(
        ClusterGraph(
            cluster,
            infrastructure=infrastructure.raw if infrastructure else None,
            control_plane=control_plane.raw if control_plane else None,
            workers=[part.raw for _, part in sorted(entry.workers.items())],
        )
    )
    sets = {each.title: each for each in _rows_of_machines(entry.machines.values())}
    title = f"{control_plane.raw.kind}/{control_plane.raw.metadata.name}" if control_plane else ""
    # A cluster that sleeps has no children: its Machines wait, and none of them has failed.
    with_machines = _attached(tree, sets, title) if tree.children else tree
    reasons = hook_reasons(cluster, entry.results.values())
    return with_children(with_machines, reason_nodes(reasons))


def _attached(node: Node, sets: dict[str, Node], control_plane: str) -> Node:
    children = [_attached(child, sets, control_plane) for child in node.children]
    found = sets.get(CONTROL_PLANE if node.title == control_plane else node.title)
    return replace(node, children=(*children, *(found.children if found else ())))


def _rows_of_machines(machines: Iterable[Machine]) -> list[Node]:
    """For each set, a row for all good Machines, and one for each other Machine."""
    by_set: dict[str, list[Machine]] = {}
    for machine in machines:
        by_set.setdefault(machine.set, []).append(machine)
    return [Node(title, children=_set_rows(members)) for title, members in by_set.items()]


def _set_rows(members: Sequence[Machine]) -> list[Node]:
    others = sorted(
        (each for each in members if each.state != "good"), key=lambda machine: machine.name
    )
    rows: list[Node] = []
    if good := [each for each in members if each.state == "good"]:
        versions = ", ".join(sorted({each.version for each in good}))
        title = f"Machine/{good[0].name}" if len(good) == 1 else f"{len(good)} Machines"
        rows.append(Node(title, "good", version=versions))
    rows += [
        Node(
            f"Machine/{each.name}",
            each.state,
            version=each.version,
            message=each.message or each.phase,
        )
        for each in others[:_MOST_ROWS]
    ]
    if left := others[_MOST_ROWS:]:
        rows.append(Node(f"{len(left)} more Machines", worst({each.state for each in left})))
    return rows


def machine_sets(machines: Iterable[Machine]) -> list[MachineSet]:
    """The Machines of a cluster for its heat map, by set and name."""
    by_set: dict[str, list[Machine]] = {}
    for machine in machines:
        by_set.setdefault(machine.set or "Others", []).append(machine)
    room, found = MOST_MACHINES, list[MachineSet]()
    for title in sorted(by_set, key=lambda title: (title != CONTROL_PLANE, title)):
        members = sorted(by_set[title], key=lambda machine: machine.name)
        kept = members[:room]
        room -= len(kept)
        found.append(
            MachineSet(
                title=title,
                names=[each.name for each in kept],
                states=[each.state for each in kept],
                phases=[each.phase for each in kept],
                versions=[each.version for each in kept],
                messages={each.name: each.message for each in kept if each.message},
                left_out=len(members) - len(kept),
            )
        )
    return found


def _summary(store: Store, entry: Entry, node: Node) -> ClusterSummary:
    cluster = entry.existing
    class_key = entry.class_key
    state, message = attention(node)
    paused = cluster.spec.paused is True or PAUSED_ANNOTATION in cluster.metadata.annotations
    return ClusterSummary(
        namespace=entry.key[0],
        name=entry.key[1],
        cluster_class=joined(class_key) if class_key else "",
        version=node.version or _control_plane_version(store, entry),
        state=state,
        message=shortened(message),
        paused=paused,
        machines=_counted(entry.machines.values()),
        explanation=_bounded(entry.explanation),
    )


def attention(node: Node) -> tuple[State, str]:
    """The state of a tree's root, or of the part that most needs attention."""
    if node.state not in {"good", "asleep"} or node.is_good:
        return node.state, node.message
    found = [attention(child) for child in node.children]
    state = worst({state for state, _ in found})
    return state, next(message for part, message in found if part == state)


def _control_plane_version(store: Store, entry: Entry) -> str:
    cluster = entry.existing
    part = store.part(entry, cluster.spec.control_plane_ref)
    return (part.raw.spec.version or "") if part else ""


def _counted(machines: Iterable[Machine]) -> MachineCounts:
    counts: dict[State, int] = {}
    for machine in machines:
        counts[machine.state] = counts.get(machine.state, 0) + 1
    return MachineCounts(**counts)


def _bounded(explanation: Explanation | None) -> Explanation | None:
    if explanation is None:
        return None
    return explanation.model_copy(update={"chains": explanation.chains[:_MOST_CHAINS]})


def _row(node: Node) -> Row:
    return Row(
        title=node.title,
        state=node.state,
        counts=node.counts,
        version=node.version,
        message=shortened(node.message),
        children=[_row(child) for child in node.children],
    )
