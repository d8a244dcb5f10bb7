"""The Node of a host during an update in place: drained before it, and open for pods after it."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from capelin.api.core import Node, Pod
from capelin.client import Client, Conflict, TooManyRequests
from capelin.contract import READY, find_condition, is_condition_true

from capelin_machine_pool.api import Hosts
from capelin_machine_pool.hosts.api import CapelinHost, HostClaim
from capelin_machine_pool.hosts.plan import failed_update, is_updated

UPDATING_ANNOTATION: Final = "capelin.cluster.x-k8s.io/updating"
"""On a Node that the provider cordoned, the version of the update."""
_DRAIN_LABEL: Final = "cluster.x-k8s.io/drain"
_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_NAMED: Final = 3
"""Pods that a message names."""


class NodeStep(Enum):
    """The next step of a machine whose Node exists."""

    NOTHING = auto()
    DRAIN = auto()
    """Drain the Node, then have the host updated."""
    WAIT_FOR_HOST = auto()
    WAIT_FOR_NODE = auto()
    """Wait until the kubelet reports the version."""
    UNCORDON = auto()


def next_node_step(version: str, hosts: Hosts, host: CapelinHost, node: Node) -> NodeStep:
    """The next step of an update in place.

    Args:
        version: The desired Kubernetes version of the machine.
        hosts: The settings of the machine.
        host: Its host.
        node: Its Node.
    """
    claim = host.spec.claim
    if claim is None or not can_be_updated(hosts):
        return NodeStep.NOTHING
    is_cordoned = UPDATING_ANNOTATION in node.metadata.annotations
    done = NodeStep.UNCORDON if is_cordoned else NodeStep.NOTHING
    if (claim.update_version or current_version(host, claim, node)) != version:
        # An update that runs is not interrupted. One that failed makes way.
        runs = not is_updated(host, claim) and failed_update(host) is None
        return NodeStep.WAIT_FOR_HOST if runs else NodeStep.DRAIN
    if claim.update_version is None:
        return done
    if not is_updated(host, claim):
        return NodeStep.WAIT_FOR_HOST
    is_ready = is_condition_true(node.status.conditions, READY)
    if not is_ready or node.status.node_info.kubelet_version != version:
        return NodeStep.WAIT_FOR_NODE
    return done


def can_be_updated(hosts: Hosts) -> bool:
    """Whether something installs other versions on a host."""
    return hosts.profile != "Image"


def current_version(host: CapelinHost, claim: HostClaim, node: Node) -> str:
    """The version that a host has, or is updated to. Claims of earlier releases have none.

    After an update that failed, it is the one that the Node reports.
    """
    reported = node.status.node_info.kubelet_version or ""
    if claim.update_version is not None and failed_update(host) is not None:
        return reported
    return claim.update_version or claim.version or reported


def must_leave(pod: Pod) -> bool:
    """Whether a pod has to leave a Node before an update, by the rules of Cluster API's drain."""
    is_of_daemon_set = any(
        owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references
    )
    return not (
        is_of_daemon_set
        or pod.metadata.labels.get(_DRAIN_LABEL) == "skip"
        or _MIRROR_ANNOTATION in pod.metadata.annotations
        or pod.status.phase in {"Succeeded", "Failed"}
    )


async def cordon(client: Client, node: Node, version: str) -> None:
    """Keep new pods away. A Node that a person cordoned stays so after the update."""
    if not node.spec.unschedulable:
        annotations = {UPDATING_ANNOTATION: version}
        patch = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": True}}
        await client.patch(Node, node.name, None, patch)


async def uncordon(client: Client, node: Node) -> None:
    """Let new pods in."""
    patch = {
        "metadata": {"annotations": {UPDATING_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }
    await client.patch(Node, node.name, None, patch)


async def evict_pods(client: Client, node: Node) -> str | None:
    """Evict the pods of a Node as far as their budgets allow.

    The kubelet of a lost Node never reports the end of a pod, so nothing waits for it.

    Returns:
        The reason to wait, or None if the Node is drained.
    """
    listed = await client.list(Pod, fields={"spec.nodeName": node.name})
    ready = find_condition(node.status.conditions, READY)
    is_lost = ready is not None and ready.status == "Unknown"
    leaving = [
        pod
        for pod in filter(must_leave, listed.items)
        if pod.metadata.deletion_timestamp is None or not is_lost
    ]
    pods = sorted(leaving, key=lambda pod: (pod.namespace or "", pod.name))
    refused: list[str] = []
    for pod in pods:
        if pod.metadata.deletion_timestamp is not None:
            continue
        try:
            await client.evict(pod.name, pod.namespace or "", uid=pod.uid)
        except TooManyRequests:
            refused.append(f"{pod.namespace}/{pod.name}")
        except Conflict:
            pass  # another pod has the name by now
    if refused:
        return f"a PodDisruptionBudget does not allow the eviction of {_names(refused)} yet"
    names = [f"{pod.namespace}/{pod.name}" for pod in pods]
    return f"pods leave the Node: {_names(names)}" if names else None


def updated_claim(claim: HostClaim, version: str, hosts: Hosts) -> HostClaim:
    """The claim of a machine that has to be updated."""
    return claim.model_copy(
        update={
            "update_version": version,
            "profile": hosts.profile,
            "install_commands": hosts.install_commands,
        }
    )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
