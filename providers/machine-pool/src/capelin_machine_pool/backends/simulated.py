"""The backend `Simulated`: machines that are only Node objects, which KWOK keeps ready."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.core import Lease, Node
from capelin.client import AlreadyExists, BadRequest, Client, Invalid, NotFound
from capelin.controller import ObjectKey
from capelin.provider import Blocked, MachineAddress
from capelin_embedded.binaries import Binaries

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.backends import InstanceStatus, Workload, node_taken
from capelin_machine_pool.backends.kwok import KwokProcesses
from capelin_machine_pool.backends.kwok_launcher import LEASE_NAMESPACE, MANAGED_LABEL
from capelin_machine_pool.desired import (
    ARCHITECTURE_LABEL,
    OPERATING_SYSTEM_LABEL,
    Instance,
    has_heartbeats,
    node_info,
    provider_id_of,
)
from capelin_machine_pool.reasons import Reason

SIMULATED_ANNOTATION = "capelin.cluster.x-k8s.io/simulated"
"""Explains a simulated Node in `kubectl describe node`."""
MESSAGE = "simulated by Capelin: nothing runs here"
KUBELET = "simulated-by-capelin-nothing-runs-here-"
"""The name of a kubelet that does not exist. `kubectl logs` shows it in its error. It ends with a
hyphen, so that API servers reject it at once, without a request to a name server."""

_HELD_AFTER = timedelta(seconds=2)
"""Age of a lease at which KWOK surely holds it in its records. Ages are in whole seconds."""
_CONDITIONS = (
    ("Ready", "True", "KubeletReady", MESSAGE),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has enough memory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has enough PIDs"),
    ("NetworkUnavailable", "False", "RouteCreated", "there is a route"),
)
_FIRST_ADDRESS = int(IPv4Address("10.128.0.0"))
_ADDRESSES = 2**22


class SimulatedBackend:
    """Machines that exist only as Node objects."""

    def __init__(self, state_folder: Path, binaries: Binaries) -> None:
        self.kwok = KwokProcesses(state_folder, binaries)

    @property
    def deletes_nodes(self) -> bool:
        return True

    async def allocate(self, instance: Instance, management: Client) -> str:
        del management
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, management: Client
    ) -> InstanceStatus:
        del management
        return observed_status(instance, await workload.client.find(Node, instance.key.name))

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        """Create the machine's Node, or change whether KWOK keeps it ready."""
        del management
        step = next_step(instance, observed, now)
        if step.status.running:
            cluster = ObjectKey(instance.key.namespace, instance.cluster)
            await self.kwok.ensure(cluster, workload.kubeconfig)
        if step.create_node:
            await _create_node(workload.client, node_manifest(instance, now))
        if step.set_heartbeats is False:
            lease = await workload.client.find(Lease, instance.key.name, LEASE_NAMESPACE)
            if not is_held(lease, now):
                return replace(step.status, heartbeats=True, changes_at=now + _HELD_AFTER)
        if step.set_heartbeats is not None:
            await _set_heartbeats(workload.client, instance.key.name, on=step.set_heartbeats)
        return step.status

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        """Delete the machine's Node, and no other Node of that name."""
        del management, now
        node = None if workload is None else await workload.find(Node, machine.name)
        is_own = node is not None and node.spec.provider_id == provider_id_of(machine)
        if workload is not None and node is not None and is_own:
            await workload.delete(Node, machine.name, uid=node.uid)

    def health(self) -> str | None:
        """The clusters whose KWOK process is not supervised."""
        return "; ".join(self.kwok.failures()) or None

    def clusters(self, namespace: str) -> Sequence[ObjectKey]:
        """The clusters in a namespace that have a KWOK process."""
        return self.kwok.clusters(namespace)

    async def release(self, cluster: ObjectKey) -> None:
        """Stop the cluster's KWOK process."""
        await self.kwok.stop(cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """The next change of a machine's Node, and the machine's status afterwards."""

    status: InstanceStatus
    create_node: bool = False
    set_heartbeats: bool | None = None


def observed_status(instance: Instance, node: Node | None) -> InstanceStatus:
    """The state of a machine by its Node.

    `clusterctl move` loses the machine's status but not its Node: a machine that has a Node runs,
    whatever its status shows.

    Raises:
        Blocked: a Node of that name is not this machine's.
    """
    if node is not None and node.spec.provider_id != instance.provider_id:
        raise node_taken(node)
    if node is not None:
        return InstanceStatus(
            running=True,
            heartbeats=MANAGED_LABEL in node.metadata.labels,
            addresses=addresses(instance.key.name),
        )
    if instance.provisioned:
        return InstanceStatus(running=True, lost=True, message="its Node was deleted")
    return InstanceStatus(running=False, message="starting")


def next_step(instance: Instance, observed: InstanceStatus, now: datetime) -> NodeStep:
    """The next change of a machine's Node."""
    if observed.lost:
        return NodeStep(status=observed)
    if not observed.running:
        if now < instance.boots_at:
            return NodeStep(status=replace(observed, changes_at=instance.boots_at))
        if instance.fault == "never boots":
            message = "it never boots because of spec.simulated.faults"
            return NodeStep(status=replace(observed, message=message))
    heartbeats, changes_at = has_heartbeats(instance, now)
    create = not observed.running
    if create and not heartbeats:
        # A new Node has heartbeats at first, even if its fault is due at once.
        heartbeats, changes_at = True, now + _HELD_AFTER
    return NodeStep(
        status=InstanceStatus(
            running=True,
            heartbeats=heartbeats,
            addresses=addresses(instance.key.name),
            changes_at=changes_at,
        ),
        create_node=create,
        set_heartbeats=None if create or observed.heartbeats == heartbeats else heartbeats,
    )


def addresses(name: str) -> tuple[MachineAddress, ...]:
    """Fictitious addresses of a machine, always the same for a name."""
    digest = hashlib.sha256(name.encode()).digest()
    internal = IPv4Address(_FIRST_ADDRESS + int.from_bytes(digest[:4]) % _ADDRESSES)
    return (
        MachineAddress(type="Hostname", address=name),
        MachineAddress(type="InternalIP", address=str(internal)),
    )


def is_held(lease: Lease | None, now: datetime) -> bool:
    """Whether KWOK has noted that it holds a Node's lease.

    KWOK notes this after it has created the lease, even if it should release the Node by then.
    So if the label goes earlier, KWOK renews the lease for ever.
    """
    created = None if lease is None else lease.metadata.creation_timestamp
    return created is not None and now - created >= _HELD_AFTER


def node_manifest(instance: Instance, now: datetime) -> Unstructured:
    """The Node of a machine, ready from the start.

    If it became ready a moment later, core would write each Machine's status twice more.
    """
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    capacity = {name: str(size) for name, size in instance.simulated.capacity.items()}
    platform = node_info(instance.simulated)
    labels = {
        "kubernetes.io/hostname": instance.key.name,
        OPERATING_SYSTEM_LABEL: platform.operating_system,
        ARCHITECTURE_LABEL: platform.architecture,
        **instance.simulated.labels,
        MANAGED_LABEL: "fake",
    }
    if instance.failure_domain is not None:
        labels["topology.kubernetes.io/zone"] = instance.failure_domain
    information = dict.fromkeys(("bootID", "kernelVersion", "machineID", "systemUUID"), "")
    reached_at = [address.dump() for address in addresses(instance.key.name)]
    spec: dict[str, Any] = {"providerID": instance.provider_id}
    if instance.simulated.taints:
        spec["taints"] = [taint.dump() for taint in instance.simulated.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": instance.key.name,
            "labels": labels,
            "annotations": {**instance.node_annotations, SIMULATED_ANNOTATION: MESSAGE},
        },
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [*reached_at, {"type": "InternalDNS", "address": KUBELET}],
            "conditions": [
                {
                    "type": type_,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": moment,
                    "lastTransitionTime": moment,
                }
                for type_, status, reason, message in _CONDITIONS
            ],
            "nodeInfo": {
                **information,
                "architecture": platform.architecture,
                "containerRuntimeVersion": "simulated://capelin",
                "kubeletVersion": instance.version,
                "kubeProxyVersion": "",
                "operatingSystem": platform.operating_system,
                "osImage": "Capelin (simulated)",
            },
        },
    }


async def _create_node(workload: Client, manifest: Unstructured) -> None:
    try:
        # The API server accepts a Node's status at its creation, as kubelets do.
        await workload.create(manifest, resource=Node.resource)
    except AlreadyExists:
        # The next reconcile finds out whose it is.
        return
    except (BadRequest, Invalid) as error:
        message = f"the cluster rejects the Node: {error}"
        raise Blocked(Reason.INVALID_CONFIGURATION, message, "correct spec.simulated") from error


async def _set_heartbeats(workload: Client, name: str, *, on: bool) -> None:
    labels = {MANAGED_LABEL: "fake" if on else None}
    # If the Node was deleted meanwhile, the next reconcile reports it as lost.
    with suppress(NotFound):
        if on:
            # KWOK may leave a Node unready if it has itself let the lease expire.
            await workload.delete(Lease, name, LEASE_NAMESPACE)
        await workload.patch(Node, name, None, {"metadata": {"labels": labels}})
