"""A Cluster API infrastructure provider whose machines exist on paper only: as Nodes."""

import sys

from capelin.api import Object, kind
from capelin.api.core import Node
from capelin.controller import After, Done, Result, main
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    MachineAddress,
    Provider,
)

GROUP, VERSION = "infrastructure.cluster.x-k8s.io", "v1alpha1"
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


@kind(group=GROUP, version=VERSION, definition=INFRA_CLUSTER)
class PaperCluster(Object[InfraClusterSpec, InfraClusterStatus]):
    """The infrastructure of a Cluster: there is nothing to make."""


@kind(group=GROUP, version=VERSION, definition=INFRA_MACHINE)
class PaperMachine(Object[InfraMachineSpec, InfraMachineStatus]):
    """A machine that is a Node and nothing else."""


class PaperClusters(InfraClusterReconciler[PaperCluster]):
    async def reconcile_normal(self, ctx: InfraClusterContext, cluster: PaperCluster) -> Result:
        ctx.set_provisioned()
        return Done()


class PaperMachines(InfraMachineReconciler[PaperMachine]):
    async def reconcile_normal(self, ctx: InfraMachineContext, machine: PaperMachine) -> Result:
        provider_id = f"paper:///{machine.namespace}/{machine.name}"
        common = {"reason": "OnPaper", "lastHeartbeatTime": f"{ctx.now():%Y-%m-%dT%H:%M:%SZ}"}
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


RECONCILERS = (PaperClusters, PaperMachines)


def provider() -> Provider:
    return Provider.of(
        "paper",
        "InfrastructureProvider",
        version="v0.1.0",
        module="paper",
        reconcilers=RECONCILERS,
    )


if __name__ == "__main__":
    sys.exit(main("capelin-paper", lambda _: [reconciler() for reconciler in RECONCILERS]))
