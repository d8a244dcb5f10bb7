"""Deletes the objects of a control plane in an order in which nothing creates them again."""

from collections.abc import Callable, Sequence
from typing import Final

from capelin.api import Resource
from capelin.api.core import Pod
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.pods.names import COMPONENT_LABEL, Names, value_at
from capelin_control_plane.backends.pods.own_objects import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    STOP_SECONDS,
    OwnObjects,
    belongs_to,
)
from capelin_control_plane.backends.pods.pod_status import is_member
from capelin_control_plane.backends.pods.restore_pods import is_restore_pod
from capelin_control_plane.desired.control_plane import PROGRAMS, Component
from capelin_control_plane.etcd.rules import MOST_MEMBERS

_CLIENTS: Final[tuple[Component, ...]] = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)


async def delete_everything(own: OwnObjects, names: Names, *, keeps_data: bool = False) -> None:
    """Delete everything that belongs to a control plane.

    Args:
        own: The objects of control planes.
        names: The names of this one's.
        keeps_data: Whether to keep the volumes of etcd and its state.

    Raises:
        Blocked: its pods have not ended yet.
    """
    await _delete_workloads(own, names, PROGRAMS)
    for resource, name in _deletable(names):
        if not (keeps_data and resource is CLAIMS):
            await own.delete(names, resource, name)
    await own.empty_secret(names)
    if not keeps_data:
        # Last: while it exists, no empty etcd begins. The Secret is garbage collected with it.
        await own.delete(names, CONFIG_MAPS, names.etcd_state)
    if await _end_pods(own, names, keeps=_nothing):
        raise Blocked(Reason.STOPPING_PODS, "waiting for its pods to end", retry_seconds=1.0)


async def stop_pods(own: OwnObjects, names: Names) -> None:
    """Stop all pods of a control plane, before the restored data takes the place of theirs."""
    await _stop(own, names, PROGRAMS, keeps=is_restore_pod)


async def stop_clients(own: OwnObjects, names: Names) -> None:
    """Stop the pods that use etcd, and leave its members."""
    await _stop(own, names, _CLIENTS, keeps=is_etcd_pod)


def is_etcd_pod(pod: Pod) -> bool:
    """Whether it is a member of etcd, or creates the data of one."""
    return is_member(pod) or is_restore_pod(pod)


async def _stop(
    own: OwnObjects, names: Names, components: Sequence[Component], keeps: Callable[[Pod], bool]
) -> None:
    await _delete_workloads(own, names, components)
    for component in components:
        await own.delete(names, BUDGETS, names.of_component(component))
    await _end_pods(own, names, keeps)


async def _delete_workloads(own: OwnObjects, names: Names, components: Sequence[Component]) -> None:
    """Delete what would create pods, and leave the pods."""
    for component in components:
        workload = STATEFUL_SETS if component == "etcd" else DEPLOYMENTS
        await own.delete(names, workload, names.of_component(component), "Orphan")
    # After their Deployments and StatefulSet, which would create others.
    for resource in (REPLICA_SETS, CONTROLLER_REVISIONS):
        listed = await own.client.list(resource, names.namespace, labels=names.labels())
        for owned in listed.items:
            # The annotations of its owner are its own, too.
            component = value_at(owned, "metadata", "labels", COMPONENT_LABEL)
            if component in components and belongs_to(owned, resource, names):
                await own.delete_live(owned, resource, "Orphan")


async def _end_pods(own: OwnObjects, names: Names, keeps: Callable[[Pod], bool]) -> bool:
    """Evict all pods but some. Returns whether any others still exist."""
    listed = await own.client.list(Pod, names.namespace, labels=names.labels())
    pods = [pod for pod in listed.items if not keeps(pod)]
    for pod in pods:
        # Their disruption budgets are deleted, so nothing holds them.
        await own.evict(pod, STOP_SECONDS)
    return bool(pods)


def _nothing(_: Pod) -> bool:
    return False


def _deletable(names: Names) -> list[tuple[Resource, str]]:
    components = [names.of_component(component) for component in PROGRAMS]
    return [
        *((SERVICES, name) for name in (*components[:2], names.etcd_members, names.konnectivity)),
        *((BUDGETS, name) for name in components),
        *((NETWORK_POLICIES, name) for name in components),
        *((CLAIMS, names.claim(index)) for index in range(MOST_MEMBERS)),
    ]
