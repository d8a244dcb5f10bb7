"""Which workloads of a control plane may change now: etcd, then API servers, then the rest. Pure.

Deployments replace their pods by themselves. Members of etcd are chosen here: whether one may go
depends on the others.
"""

from collections.abc import Iterable, Mapping, Sequence

from capelin.api import Unstructured
from capelin.api.core import Pod

from capelin_control_plane.backends.pods.names import DIGEST_ANNOTATION
from capelin_control_plane.backends.pods.objects import DesiredObjects, EtcdState, Workload
from capelin_control_plane.backends.pods.pod_status import exit_message, is_member, is_ready
from capelin_control_plane.backends.pods.trees import fields_at, value_at
from capelin_control_plane.desired import Component, ControlPlane
from capelin_control_plane.etcd_members import is_corruption, is_data_loss
from capelin_control_plane.instances import InstanceStatus


def workloads_to_apply(
    desired: ControlPlane,
    objects: DesiredObjects,
    live: Mapping[Component, Unstructured],
    statuses: Sequence[InstanceStatus],
    *,
    started_members: int,
) -> tuple[Workload, ...]:
    """The workloads that may be made as desired now.

    Args:
        desired: The control plane.
        objects: Its desired objects.
        live: The workloads that are there.
        statuses: Its pods.
        started_members: How many members of etcd run, ready or not.
    """
    allowed = [objects.etcd]
    is_etcd_settled = _is_settled(statuses, "etcd", desired.etcd_replicas)
    servers = objects.api_server
    # The first API server starts as soon as etcd may answer, and waits for it: it is ready sooner.
    # Earlier, while volumes are still made, it would give up and be started later each time.
    may_begin = servers.component not in live and started_members > desired.etcd_replicas // 2
    if _is_same(servers, live) or may_begin or is_etcd_settled:
        allowed.append(servers)
    answers = any(status.ready for status in _of(statuses, "kube-apiserver"))
    # These are never newer than an API server.
    are_servers_settled = _is_settled(statuses, "kube-apiserver", desired.replicas)
    for controller in objects.controllers:
        is_new = controller.component not in live
        if _is_same(controller, live) or (answers if is_new else are_servers_settled):
            allowed.append(controller)
    return tuple(allowed)


def next_etcd_state(
    desired: ControlPlane,
    present: EtcdState | None,
    statuses: Sequence[InstanceStatus],
    *,
    has_etcd: bool,
) -> EtcdState:
    """Whether etcd's cluster has formed. If nobody knows any more, no empty one may begin."""
    if present is None:
        return "existing" if has_etcd else "new"
    members = _of(statuses, "etcd")
    if len(members) >= desired.etcd_replicas and all(member.ready for member in members):
        return "existing"
    return present


def member_to_replace(desired: ControlPlane, pods: Sequence[Pod]) -> tuple[Pod, Pod] | None:
    """The etcd member that lost its data or cannot read it, and a ready one; None if there is none.

    Only while the others have a quorum without it.
    """
    members = sorted((pod for pod in pods if is_member(pod)), key=lambda pod: pod.name)
    ready = [pod for pod in members if is_ready(pod)]
    if len(ready) <= desired.etcd_replicas // 2:
        return None
    for pod in members:
        if pod not in ready and pod.metadata.deletion_timestamp is None:
            message = exit_message(pod)
            if is_corruption(message) or is_data_loss(message):
                return pod, ready[0]
    return None


def members_to_restart(
    objects: DesiredObjects, live: Mapping[Component, Unstructured], pods: Sequence[Pod]
) -> list[Pod]:
    """The members of etcd that are to run the desired template now, in place of another one.

    They go one by one. While any is down, none that is ready goes: first those that are down are
    changed, as that may be what they need.
    """
    stateful_set = live.get("etcd")
    if not _is_same(objects.etcd, live) or value_at(
        stateful_set, "status", "observedGeneration"
    ) != value_at(stateful_set, "metadata", "generation"):
        # A new pod would be made from the template of before.
        return []
    members = sorted((pod for pod in pods if is_member(pod)), key=lambda pod: pod.name)
    down = [pod for pod in members if not is_ready(pod)]
    if len(members) < value_at(stateful_set, "spec", "replicas") or any(
        pod.metadata.deletion_timestamp for pod in members
    ):
        return []
    outdated = [
        pod
        for pod in (down or members)
        if pod.metadata.annotations.get(DIGEST_ANNOTATION) != objects.etcd.digest
    ]
    if len(down) == len(members):
        # There is no quorum to lose, and none becomes ready without the others.
        return outdated
    # One that was changed already may still become ready.
    return outdated[:1] if not down or len(outdated) == len(down) else []


def is_complete(
    desired: ControlPlane, objects: DesiredObjects, statuses: Sequence[InstanceStatus]
) -> bool:
    """Whether exactly the desired pods are there, ready or not."""
    counts = {
        "etcd": desired.etcd_replicas,
        "kube-apiserver": desired.replicas,
        **{workload.component: min(desired.replicas, 2) for workload in objects.controllers},
    }
    return all(status.current for status in statuses) and all(
        len(_of(statuses, component)) == count for component, count in counts.items()
    )


def _is_same(workload: Workload, live: Mapping[Component, Unstructured]) -> bool:
    template = fields_at(live.get(workload.component), "spec", "template")
    return value_at(template, "metadata", "annotations", DIGEST_ANNOTATION) == workload.digest


def _is_settled(statuses: Iterable[InstanceStatus], component: Component, replicas: int) -> bool:
    pods = _of(statuses, component)
    return len(pods) == replicas and all(pod.ready and pod.current for pod in pods)


def _of(statuses: Iterable[InstanceStatus], component: str) -> list[InstanceStatus]:
    return [status for status in statuses if status.component == component]
