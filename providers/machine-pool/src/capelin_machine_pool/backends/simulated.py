"""Machines that exist only as Node objects, kept alive by one KWOK process a workload cluster."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.views.core import Lease, Node
from capelin.client import AlreadyExists, Client, NotFound
from capelin.controller import ObjectKey
from capelin.embedded.binaries import Binaries

from capelin_machine_pool.api import Address
from capelin_machine_pool.backends import Instance
from capelin_machine_pool.backends.keeper import KEPT_ALIVE, LEASES
from capelin_machine_pool.backends.kwok import Kwok
from capelin_machine_pool.desired import WantedMachine

_FLAP = timedelta(seconds=90)
"""How long a flapping node is silent, and then alive: longer than core and Kubernetes wait."""
_CONDITIONS = (
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has enough memory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has enough PIDs"),
    ("NetworkUnavailable", "False", "RouteCreated", "there is a route"),
)
_FIRST_ADDRESS = int(IPv4Address("10.128.0.0"))
_ADDRESSES = 2**22


class SimulatedMachines:
    """Machines that exist only as Node objects."""

    def __init__(self, state: Path, binaries: Binaries) -> None:
        self.kwok = Kwok(state, binaries)

    async def ensure(
        self,
        wanted: WantedMachine,
        workload: Client,
        *,
        kubeconfig: bytes,
        was_running: bool,
        now: datetime,
    ) -> Instance:
        """Take the next step of a machine's life, and tell where it is."""
        # A move loses what is known of a machine, and not its Node.
        node = await workload.find(Node, wanted.key.name)
        if node is None and not was_running:
            if now < wanted.boots_at:
                return Instance(running=False, message="starting", look_again_at=wanted.boots_at)
            if wanted.fault == "never boots":
                message = "it never boots, as spec.simulated.faults says"
                return Instance(running=False, message=message)
        await self.kwok.keep_alive(ObjectKey(wanted.key.namespace, wanted.cluster), kubeconfig)
        if node is None:
            if was_running:
                return Instance(running=True, lost=True, message="its Node was deleted")
            await _make_node(workload, node_of(wanted, now))
        alive, changes_at = is_alive(wanted, now)
        if node is not None and (KEPT_ALIVE in node.metadata.labels) != alive:
            await _keep_node(workload, wanted.key.name, alive=alive)
        return Instance(
            running=True, addresses=addresses(wanted.key.name), look_again_at=changes_at
        )

    async def remove(self, key: ObjectKey, workload: Client | None) -> None:
        """Remove a machine's Node."""
        if workload is not None:
            await workload.delete(Node, key.name)

    def clusters(self, namespace: str) -> Sequence[ObjectKey]:
        """The clusters in a namespace whose nodes are kept alive from here."""
        return self.kwok.clusters(namespace)

    async def forget(self, cluster: ObjectKey) -> None:
        """Stop the process that kept a cluster's nodes alive."""
        await self.kwok.stop(cluster)


def addresses(name: str) -> tuple[Address, ...]:
    """The addresses of a machine: made up, and always the same for a name."""
    digest = hashlib.sha256(name.encode()).digest()
    internal = IPv4Address(_FIRST_ADDRESS + int.from_bytes(digest[:4]) % _ADDRESSES)
    return (
        Address(type="Hostname", address=name),
        Address(type="InternalIP", address=str(internal)),
    )


def is_alive(wanted: WantedMachine, now: datetime) -> tuple[bool, datetime | None]:
    """Whether a machine's node is to be kept alive now, and when that changes."""
    if wanted.fault not in {"dies", "flaps"}:
        return True, None
    if now < wanted.fails_at:
        return True, wanted.fails_at
    if wanted.fault == "dies":
        return False, None
    turn, _ = divmod(now - wanted.fails_at, _FLAP)
    return turn % 2 == 1, wanted.fails_at + (turn + 1) * _FLAP


def node_of(wanted: WantedMachine, now: datetime) -> Unstructured:
    """The Node of a machine, ready at once.

    Whoever watches Nodes would have to look twice at one that became ready later, for nothing.
    """
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    capacity = {name: str(size) for name, size in wanted.simulated.capacity.items()}
    labels = {
        "kubernetes.io/hostname": wanted.key.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **wanted.simulated.labels,
        KEPT_ALIVE: "fake",
    }
    if wanted.failure_domain is not None:
        labels["topology.kubernetes.io/zone"] = wanted.failure_domain
    information = dict.fromkeys(
        ("bootID", "containerRuntimeVersion", "kernelVersion", "machineID", "systemUUID"), ""
    )
    spec: dict[str, Any] = {"providerID": wanted.provider_id}
    if wanted.simulated.taints:
        spec["taints"] = [taint.dump() for taint in wanted.simulated.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": wanted.key.name,
            "labels": labels,
            "annotations": wanted.node_annotations,
        },
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [address.dump() for address in addresses(wanted.key.name)],
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
                "architecture": labels["kubernetes.io/arch"],
                "kubeletVersion": wanted.version,
                "kubeProxyVersion": "",
                "operatingSystem": labels["kubernetes.io/os"],
                "osImage": "Capelin (simulated)",
            },
        },
    }


async def _make_node(workload: Client, manifest: Unstructured) -> None:
    """Make a Node such that it never exists without saying what it is."""
    try:
        # A Node's status is taken at its creation too, as kubelets do it.
        await workload.create(manifest, resource=Node.resource)
    except AlreadyExists:
        return


async def _keep_node(workload: Client, name: str, *, alive: bool) -> None:
    labels = {KEPT_ALIVE: "fake" if alive else None}
    try:
        if alive:
            # KWOK was seen to leave a Node unready whose lease it had let run out itself.
            await workload.delete(Lease, name, LEASES)
        await workload.patch(Node, name, None, {"metadata": {"labels": labels}})
    except NotFound:
        # Deleted just now: the next look finds it lost.
        return
