"""The fields in which clusters of one ClusterClass differ. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from capelin.api.capi import Cluster, Topology, Variable, WorkerTopology

from capelin_cli.ui.model import Difference, Value
from capelin_cli.ui.timeline import shortened

_MOST_FIELDS: Final = 200
_UNSET: Final = "unset"


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
