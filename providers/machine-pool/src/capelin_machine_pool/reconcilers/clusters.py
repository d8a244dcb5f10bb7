"""Reconciles CapelinClusters: there is nothing to create, but core waits for their status."""

from typing import Any

from capelin.api.capi import Cluster
from capelin.controller import Done, For, Result
from capelin.provider import Blocked, InfraClusterContext, InfraClusterReconciler

from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.plan import cluster_waits_for


class ClusterReconciler(InfraClusterReconciler[CapelinCluster]):
    watches = (For(CapelinCluster, status_only=True),)

    def waiting_for(
        self, obj: CapelinCluster, cluster: Cluster | None, owner: Any
    ) -> Blocked | None:
        """An owner, and the endpoint of the control plane."""
        if missing := super().waiting_for(obj, cluster, owner):
            return missing
        return None if cluster is None else cluster_waits_for(obj, cluster)

    async def reconcile_normal(self, ctx: InfraClusterContext, obj: CapelinCluster) -> Result:
        ctx.set_provisioned(failure_domains=obj.spec.failure_domains)
        return Done()
