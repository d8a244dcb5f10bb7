"""What is around machines: there is nothing to make, and a status for core to go on."""

from collections.abc import Iterable

from capelin.api.views.capi import Cluster
from capelin.contract.clusters import cluster_of, named_by
from capelin.contract.metadata import is_managed_elsewhere
from capelin.contract.pausing import paused
from capelin.controller import Context, Done, For, ObjectKey, Reconciler, Result, Watches

from capelin_machine_pool.api import CapelinCluster, ClusterStatus
from capelin_machine_pool.status import cluster_status, deleting, said


def its_infrastructure(cluster: Cluster) -> Iterable[ObjectKey]:
    """The infrastructure that a Cluster's events concern."""
    name = named_by(cluster.spec.infrastructure_ref, CapelinCluster)
    return [] if name is None else [ObjectKey(cluster.namespace or "", name)]


class Clusters(Reconciler[CapelinCluster]):
    """Keeps the infrastructure around machines."""

    watches = (For(CapelinCluster), Watches(Cluster, to=its_infrastructure))

    async def reconcile(self, ctx: Context, infrastructure: CapelinCluster) -> Result:
        """Take one step."""
        cluster = await cluster_of(ctx.client, infrastructure)
        if cluster is None or is_managed_elsewhere(infrastructure):
            return Done()
        pause = paused(infrastructure, cluster)
        aspects = [pause]
        if infrastructure.metadata.deletion_timestamp is not None:
            holding = ", ".join(infrastructure.metadata.finalizers)
            aspects.append(deleting(f"nothing of it is left but others' finalizers: {holding}"))
        elif pause.status != "True":
            status = cluster_status(infrastructure, cluster, pause, ctx.now())
            await ctx.patch_status(infrastructure, status)
            return Done()
        before = infrastructure.status or ClusterStatus()
        changed = {"conditions": said(infrastructure, *aspects, now=ctx.now())}
        await ctx.patch_status(infrastructure, before.model_copy(update=changed))
        return Done()
