"""Members of etcd whose node is lost, or that no node accepts. Pure.

With a local volume, such a member cannot run elsewhere. It is replaced by a new one, on another
node, which copies the data of the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from capelin.api.core import Node, Pod, StateCondition

from capelin_control_plane.backends.pods.pod_status import is_member, is_ready, member_index


@dataclass(frozen=True, slots=True)
class Displaced:
    """Members that have no usable node."""

    indexes: frozenset[int] = frozenset()
    """Those that have been without one for too long."""
    next: datetime | None = None
    """When another one is without a node for too long."""


def displaced_members(
    pods: Iterable[Pod], nodes: Iterable[Node], now: datetime, after: timedelta
) -> Displaced:
    """The members whose node has not been usable for a while.

    Args:
        pods: The pods of a control plane.
        nodes: The nodes of the management cluster.
        now: The present.
        after: How long a node may be lost.
    """
    by_name = {node.name: node for node in nodes}
    ends: dict[int, datetime] = {}
    for pod in filter(is_member, pods):
        since = _unusable_since(pod, by_name)
        if since is not None:
            ends[member_index(pod)] = since + after
    return Displaced(
        frozenset(index for index, end in ends.items() if end <= now),
        min((end for end in ends.values() if end > now), default=None),
    )


def _unusable_since(pod: Pod, nodes: Mapping[str, Node]) -> datetime | None:
    """The time since which a pod has no usable node. None if it has one, or is ready."""
    if is_ready(pod):
        return None
    if pod.spec.node_name is None:
        return _since(pod.status.conditions, "PodScheduled")
    node = nodes.get(pod.spec.node_name)
    if node is None:
        return _since(pod.status.conditions, "Ready")
    return _since(node.status.conditions, "Ready")


def _since(conditions: Iterable[StateCondition], type_: str) -> datetime | None:
    """The time since which a condition is not true."""
    for condition in conditions:
        if condition.type == type_ and condition.status != "True":
            return condition.last_transition_time
    return None
