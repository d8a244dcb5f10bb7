"""The protocol between the reconcilers and the backends. Each backend is one module."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from capelin.api.core import Node
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.provider import Blocked, MachineAddress

from capelin_machine_pool.api import CapelinMachine, Taint
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.reasons import Reason


class Workload:
    """Access to a workload cluster, for this provider and for the processes that it starts.

    Args:
        client: None before the first machine of the control plane has started the API server.
        kubeconfig: From the Secret, and not trusted: parse and rewrite it before handing it on.
    """

    def __init__(self, *, client: Client | None, kubeconfig: bytes) -> None:
        self._client = client
        self.kubeconfig = kubeconfig

    @property
    def client(self) -> Client:
        """A client of the API server.

        Raises:
            Blocked: No machine has started it yet.
        """
        if self._client is None:
            message = "the cluster has no API server yet"
            raise Blocked(Reason.WAITING_FOR_CONTROL_PLANE, message)
        return self._client

    async def find_node(self, name: str) -> Node | None:
        """A Node by name. Without an API server, no Node exists."""
        return None if self._client is None else await self._client.find(Node, name)

    async def set_provider_id(
        self, node: str, provider_id: str, taints: Sequence[Taint] = ()
    ) -> None:
        """Give a Node the provider ID that its bootstrap data do not set, and taints.

        Both are one write: core lets pods run on the Node when it has found the provider ID.

        Raises:
            Conflict: The Node has changed.
        """
        spec: dict[str, Any] = {"providerID": provider_id}
        metadata: dict[str, Any] = {}
        if taints:
            live = await self.client.get(Node, node)
            own = {(taint.key, taint.effect) for taint in taints}
            others = [each for each in live.spec.taints if (each.key, each.effect) not in own]
            spec["taints"] = [each.dump() for each in (*others, *taints)]
            metadata["resourceVersion"] = live.metadata.resource_version
        await self.client.patch(Node, node, None, {"metadata": metadata, "spec": spec})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """Observed state of a machine's instance."""

    running: bool
    """Whether it has, or has had, a Node."""
    lost: bool = False
    """Whether it had a Node and the Node was deleted."""
    failed: bool = False
    """Whether it ended after it joined. Its Node still exists."""
    updating: bool = False
    """Whether it is being updated in place, or the update has failed."""
    heartbeats: bool = True
    """Whether the backend keeps its Node ready."""
    reason: Reason = Reason.STARTING
    """The reason why it waits or has failed."""
    message: str = ""
    """The reason why it waits, or its problem."""
    node: str | None = None
    """Name of a Node that has no provider ID yet."""
    addresses: tuple[MachineAddress, ...] = ()
    changes_at: datetime | None = None
    """When something about it is due without an event."""


class Backend(Protocol):
    """Provides machines. Each method can run again after a failure or an interruption."""

    @property
    def deletes_nodes(self) -> bool:
        """Whether `delete` uses the workload cluster, and nothing of the management cluster.

        Otherwise core deletes the Node.
        """
        ...

    async def allocate(self, instance: Instance, management: Client) -> str:
        """Reserve what an instance needs and return its provider ID, the same one every time."""
        ...

    async def observe(
        self, instance: Instance, workload: Workload, management: Client
    ) -> InstanceStatus: ...

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        """Change an instance towards its desired state, and return its state afterwards."""
        ...

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        """Delete the instance of a machine. `workload` is None if its Cluster no longer exists.

        Raises:
            Blocked: The deletion takes longer.
        """
        ...

    def health(self) -> str | None:
        """The problem of the backend's processes on this machine, if any."""
        ...

    def clusters(self, namespace: str) -> Sequence[ObjectKey]:
        """The clusters in a namespace for which `release` has something to do."""
        ...

    async def release(self, cluster: ObjectKey) -> None:
        """Free what the machines of a cluster share, when the last of them goes."""
        ...


class NothingShared:
    """The part of a backend whose machines share nothing, and need no process of the provider."""

    def health(self) -> str | None:
        """No process belongs to the backend."""
        return None

    def clusters(self, namespace: str) -> Sequence[ObjectKey]:
        """Machines share nothing."""
        del namespace
        return []

    async def release(self, cluster: ObjectKey) -> None:
        """Nothing is shared."""


def node_taken(node: Node) -> Blocked:
    """The problem of a machine whose Node has the provider ID of another one."""
    message = f"the cluster has a Node {node.name} that has another provider ID"
    return Blocked(Reason.NODE_NAME_TAKEN, message, "delete that Node, or this machine")
