"""The status of a control plane's instances from its pods, and members of etcd on lost nodes. Pure.

With a local volume, a member whose node is lost cannot run elsewhere. It is replaced by a new one,
on another node, which copies the data of the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from capelin.api.core import ContainerStatus, Node, Pod, StateCondition
from capelin.contract import READY, is_condition_true
from capelin_embedded.processes import exit_reason

from capelin_control_plane.backends.pods.names import (
    COMPONENT_LABEL,
    DIGEST_ANNOTATION,
    VERSION_LABEL,
    fields_at,
)
from capelin_control_plane.desired.control_plane import FIELDS, PROGRAMS, Component
from capelin_control_plane.desired.instances import InstanceStatus

_OVERDUE: Final = timedelta(minutes=1)
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})
# They alternate, and their messages change. The pod's events contain details.
_CANNOT_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"})


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


def instance_status(pod: Pod, digests: Mapping[Component, str]) -> InstanceStatus | None:
    """The status of a pod. None if it is being deleted, or is not part of a control plane.

    Args:
        pod: The pod.
        digests: By component, the digest of the desired template.
    """
    labels = pod.metadata.labels
    if pod.metadata.deletion_timestamp or labels.get(COMPONENT_LABEL) not in PROGRAMS:
        return None
    component = cast("Component", labels[COMPONENT_LABEL])
    ready = is_ready(pod)
    return InstanceStatus(
        name=pod.name,
        component=component,
        version=labels.get(VERSION_LABEL, "").replace("_", "+"),
        ready=ready,
        current=pod.metadata.annotations.get(DIGEST_ANNOTATION) == digests.get(component),
        failure="" if ready else failure_of(pod, component),
    )


def instance_statuses(
    pods: Iterable[Pod], digests: Mapping[Component, str]
) -> tuple[InstanceStatus, ...]:
    """By name, the status of each component's pod that is not being deleted."""
    statuses = (instance_status(pod, digests) for pod in pods)
    return tuple(sorted(filter(None, statuses), key=lambda status: status.name))


def is_ending_server(pod: Pod, now: datetime) -> bool:
    """Whether an API server ends and may still use a member that leaves.

    The kubelet of a lost node never reports the end of a pod, which was due at this time.
    """
    due = pod.metadata.deletion_timestamp
    is_server = pod.metadata.labels.get(COMPONENT_LABEL) == "kube-apiserver"
    return is_server and due is not None and now < due + _OVERDUE


def is_ready(pod: Pod) -> bool:
    return is_condition_true(pod.status.conditions, READY)


def is_running(pod: Pod) -> bool:
    """Whether a container of a pod runs, ready or not."""
    return any("running" in container.state for container in pod.status.container_statuses)


def has_started(pod: Pod) -> bool:
    """Whether all containers of a pod passed their startup probes, ready or not."""
    containers = pod.status.container_statuses
    return bool(containers) and all(container.started for container in containers)


def member_index(pod: Pod) -> int:
    """The index of an etcd member."""
    return index_of(pod.name)


def index_of(member: str) -> int:
    """The index of an etcd member with this name."""
    return int(member.rpartition("-")[2])


def is_member(pod: Pod) -> bool:
    return pod.metadata.labels.get(COMPONENT_LABEL) == "etcd"


def failure_of(pod: Pod, component: Component) -> str:
    """Why a pod is not ready, if something is wrong with it."""
    for state in pod.status.conditions:
        if (state.type, state.status) == ("PodScheduled", "False"):
            return f"cannot be scheduled: {state.message or state.reason}"
    for container in pod.status.container_statuses:
        if problem := _exit(container, component) or _waiting(container):
            return problem
    for container in pod.status.init_container_statuses:
        if problem := _waiting(container):
            return f"{container.name} {problem}"
    if pod.status.phase == "Failed":
        return f"has failed: {pod.status.message or pod.status.reason or 'no reason is known'}"
    return ""


def exit_message(pod: Pod) -> str:
    """The last words of a container that has ended, whether or not it was started again."""
    for container in pod.status.container_statuses:
        if (terminated := _terminated(container)) is not None:
            return exit_reason(str(terminated.get("message") or "").splitlines())
    return ""


def _exit(container: ContainerStatus, component: Component) -> str:
    terminated = _terminated(container)
    if terminated is None:
        return ""
    reason = exit_reason(str(terminated.get("message") or "").splitlines())
    if reason:
        return f"ended: {reason}"
    if terminated.get("reason") == "OOMKilled":
        return f"ran out of memory: raise spec.{FIELDS[component]}.resources.memory"
    return f"ended with exit code {terminated.get('exitCode')}"


def _terminated(container: ContainerStatus) -> Mapping[str, Any] | None:
    for state in (container.state, container.last_state):
        terminated = fields_at(state, "terminated")
        if terminated.get("exitCode"):
            return terminated
    return None


def _waiting(container: ContainerStatus) -> str:
    waiting = fields_at(container.state, "waiting")
    reason = str(waiting.get("reason") or "")
    if reason in _HARMLESS:
        return ""
    if reason in _CANNOT_PULL:
        return f"cannot be started: image {container.image} cannot be pulled"
    message = "" if reason == "CrashLoopBackOff" else str(waiting.get("message") or "")
    return f"cannot be started: {reason}{': ' if message else ''}{message}"
