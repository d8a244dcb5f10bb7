"""Machines that exist only as Node objects, kept alive by one KWOK process a workload cluster."""

import asyncio
import hashlib
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.views.core import Node
from capelin.client import AlreadyExists, Client, NotFound
from capelin.controller import Key
from capelin.embedded.addresses import address_of, free_port
from capelin.embedded.binaries import Binaries
from capelin.embedded.processes import (
    Command,
    Declared,
    Process,
    Supervisor,
    listening,
    private_folder,
    write_private,
)

from capelin_machine_pool.api import Address
from capelin_machine_pool.backends import Instance
from capelin_machine_pool.desired import WantedMachine

KEPT_ALIVE = "kwok.x-k8s.io/node"
_KWOK = "kwok"
_LEASE_SECONDS = 40
_FLAP = timedelta(seconds=90)
"""How long a flapping node is silent, and then alive: longer than core and Kubernetes wait."""
_FIRST_ADDRESS = int(IPv4Address("10.128.0.0"))
_ADDRESSES = 2**22


@dataclass(slots=True, eq=False)
class _Kwok:
    """The process that keeps the nodes of a workload cluster alive."""

    folder: Path
    kubeconfig: str
    stack: AsyncExitStack


class SimulatedMachines:
    """Machines that exist only as Node objects."""

    def __init__(self, state: Path, binaries: Binaries) -> None:
        self._state = state
        self._binaries = binaries
        self._kwoks: dict[Key, _Kwok] = {}
        self._one_at_a_time = asyncio.Lock()

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
        if not was_running and now < wanted.boots_at:
            return Instance(running=False, message="starting", look_again_at=wanted.boots_at)
        if not was_running and wanted.fault == "never boots":
            return Instance(running=False, message="it never boots, as spec.simulated.faults says")
        async with self._one_at_a_time:
            await self._keep_alive(Key(wanted.key.namespace, wanted.cluster), kubeconfig)
        node = await workload.find(Node, wanted.key.name)
        if node is None:
            if was_running:
                return Instance(running=True, lost=True, message="its Node was deleted")
            await _make_node(workload, wanted)
        alive, changes_at = is_alive(wanted, now)
        if node is not None and (KEPT_ALIVE in node.metadata.annotations) != alive:
            await _keep_node(workload, wanted.key.name, alive=alive)
        return Instance(
            running=True, addresses=addresses(wanted.key.name), look_again_at=changes_at
        )

    async def remove(self, key: Key, workload: Client | None) -> None:
        """Remove a machine's Node."""
        if workload is not None:
            await workload.delete(Node, key.name)

    async def forget(self, cluster: Key) -> None:
        """Stop the process that kept a cluster's nodes alive."""
        async with self._one_at_a_time:
            folder = self._folder(cluster)
            kwok = self._kwoks.pop(cluster, None)
            if kwok is not None:
                await kwok.stack.aclose()
            if folder.exists():
                async with Supervisor(_processes(folder)) as supervisor:
                    await supervisor.stop()
                shutil.rmtree(folder)

    async def _keep_alive(self, cluster: Key, kubeconfig: bytes) -> None:
        digest = hashlib.sha256(kubeconfig).hexdigest()
        kwok = self._kwoks.get(cluster)
        if kwok is not None and kwok.kubeconfig == digest:
            return
        program = await self._binaries.path("kwok")
        folder = private_folder(self._folder(cluster))
        write_private(folder / "kubeconfig", kubeconfig)
        if kwok is not None:
            await kwok.stack.aclose()
        address = address_of(f"kwok/{cluster}")
        port = _port(folder, address)
        stack = AsyncExitStack()
        self._kwoks[cluster] = _Kwok(folder, digest, stack)
        supervisor = await stack.enter_async_context(Supervisor(_processes(folder)))
        supervisor.declare(
            Declared(
                name=_KWOK,
                command=Command(
                    (
                        str(program),
                        f"--kubeconfig={folder / 'kubeconfig'}",
                        f"--manage-nodes-with-annotation-selector={KEPT_ALIVE}=fake",
                        f"--node-lease-duration-seconds={_LEASE_SECONDS}",
                        f"--server-address={address}:{port}",
                    ),
                    # Read once at its start: another kubeconfig makes it another command.
                    {"CAPELIN_KUBECONFIG_SHA256": digest, "HOME": str(folder)},
                ),
                ready=partial(listening, address, port),
            )
        )

    def _folder(self, cluster: Key) -> Path:
        return self._state / cluster.namespace / cluster.name


def _processes(folder: Path) -> Path:
    return folder / "run"


def _port(folder: Path, address: str) -> int:
    """Where the process listens; with another port it would be another process."""
    file = folder / "port"
    if Process.adopt(_processes(folder), _KWOK) is not None:
        return int(file.read_bytes())
    port = free_port(address)
    write_private(file, str(port).encode())
    return port


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


def node_of(wanted: WantedMachine) -> Unstructured:
    """The Node of a machine, with the status that KWOK goes on from."""
    capacity = {name: str(size) for name, size in wanted.simulated.capacity.items()}
    labels = {
        "kubernetes.io/hostname": wanted.key.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **wanted.simulated.labels,
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
            "annotations": {KEPT_ALIVE: "fake"},
        },
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [address.dump() for address in addresses(wanted.key.name)],
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


async def _make_node(workload: Client, wanted: WantedMachine) -> None:
    """Make a Node such that it never exists without saying what it is."""
    manifest = node_of(wanted)
    try:
        # A Node's status is taken at its creation too, as kubelets do it.
        await workload.create(manifest, resource=Node.resource)
    except AlreadyExists:
        return


async def _keep_node(workload: Client, name: str, *, alive: bool) -> None:
    annotations = {KEPT_ALIVE: "fake" if alive else None}
    try:
        await workload.patch(Node, name, None, {"metadata": {"annotations": annotations}})
    except NotFound:
        # Deleted just now: the next look finds it lost.
        return
