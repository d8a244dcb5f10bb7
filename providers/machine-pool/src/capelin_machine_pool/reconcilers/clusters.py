"""Reconciles CapelinClusters: there is nothing to create, but core waits for their status."""

from datetime import datetime, timedelta
from typing import Any, Final

from capelin.api.capi import Cluster, Machine
from capelin.contract import (
    ASLEEP,
    CLUSTER_NAME_LABEL,
    READY,
    ConditionSpec,
    find_condition,
    is_asleep,
    is_condition_true,
)
from capelin.controller import After, Done, For, Permission, Result
from capelin.provider import Blocked, Change, InfraClusterContext, InfraClusterReconciler

from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.plan import SOON, cluster_waits_for
from capelin_machine_pool.reasons import Reason

_LONGEST_HOLD: Final = timedelta(minutes=5)
"""How long a cluster that has woken waits for its Nodes. Then MachineHealthChecks act again."""


class ClusterReconciler(InfraClusterReconciler[CapelinCluster]):
    watches = (For(CapelinCluster, status_only=True),)
    permissions = (Permission("cluster.x-k8s.io", ("machines",), ("list",)),)

    def waiting_for(
        self, obj: CapelinCluster, cluster: Cluster | None, owner: Any
    ) -> Blocked | None:
        """An owner, and the endpoint of the control plane."""
        if missing := super().waiting_for(obj, cluster, owner):
            return missing
        return None if cluster is None else cluster_waits_for(obj, cluster)

    def is_reported(self, obj: CapelinCluster, change: Change) -> bool:  # noqa: ARG002
        """A sleep is not a failure. The control plane reports it."""
        return change.reason != ASLEEP

    async def reconcile_normal(self, ctx: InfraClusterContext, obj: CapelinCluster) -> Result:
        """Report the infrastructure, which is not ready while the control plane sleeps.

        MachineHealthChecks remediate no Machine of a cluster whose infrastructure is not ready.
        """
        conditions = obj.status.conditions if obj.status else []
        before = find_condition(conditions, READY)
        ctx.set_provisioned(failure_domains=obj.spec.failure_domains)
        if is_asleep(ctx.cluster):
            message = "the control plane sleeps, and MachineHealthChecks remediate no machine"
            ctx.set_conditions(ConditionSpec(READY, "False", Reason.ASLEEP, message))
            return Done()
        if before is None or before.reason not in {ASLEEP, Reason.WAITING_FOR_NODES}:
            return Done()
        labels = {CLUSTER_NAME_LABEL: ctx.cluster.name}
        machines = ctx.client.iterate(Machine, obj.namespace, labels=labels)
        unread = sum([not is_read(machine) async for machine in machines])
        if not is_held(ctx.cluster, unread, ctx.now()):
            return Done()
        message = "the control plane has woken, and Cluster API reads its Nodes again"
        ctx.set_conditions(ConditionSpec(READY, "False", Reason.WAITING_FOR_NODES, message))
        return After(SOON)


def is_read(machine: Machine) -> bool:
    """Whether core has read that the Node of a Machine is ready, if it has one."""
    has_node = machine.status.node_ref is not None
    return not has_node or is_condition_true(machine.status.conditions, "NodeReady")


def is_held(cluster: Cluster, unread: int, now: datetime) -> bool:
    """Whether MachineHealthChecks still wait after a sleep.

    Args:
        cluster: The Cluster.
        unread: How many of its Machines have Nodes that core has not read as ready.
        now: The present.
    """
    available = find_condition(cluster.status.conditions, "ControlPlaneAvailable")
    if available is None or available.status != "True":
        return True
    return unread > 0 and now - available.last_transition_time < _LONGEST_HOLD
