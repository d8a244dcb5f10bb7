"""The part of each object that the page shows. Nothing else stays in memory. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from capelin.api import Unstructured
from capelin.contract import CLUSTER_NAME_LABEL

from capelin_cli.explain.facts import ACTIVITIES, SUMMARIES, Subject, at, text_at
from capelin_cli.status.cluster_tree import ClusterObject, State, machine_set, state_of
from capelin_cli.ui.timeline import Phase, shortened

Key = tuple[str, str]
"""Namespace and name of a Cluster."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Machine. Thousands of them may exist."""

    name: str
    set: str
    """The workers that it belongs to, or `ControlPlane`."""
    state: State
    phase: str
    version: str
    message: str
    since: float
    """When the phase began, if it is known, or the Machine was created."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Cluster, its infrastructure, its control plane or workers."""

    raw: ClusterObject
    phase: Phase


def cluster_key(raw: Mapping[str, Any]) -> Key | None:
    """The Cluster that an object belongs to."""
    name = text_at(raw, "metadata", "labels", CLUSTER_NAME_LABEL)
    name = name or text_at(raw, "spec", "clusterName") or text_at(raw, "spec", "cluster", "name")
    if not name:
        owners = at(raw, "metadata", "ownerReferences")
        listed = cast("list[object]", owners) if isinstance(owners, list) else []
        name = next((text_at(each, "name") for each in listed if at(each, "kind") == "Cluster"), "")
    return (text_at(raw, "metadata", "namespace"), name) if name else None


def read_machine(raw: Unstructured) -> Machine:
    """A Machine as far as the page shows it."""
    machine = ClusterObject.read(raw)
    state, message = state_of(machine)
    created = machine.metadata.creation_timestamp
    return Machine(
        name=machine.metadata.name,
        set=sys.intern(machine_set(machine)),
        state=state,
        phase=sys.intern(text_at(raw, "status", "phase") or "Pending"),
        version=sys.intern(machine.spec.version or ""),
        message=shortened(message),
        since=created.timestamp() if created else 0.0,
    )


def machine_phase(machine: Machine, since: datetime | None) -> Phase:
    """The phase of a Machine for the timeline."""
    text = f"{machine.phase}, {machine.version}" if machine.version else machine.phase
    return Phase(machine.state, text, since)


def read_part(raw: Unstructured) -> Part:
    """A part of a cluster, with its phase."""
    obj = ClusterObject.read(raw)
    return Part(_without_bulk(obj), part_phase(Subject(raw), obj))


def part_phase(subject: Subject, obj: ClusterObject) -> Phase:
    """The present work of the object's controller: the first activity, or else the summary."""
    state, _ = state_of(obj)
    version = obj.status.version or obj.spec.template.spec.version or obj.spec.topology.version
    conditions = {each.type: each for each in subject.conditions}
    activity = next(
        (
            condition
            for name in ACTIVITIES
            if (condition := conditions.get(name)) is not None and condition.status == "True"
        ),
        None,
    )
    summary = next((conditions[name] for name in SUMMARIES if name in conditions), None)
    chosen = activity or summary
    if subject.is_deleting:
        word = "Deleting"
    elif activity is not None:
        word = activity.type
    elif summary is not None:
        met = summary.type if state == "good" else "Waits"
        word = met if summary.status == "True" else f"Not {summary.type.lower()}"
    else:
        word = "Ready" if state == "good" else "Not ready"
    text = f"{word}, {version}" if version else word
    return Phase(state, text, chosen.since if chosen else None)


def _without_bulk(obj: ClusterObject) -> ClusterObject:
    """Without the metadata that no view shows: managed fields are the largest part."""
    metadata = obj.metadata
    kept = type(metadata)(
        name=metadata.name,
        namespace=metadata.namespace,
        labels=metadata.labels,
        annotations=metadata.annotations,
        deletion_timestamp=metadata.deletion_timestamp,
        uid=metadata.uid,
    )
    return obj.model_copy(update={"metadata": kept})
