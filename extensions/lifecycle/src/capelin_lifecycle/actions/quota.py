"""Limits what the Clusters of a group have together.

A Cluster counts from when it was admitted. A reservation in the policy's status says so for as long
as the Cluster is there. It is written only if nobody has written the policy since it was read: of
two Clusters at once, one conflicts and counts again.

The hook itself reserves, on any replica, from the copies that the replica has, and so does the
reconciler. It lists all Clusters only for what these copies do not tell: with hundreds of them and
many policies, that would be all that it does.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.client import Client, Conflict

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, waiting
from capelin_lifecycle.actions.counting import VARIABLES, CountedCluster, counted, refusal
from capelin_lifecycle.api import (
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    Policy,
    Quota,
    Reservation,
)
from capelin_lifecycle.expressions import ExpressionError, compile_expression
from capelin_lifecycle.occurrence import cluster_occurrence
from capelin_lifecycle.selection import KnownPolicy, matches

_TRIES = 10
_CLUSTERS: Final = Cluster.resource
_MOST_RESERVATIONS: Final = 1000
"""As many as the status of a policy can have."""

Listing = Callable[[], Awaitable[Sequence[CountedCluster] | None]]
"""Lists the Clusters that a policy counts, if they are known."""


class QuotaRunner(Lasting):
    """The action `quota`."""

    def problems(self, policy: KnownPolicy) -> list[str]:
        """Expressions that cannot be compiled."""
        quota = policy.spec.action.quota
        problems: list[str] = []
        for limit in quota.limits if quota else ():
            if limit.expression is not None:
                try:
                    compile_expression(limit.expression, VARIABLES, boolean=False)
                except ExpressionError as error:
                    problems.append(f"expression of {limit.resource}: {error}")
        return problems

    async def reconcile(self, run: Run) -> Outcome:
        """Count, and reserve if the Cluster fits."""
        quota = run.policy.spec.action.quota
        if quota is None:
            return done()
        async with run.turn:
            for is_complete in (False, True):
                outcome = await reserve(
                    run.client,
                    run.policy,
                    quota,
                    run.cluster.uid,
                    lambda complete=is_complete: _clusters(run, quota, complete=complete),
                    is_complete=is_complete,
                )
                if outcome is not None:
                    return outcome
        return waiting("the quota is contended")


async def _clusters(run: Run, quota: Quota, *, complete: bool) -> Sequence[CountedCluster] | None:
    """The Clusters that count: all that there are, or those that the replica has copies of."""
    if not complete:
        return None if run.counted is None else run.counted(quota)
    return [
        counted(quota, cluster)
        async for cluster in run.client.iterate(_CLUSTERS, run.policy.namespace)
        if _is_counted(run, cluster)
    ]


def _is_counted(run: Run, cluster_json: Unstructured) -> bool:
    """Whether the policy is for a Cluster; its namespace's labels are those that we know."""
    occurrence = cluster_occurrence(run.policy.spec.hook, cluster_json)
    return matches(run.policy, occurrence, run.namespace_labels.get(occurrence.namespace))


async def reserve(
    client: Client,
    policy: KnownPolicy,
    quota: Quota,
    uid: str,
    listing: Listing,
    *,
    is_complete: bool,
) -> Outcome | None:
    """Reserve for a Cluster if it fits; nothing if that cannot be decided now.

    `is_complete` says that the listing has every Cluster that there is. Callers hold the turn
    of the policy in their replica: else most of them would conflict, and count again.
    """
    for _ in range(_TRIES):
        live_policy = await _read(client, policy)
        if (clusters := await listing()) is None:
            return None
        listed = {cluster.uid: cluster for cluster in clusters}
        status = live_policy.status
        reservations = status.reservations if status else []
        kept = [entry for entry in reservations if entry.uid in listed]
        if len(kept) < len(reservations) and not is_complete:
            # Another replica has admitted a Cluster that this one does not know yet.
            return None
        reserved = {entry.uid for entry in kept}
        candidate = listed.get(uid)
        if candidate is None or candidate.is_created or uid in reserved:
            return done("within the quota")
        if (problem := refusal(quota, candidate, clusters, reserved)) is not None:
            return waiting(problem)
        if len(kept) >= _MOST_RESERVATIONS:
            # A topology that exists is counted anyway. It is kept as long as there is room, for
            # replicas that do not know yet that it exists.
            kept = [entry for entry in kept if not listed[entry.uid].is_created]
        kept.append(Reservation(uid=uid, cluster=candidate.name))
        try:
            await client.patch(
                live_policy.resource,
                live_policy.name,
                live_policy.namespace,
                {
                    "metadata": {"resourceVersion": live_policy.metadata.resource_version},
                    "status": {"reservations": [entry.dump() for entry in kept]},
                },
                subresource="status",
            )
        except Conflict:
            continue
        return done("within the quota")
    return None


async def _read(client: Client, policy: KnownPolicy) -> Policy:
    kind = LifecyclePolicy if policy.kind == "LifecyclePolicy" else ClusterLifecyclePolicy
    return await client.get(kind, policy.name, policy.namespace)
