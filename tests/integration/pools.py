"""A cluster of Capelin's providers, object by object, and checks of it."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import Namespace, Node
from capelin.client import Client, WorkloadClients
from capelin.testing.waiting import until
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool

VERSION = TESTED_KUBERNETES[-1]
OLDER = TESTED_KUBERNETES[0]
POOL = "workers"


def reference(group: str, kind: str, name: str) -> dict[str, str]:
    """A reference in the form of Cluster API's kinds."""
    return {"apiGroup": f"{group}.cluster.x-k8s.io", "kind": kind, "name": name}


@dataclass(frozen=True)
class Whole:
    """A cluster and its pool, from both sides."""

    management: Client
    workload: Client
    namespace: str
    name: str

    async def pool(self) -> MachinePool:
        return await self.management.get(MachinePool, POOL, self.namespace)

    async def infrastructure(self) -> CapelinMachinePool:
        return await self.management.get(CapelinMachinePool, POOL, self.namespace)

    async def instances(self) -> list[CapelinMachine]:
        return (await self.management.list(CapelinMachine, self.namespace)).items

    async def machines(self) -> list[Machine]:
        return (await self.management.list(Machine, self.namespace)).items

    async def nodes(self) -> list[Node]:
        return (await self.workload.list(Node)).items

    async def scale(self, replicas: int) -> None:
        await self._change({"replicas": replicas})

    async def upgrade(self, version: str) -> None:
        await self._change({"template": {"spec": {"version": version}}})

    async def change_pool(self, spec: dict[str, Any]) -> None:
        """Change the infrastructure's part of the pool."""
        await self.management.patch(CapelinMachinePool, POOL, self.namespace, {"spec": spec})

    async def remove_pool(self) -> None:
        """Delete the pool and wait until all its objects are deleted."""
        await self.management.delete(MachinePool, POOL, self.namespace)

        async def gone() -> bool:
            pool = await self.management.find(MachinePool, POOL, self.namespace)
            left = [*await self.machines(), *await self.instances(), *await self.nodes()]
            return pool is None and not left

        await until(gone)

    async def _change(self, spec: dict[str, Any]) -> None:
        await self.management.patch(MachinePool, POOL, self.namespace, {"spec": spec})

    async def is_whole(self, replicas: int, version: str) -> bool:
        """Whether exactly the desired number of machines exists on every level."""
        pool, nodes = await self.pool(), await self.nodes()
        machines, instances = await self.machines(), await self.instances()
        infrastructure = await self.infrastructure()
        ids = sorted(node.spec.provider_id or "" for node in nodes)
        names = {one.name for one in instances}
        return (
            len(nodes) == len(names) == replicas
            and names == {one.name for one in machines} == {node.name for node in nodes}
            and all(map(is_ready, nodes))
            and all(condition(one, "Ready") == "True" for one in machines)
            and all(one.status.node_info.kubelet_version == version for one in nodes)
            and infrastructure.spec.provider_id_list == ids == pool.spec.provider_id_list
            and pool.status.replicas == pool.status.ready_replicas == replicas
            and len(pool.status.node_refs) == replicas
            and {one.provider_id for one in infrastructure.status.instances} == set(ids)
            if infrastructure.status
            else False
        )

    async def is_available(self) -> bool:
        """Whether core reports the cluster as available."""
        cluster = await self.management.get(Cluster, self.name, self.namespace)
        return condition(cluster, "Available") == "True"


def condition(obj: Any, type_: str) -> str | None:
    return next((one.status for one in obj.status.conditions if one.type == type_), None)


def is_ready(node: Node) -> bool:
    """Whether pods can run and be scheduled on a node."""
    return condition(node, "Ready") == "True" and not node.spec.unschedulable


def cluster_manifests(
    name: str,
    namespace: str,
    *,
    domains: tuple[str, ...] = (),
    addons: Mapping[str, Any] | None = None,
) -> list[Any]:
    """A cluster with a control plane of Capelin and no machines."""
    meta = {"name": name, "namespace": namespace}
    return [
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": meta,
            "spec": {
                "clusterNetwork": {
                    # Room for 4,096 Nodes, since a Node without a pod CIDR causes endless retries.
                    "pods": {"cidrBlocks": ["172.16.0.0/12"]},
                    "services": {"cidrBlocks": ["10.96.0.0/16"]},
                },
                "controlPlaneRef": reference("controlplane", "CapelinControlPlane", name),
                "infrastructureRef": reference("infrastructure", "CapelinCluster", name),
            },
        },
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinCluster",
            "metadata": meta,
            "spec": {"failureDomains": [{"name": one} for one in domains]},
        },
        {
            "apiVersion": "controlplane.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinControlPlane",
            "metadata": meta,
            "spec": {"version": VERSION, "backend": "Processes", "addons": addons or {}},
        },
    ]


def pool_manifests(
    cluster: str,
    namespace: str,
    *,
    replicas: int,
    version: str = VERSION,
    spec: dict[str, Any] | None = None,
) -> list[Unstructured]:
    """A pool of machines that boot at once."""
    meta = {"name": POOL, "namespace": namespace}
    node = {"name": "{{ ds.meta_data.local_hostname }}"}
    return [
        {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "KubeadmConfig",
            "metadata": meta,
            "spec": {"joinConfiguration": {"nodeRegistration": node}},
        },
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinMachinePool",
            "metadata": meta,
            "spec": {"simulated": {"startupSeconds": 0, "startupJitterSeconds": 0}, **(spec or {})},
        },
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachinePool",
            "metadata": meta,
            "spec": {
                "clusterName": cluster,
                "replicas": replicas,
                "template": {
                    "spec": {
                        "clusterName": cluster,
                        "version": version,
                        "bootstrap": {"configRef": reference("bootstrap", "KubeadmConfig", POOL)},
                        "infrastructureRef": reference(
                            "infrastructure", "CapelinMachinePool", POOL
                        ),
                    }
                },
            },
        },
    ]


@asynccontextmanager
async def whole_cluster(
    management: Client,
    name: str,
    *,
    domains: tuple[str, ...] = (),
    addons: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Whole]:
    """A cluster in its own namespace, which is removed afterwards."""
    await management.apply(Namespace.of(name))
    try:
        for manifest in cluster_manifests(name, name, domains=domains, addons=addons):
            await management.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(management, name, name, 120, progress.append)
        clients = WorkloadClients(management)
        async with clients.client(name, name) as workload:
            yield Whole(management, workload, name, name)
        await clients.close()
    finally:
        await management.delete(Cluster, name, name)

        async def gone() -> bool:
            return await management.find(Cluster, name, name) is None

        await until(gone)
        await management.delete(Namespace, name)
