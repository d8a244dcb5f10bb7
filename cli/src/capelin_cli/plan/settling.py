"""Whether the objects show that Cluster API has finished its work. Pure."""

from collections.abc import Iterator
from typing import Final, cast

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, Machine, MachineDeployment, MachineSet
from capelin.contract import CONTROL_PLANE_LABEL, POOL_NAME_LABEL

from capelin_cli.explain.facts import Subject, at, labels_of, text_at
from capelin_cli.plan.snapshot import Snapshot

_TOPOLOGY: Final = "TopologyReconciled"
_GROUP: Final = Cluster.resource.group


def unsettled(world: Snapshot) -> list[str]:
    """The objects that are not as desired yet, each with the reason."""
    return list(_unsettled(world))


def _unsettled(world: Snapshot) -> Iterator[str]:
    for key, obj in world.objects.items():
        reason = _reason(obj) if key.group == _GROUP else ""
        if text_at(obj, "metadata", "deletionTimestamp"):
            reason = "its deletion has not finished"
        if reason:
            yield f"{key}: {reason}"


def _reason(obj: Unstructured) -> str:
    match obj.get("kind"):
        case Cluster.resource.kind:
            return _cluster_reason(obj)
        case ClusterClass.resource.kind:
            return "" if Subject(obj).is_observed else "Cluster API has not read it"
        case MachineDeployment.resource.kind | MachineSet.resource.kind:
            return _workers_reason(obj)
        case Machine.resource.kind:
            labels = labels_of(obj)
            if CONTROL_PLANE_LABEL in labels or POOL_NAME_LABEL in labels:
                return ""
            return "" if text_at(obj, "status", "phase") == "Running" else "it does not run"
        case _:
            return ""


def _cluster_reason(obj: Unstructured) -> str:
    if not at(obj, "spec", "topology"):
        return ""
    for condition in Subject(obj).conditions:
        if condition.type == _TOPOLOGY:
            generation = at(obj, "metadata", "generation")
            if condition.status != "True":
                return condition.text
            observed = _observed(obj, _TOPOLOGY)
            return "" if observed == generation else "Cluster API has not read its topology"
    return "Cluster API has not read its topology"


def _observed(obj: Unstructured, type_: str) -> object:
    conditions = cast("list[Unstructured]", at(obj, "status", "conditions") or [])
    return next(
        (at(each, "observedGeneration") for each in conditions if text_at(each, "type") == type_),
        None,
    )


def _workers_reason(obj: Unstructured) -> str:
    if not Subject(obj).is_observed:
        return "Cluster API has not read it"
    wanted = at(obj, "spec", "replicas")
    is_on_delete = text_at(obj, "spec", "rollout", "strategy", "type") == "OnDelete"
    is_set = obj.get("kind") == MachineSet.resource.kind
    names = ["replicas", "availableReplicas"]
    if not is_on_delete and not is_set:
        names.append("upToDateReplicas")
    for name in names:
        found = at(obj, "status", name) or 0
        if found != wanted:
            return f"{name} is {found}, desired are {wanted}"
    return ""
