"""Pausing: when to leave an object alone, and how to say so.

Rules `*/pausing`. The words are those that core writes on its own kinds.
"""

from capelin.api import BaseObject
from capelin.api.capi import Cluster
from capelin.contract.conditions import PAUSED, ConditionSpec
from capelin.contract.labels import PAUSED_ANNOTATION


def is_paused(obj: BaseObject, cluster: Cluster | None) -> bool:
    """Whether to leave the object alone, its deletion included."""
    return paused(obj, cluster).status == "True"


def paused(obj: BaseObject, cluster: Cluster | None) -> ConditionSpec:
    """The condition that says whether the object, or the Cluster that it is part of, is paused."""
    reasons: list[str] = []
    if cluster is not None and cluster.spec.paused:
        reasons.append("Cluster spec.paused is set to true")
    if PAUSED_ANNOTATION in obj.metadata.annotations:
        reasons.append(f"{obj.resource.kind} has the {PAUSED_ANNOTATION} annotation")
    if reasons:
        return ConditionSpec(PAUSED, "True", "Paused", ", ".join(reasons))
    return ConditionSpec(PAUSED, "False", "NotPaused")
