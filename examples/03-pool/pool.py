"""A Cluster API infrastructure provider with MachinePools: each machine of a pool is a Node."""

import sys

from capelin.api import Object, kind
from capelin.api.core import Node
from capelin.controller import After, Done, Owns, Result, main
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    POOL_MACHINES,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachineContext,
    InfraMachinePoolContext,
    InfraMachinePoolReconciler,
    InfraMachinePoolSpec,
    InfraMachinePoolStatus,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    MachineAddress,
    Provider,
    delete_pool,
    scale_pool,
)

GROUP, VERSION = "infrastructure.cluster.x-k8s.io", "v1alpha1"
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


@kind(group=GROUP, version=VERSION, definition=INFRA_CLUSTER)
class SketchCluster(Object[InfraClusterSpec, InfraClusterStatus]):
    """The infrastructure of a Cluster: there is nothing to make."""


@kind(group=GROUP, version=VERSION, definition=INFRA_MACHINE)
class SketchMachine(Object[InfraMachineSpec, InfraMachineStatus]):
    """A machine that is a Node and nothing else."""


@kind(group=GROUP, version=VERSION, definition=INFRA_CLUSTER)
class SketchMachinePool(Object[InfraMachinePoolSpec, InfraMachinePoolStatus]):
    """A pool of SketchMachines."""


class SketchClusters(InfraClusterReconciler[SketchCluster]):
    async def reconcile_normal(self, ctx: InfraClusterContext, cluster: SketchCluster) -> Result:
        ctx.set_provisioned()
        return Done()


class SketchMachines(InfraMachineReconciler[SketchMachine]):
    async def reconcile_normal(self, ctx: InfraMachineContext, machine: SketchMachine) -> Result:
        provider_id = f"sketch:///{machine.namespace}/{machine.name}"
        common = {"reason": "Sketched", "lastHeartbeatTime": f"{ctx.now():%Y-%m-%dT%H:%M:%SZ}"}
        healthy = {"Ready": "True", **dict.fromkeys(PRESSURES, "False")}
        conditions = [{"type": key, "status": value, **common} for key, value in healthy.items()]
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine.name}}
        async with ctx.workload() as workload:
            await workload.apply(
                {**node, "spec": {"providerID": provider_id}}, resource=Node.resource
            )
            status = {**node, "status": {"conditions": conditions}}
            await workload.apply_status(status, resource=Node.resource)
        address = MachineAddress(type="Hostname", address=machine.name)
        ctx.set_provisioned(provider_id, addresses=[address])
        return After(20)  # Kubernetes takes a Node for lost that is silent for 40 s.


class SketchPools(InfraMachinePoolReconciler[SketchMachinePool]):
    watches = (Owns(SketchMachine, deletes=True),)
    permissions = (POOL_MACHINES,)

    async def reconcile_normal(
        self, ctx: InfraMachinePoolContext, pool: SketchMachinePool
    ) -> Result:
        return await scale_pool(ctx, pool, SketchMachine)

    async def reconcile_delete(
        self, ctx: InfraMachinePoolContext, pool: SketchMachinePool
    ) -> Result:
        return await delete_pool(ctx, pool, SketchMachine)


RECONCILERS = (SketchClusters, SketchMachines, SketchPools)


def provider() -> Provider:
    return Provider.of(
        "sketch",
        "InfrastructureProvider",
        version="v0.1.0",
        module="pool",
        reconcilers=RECONCILERS,
    )


if __name__ == "__main__":
    sys.exit(main("capelin-sketch", lambda _: [reconciler() for reconciler in RECONCILERS]))
