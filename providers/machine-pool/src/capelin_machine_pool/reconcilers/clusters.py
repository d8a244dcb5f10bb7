"""Reconciles CapelinClusters: there is nothing to create, but core waits for their status."""

from collections.abc import Iterable

from capelin.api.views.capi import Cluster
from capelin.contract.clusters import cluster_of, named_by
from capelin.contract.metadata import is_managed_elsewhere
from capelin.contract.pausing import paused
from capelin.controller import Context, Done, For, ObjectKey, Reconciler, Result, Watches

from capelin_machine_pool.api import CapelinCluster, ClusterStatus
from capelin_machine_pool.status import cluster_status, deleting, merge_conditions


def infrastructure_of(cluster: Cluster) -> Iterable[ObjectKey]:
    """The CapelinCluster of a Cluster."""
    name = named_by(cluster.spec.infrastructure_ref, CapelinCluster)
    return [] if name is None else [ObjectKey(cluster.namespace or "", name)]


class ClusterReconciler(Reconciler[CapelinCluster]):
    """Reconciles CapelinClusters."""

    watches = (For(CapelinCluster), Watches(Cluster, to=infrastructure_of))

    async def reconcile(self, ctx: Context, infrastructure: CapelinCluster) -> Result:
        cluster = await cluster_of(ctx.client, infrastructure)
        if cluster is None or is_managed_elsewhere(infrastructure):
            return Done()
        pause = paused(infrastructure, cluster)
        changed = [pause]
        if infrastructure.metadata.deletion_timestamp is not None:
            finalizers = ", ".join(infrastructure.metadata.finalizers)
            changed.append(deleting(f"waiting for the finalizers of others: {finalizers}"))
        elif pause.status != "True":
            status = cluster_status(infrastructure, cluster, pause, ctx.now())
            await ctx.patch_status(infrastructure, status)
            return Done()
        conditions = merge_conditions(infrastructure, *changed, now=ctx.now())
        status = infrastructure.status or ClusterStatus()
        await ctx.patch_status(infrastructure, status.model_copy(update={"conditions": conditions}))
        return Done()
