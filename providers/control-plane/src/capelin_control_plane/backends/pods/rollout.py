"""Which workloads of a control plane may change now: etcd, then API servers, then the rest. Pure.

Deployments replace their pods by themselves. `capelin_control_plane.etcd` chooses the members of
etcd to restart or replace, from the members that this module derives from pods.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from capelin.api import Unstructured
from capelin.api.core import Pod

from capelin_control_plane.backends.pods.names import DIGEST_ANNOTATION, fields_at, value_at
from capelin_control_plane.backends.pods.objects import DesiredObjects, Workload
from capelin_control_plane.backends.pods.pod_status import (
    exit_message,
    index_of,
    is_member,
    is_ready,
    member_index,
)
from capelin_control_plane.desired.control_plane import Component, ControlPlane
from capelin_control_plane.desired.instances import InstanceStatus
from capelin_control_plane.etcd.rules import Loss, Member, loss_of, quorum


def workloads_to_apply(
    desired: ControlPlane,
    objects: DesiredObjects,
    live: Mapping[Component, Unstructured],
    statuses: Sequence[InstanceStatus],
    *,
    members: int,
    voters: int,
    started_members: int,
    awaits_data: bool = False,
) -> tuple[Workload, ...]:
    """The workloads that may be applied now.

    Args:
        desired: The control plane.
        objects: Its desired objects.
        live: The existing workloads.
        statuses: Its pods.
        members: How many members of etcd should run now.
        voters: How many of them vote.
        started_members: How many members of etcd run, ready or not.
        awaits_data: Whether a restore is requested whose data is not in use yet.
    """
    allowed = [objects.etcd.scaled(members)]
    # New API servers use all desired members, and a learner rejects them. Others leave afterwards.
    has_grown = min(members, voters) >= desired.etcd_replicas
    is_etcd_settled = has_grown and _is_etcd_settled(
        statuses,
        members,
        desired.etcd_replicas,
        shrinks=max(members, voters) > desired.etcd_replicas,
    )
    servers = objects.api_server
    if awaits_data and servers.component not in live:
        # Nodes that reach an API server without their data end all their pods.
        return tuple(allowed)
    # The first API server starts as soon as etcd may answer, and waits for it: it is ready sooner.
    # Started while volumes are still created, it would give up, and back off longer each time.
    may_begin = servers.component not in live and started_members >= quorum(members)
    if _is_same(servers, live) or may_begin or is_etcd_settled:
        allowed.append(servers)
    answers = any(status.ready for status in _of(statuses, "kube-apiserver"))
    # These are never newer than an API server.
    are_servers_settled = are_api_servers_settled(desired, statuses)
    for controller in objects.controllers:
        is_new = controller.component not in live
        if _is_same(controller, live) or (answers if is_new else are_servers_settled):
            allowed.append(controller)
    return tuple(allowed)


def etcd_members(
    objects: DesiredObjects,
    live: Mapping[Component, Unstructured],
    pods: Iterable[Pod],
    displaced: Collection[int] = (),
) -> list[Member]:
    """The members of etcd, without pods that are being deleted by a kubelet.

    Args:
        objects: The desired objects.
        live: The existing workloads.
        pods: The pods of the control plane.
        displaced: The indexes of members that have been without a usable node for too long.
    """
    stateful_set = live.get("etcd")
    # Until its controller has observed the template, it would create a pod from the last one.
    is_applied = _is_same(objects.etcd, live) and value_at(
        stateful_set, "status", "observedGeneration"
    ) == value_at(stateful_set, "metadata", "generation")
    return [
        Member(
            index=member_index(pod),
            ready=is_ready(pod),
            outdated=is_applied
            and pod.metadata.annotations.get(DIGEST_ANNOTATION) != objects.etcd.digest,
            loss=_loss(pod, displaced),
        )
        for pod in filter(is_member, pods)
        # The kubelet of a lost node does not end its pods.
        if pod.metadata.deletion_timestamp is None or member_index(pod) in displaced
    ]


def _loss(pod: Pod, displaced: Collection[int]) -> Loss | None:
    if member_index(pod) in displaced:
        return Loss.DISPLACED
    # The message of one that is ready is that of its last start.
    return None if is_ready(pod) else loss_of(exit_message(pod))


def is_complete(
    desired: ControlPlane, objects: DesiredObjects, statuses: Sequence[InstanceStatus]
) -> bool:
    """Whether exactly the desired pods exist, ready or not."""
    counts = {
        "etcd": desired.etcd_replicas,
        "kube-apiserver": desired.replicas,
        **{workload.component: min(desired.replicas, 2) for workload in objects.controllers},
    }
    return all(status.current for status in statuses) and all(
        len(_of(statuses, component)) == count for component, count in counts.items()
    )


def are_api_servers_settled(desired: ControlPlane, statuses: Sequence[InstanceStatus]) -> bool:
    """Whether the API servers run as desired, and use the desired members of etcd only."""
    return _is_settled(statuses, "kube-apiserver", desired.replicas)


def _is_same(workload: Workload, live: Mapping[Component, Unstructured]) -> bool:
    template = fields_at(live.get(workload.component), "spec", "template")
    return value_at(template, "metadata", "annotations", DIGEST_ANNOTATION) == workload.digest


def _is_settled(statuses: Iterable[InstanceStatus], component: Component, replicas: int) -> bool:
    """Whether exactly so many pods are ready and current."""
    pods = _of(statuses, component)
    return len(pods) == replicas and all(pod.ready and pod.current for pod in pods)


def _is_etcd_settled(
    statuses: Iterable[InstanceStatus], members: int, desired: int, *, shrinks: bool
) -> bool:
    """Whether API servers may change: a quorum is ready, and no ready member has to restart.

    Members restart only while their number stays, and leave only after API servers have changed.
    API servers use only members that stay, so these are ready while others leave.
    """
    ready = [pod for pod in _of(statuses, "etcd") if pod.ready]
    if len(ready) < quorum(members):
        return False
    if shrinks:
        return sum(index_of(pod.name) < desired for pod in ready) == desired
    return all(pod.current for pod in ready)


def _of(statuses: Iterable[InstanceStatus], component: str) -> list[InstanceStatus]:
    return [status for status in statuses if status.component == component]
