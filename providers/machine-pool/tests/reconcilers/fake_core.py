"""A management cluster on a real API server, with a few lines in place of Cluster API's core."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from capelin.api import OwnerReference, Unstructured
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import Secret
from capelin.client import Client, WorkloadClients
from capelin.contract import CLUSTER_NAME_LABEL, SECRET_TYPE, reference_to
from capelin.controller import Context, ObjectKey, Recorder
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool
from capelin_machine_pool.backends import Backend, InstanceStatus, Workload
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.reconcilers import MachinePoolReconciler, MachineReconciler

NAME = "demo"
OLD, NEW = "v1.33.13", "v1.34.4"
CORES_FINALIZER = "machine.cluster.x-k8s.io/core"


def context_for(client: Client) -> Context:
    """The argument of a reconcile."""
    recorder = Recorder(client, "test", "test", now=lambda: datetime.now(UTC))
    return Context(client, logging.getLogger(__name__), recorder)


@dataclass
class Cloud:
    """A backend whose instances outlive the provider: name and version of each."""

    instances: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def deletes_nodes(self) -> bool:
        return True

    async def allocate(self, instance: Instance, management: Client) -> str:
        assert management is not None
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, management: Client
    ) -> InstanceStatus:
        assert management is not None
        assert workload.client is not None
        exists = instance.key.name in self.instances
        return InstanceStatus(
            running=exists or instance.provisioned, lost=instance.provisioned and not exists
        )

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        del management
        assert workload.client is not None
        assert now.tzinfo is not None
        if observed.lost:
            return observed
        self.instances.setdefault(instance.key.name, instance.version)
        return InstanceStatus(running=True)

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        assert workload is not None
        assert management is not None
        assert now.tzinfo is not None
        self.instances.pop(machine.name, None)

    def health(self) -> str | None:
        return None

    def clusters(self, namespace: str) -> list[ObjectKey]:
        assert namespace
        return []

    async def release(self, cluster: ObjectKey) -> None:
        assert not self.instances, cluster


class SameClient:
    """The management cluster as its own workload cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @asynccontextmanager
    async def client(self, *_: str, **__: object) -> AsyncGenerator[Client]:
        yield self._client

    async def drop(self, *_: str) -> None:
        """The client is shared, so it stays open."""


class World:
    """A cluster and its pool, with steps of the provider and of core."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.cloud = Cloud()

    async def begin(
        self, rolling: dict[str, Any], replicas: int, pool_spec: dict[str, Any] | None = None
    ) -> None:
        """Create the objects of a user and of core that exist before any machine."""
        await self.client.create(
            {
                "apiVersion": Cluster.resource.api_version,
                "kind": "Cluster",
                "metadata": {"name": NAME, "namespace": self.namespace},
                "spec": {"controlPlaneEndpoint": {"host": "demo", "port": 6443}},
            },
            resource=Cluster.resource,
        )
        await self._status(
            Cluster,
            NAME,
            {
                "initialization": {
                    "infrastructureProvisioned": True,
                    "controlPlaneInitialized": True,
                }
            },
        )
        secret = Secret.of(f"{NAME}-kubeconfig", self.namespace, data={"value": b"of the cloud"})
        await self.client.create(secret.model_copy(update={"type": SECRET_TYPE}))
        reference = {
            "apiGroup": CapelinMachinePool.resource.group,
            "kind": "CapelinMachinePool",
            "name": NAME,
        }
        machine = {
            "clusterName": NAME,
            "version": OLD,
            "bootstrap": {"dataSecretName": "data"},
            "infrastructureRef": reference,
        }
        pool: Unstructured = {
            "apiVersion": MachinePool.resource.api_version,
            "kind": "MachinePool",
            "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {
                "clusterName": NAME,
                "replicas": replicas,
                "template": {"spec": machine},
            },
        }
        made = await self.client.create(pool, resource=MachinePool.resource)
        owner = OwnerReference(
            api_version=MachinePool.resource.api_version,
            kind="MachinePool",
            name=NAME,
            uid=made["metadata"]["uid"],
            controller=True,
        )
        await self.client.create(
            {
                "apiVersion": CapelinMachinePool.resource.api_version,
                "kind": "CapelinMachinePool",
                "metadata": {
                    "name": NAME,
                    "namespace": self.namespace,
                    "labels": {CLUSTER_NAME_LABEL: NAME},
                    "ownerReferences": [owner.dump()],
                },
                "spec": {"rollingUpdate": rolling, **(pool_spec or {})},
            },
            resource=CapelinMachinePool.resource,
        )

    async def settle(self, replicas: int, version: str) -> None:
        """Run the provider and core until the pool has its machines."""
        for _ in range(30):
            await self.provider_steps(self.client)
            await self.core_step()
            machines = await self.machines()
            names = {one.name for one in machines if one.metadata.deletion_timestamp is None}
            as_wanted = self.cloud.instances == dict.fromkeys(names, version)
            if as_wanted and len(names) == len(machines) == replicas:
                return
        raise AssertionError(f"it does not come to an end: {self.cloud.instances}")

    async def tell_of(self, machine: str, type_: str, status: str, reason: str) -> None:
        """Set a condition of a Machine like core."""
        condition = {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await self._status(Machine, machine, {"conditions": [condition]})

    async def change(self, spec: dict[str, Any]) -> None:
        """Patch the MachinePool like a user."""
        await self.client.patch(MachinePool, NAME, self.namespace, {"spec": spec})

    async def instances(self) -> list[CapelinMachine]:
        return (await self.client.list(CapelinMachine, self.namespace)).items

    async def machines(self) -> list[Machine]:
        return (await self.client.list(Machine, self.namespace)).items

    async def pool(self) -> CapelinMachinePool | None:
        return await self.client.find(CapelinMachinePool, NAME, self.namespace)

    async def provider_steps(self, client: Client) -> None:
        """Reconcile all objects once, with a provider that has just started."""
        at = context_for(client)
        if pool := await self.pool():
            await MachinePoolReconciler().reconcile(at, pool)
        backend: Backend = self.cloud
        machines = MachineReconciler({"Simulated": backend})
        machines._workloads = cast("WorkloadClients", SameClient(client))  # pyright: ignore[reportPrivateUsage] - made when first needed
        for machine in await self.instances():
            await machines.reconcile(at, machine)

    async def core_step(self) -> None:
        """Create and delete Machines like core."""
        machines = {machine.name: machine for machine in await self.machines()}
        instances = {instance.name: instance for instance in await self.instances()}
        for name, instance in instances.items():
            if name not in machines and instance.metadata.deletion_timestamp is None:
                await self._make(instance)
        for name, machine in machines.items():
            if machine.metadata.deletion_timestamp is None:
                await self._tell_of_node(machine)
            elif name in instances:
                await self.client.delete(CapelinMachine, name, self.namespace)
            else:
                await self.client.patch(
                    Machine, name, self.namespace, {"metadata": {"finalizers": None}}
                )

    async def _make(self, instance: CapelinMachine) -> None:
        reference = {
            "apiGroup": CapelinMachine.resource.group,
            "kind": "CapelinMachine",
            "name": instance.name,
        }
        made = await self.client.create(
            {
                "apiVersion": Machine.resource.api_version,
                "kind": "Machine",
                "metadata": {
                    "name": instance.name,
                    "namespace": self.namespace,
                    "labels": instance.metadata.labels,
                    "finalizers": [CORES_FINALIZER],
                },
                "spec": {
                    "clusterName": NAME,
                    "bootstrap": {"dataSecretName": ""},
                    "infrastructureRef": reference,
                },
            },
            resource=Machine.resource,
        )
        owner = reference_to(Machine.read(made), controller=True)
        owners = [one.dump() for one in (*instance.metadata.owner_references, owner)]
        await self.client.patch(
            CapelinMachine, instance.name, self.namespace, {"metadata": {"ownerReferences": owners}}
        )

    async def _tell_of_node(self, machine: Machine) -> None:
        ready = machine.name in self.cloud.instances
        status, reason = ("True", "NodeReady") if ready else ("False", "NodeDoesNotExist")
        await self.tell_of(machine.name, "NodeReady", status, reason)

    async def _status(self, kind: Any, name: str, status: dict[str, Any]) -> None:
        await self.client.patch(
            kind.resource, name, self.namespace, {"status": status}, subresource="status"
        )
