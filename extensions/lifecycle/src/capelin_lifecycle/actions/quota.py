"""Limits what the Clusters of a group have together.

A Cluster counts from when it was admitted. A reservation says so for as long as the Cluster is
there. It is written only if nobody has written the policy's reservations since they were read: of
two Clusters at once, one conflicts and counts again.

The hook itself reserves, on any replica, from the copies that the replica has, and so does the
reconciler. It lists all Clusters only for what these copies do not tell: with hundreds of them and
many policies, that would be all that it does.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, waiting
from capelin_lifecycle.actions.counting import VARIABLES, CountedCluster, counted, refusal
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api import MOST_RESERVATIONS, Quota
from capelin_lifecycle.policies.occurrence import cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, matches
from capelin_lifecycle.sandbox.expressions import expression_problems

_TRIES = 10
_CLUSTERS: Final = Cluster.resource
ADMITTED: Final = "within the quota"

Listing = Callable[[], Awaitable[Sequence[CountedCluster] | None]]
"""Lists the Clusters that a policy counts, if they are known."""


class QuotaRunner(Lasting):
    """The action `quota`."""

    def problems(self, policy: KnownPolicy) -> list[str]:
        """Expressions that cannot be compiled."""
        quota = policy.spec.action.quota
        expressions = [
            (f"expression of {limit.resource}", limit.expression, False)
            for limit in (quota.limits if quota else ())
            if limit.expression is not None
        ]
        return expression_problems(expressions, VARIABLES)

    async def reconcile(self, run: Run) -> Outcome:
        """Count, and reserve if the Cluster fits."""
        quota = run.policy.spec.action.quota
        if quota is None:
            return done()
        async with run.reservations.turn(run.policy):
            for is_gone in (run.is_gone, None):
                outcome = await reserve(
                    run.reservations,
                    run.policy,
                    quota,
                    run.cluster.uid,
                    partial(_clusters, run, quota, complete=is_gone is None),
                    is_gone=is_gone,
                )
                if outcome is not None:
                    return outcome
        return waiting("the quota is contended")


async def _clusters(run: Run, quota: Quota, *, complete: bool) -> Sequence[CountedCluster] | None:
    """The Clusters that count: all that there are, or those that the replica has copies of."""
    if not complete:
        return None if run.counted is None else await run.counted(quota)
    return [
        await counted(run.policy, quota, cluster)
        async for cluster in run.client.iterate(_CLUSTERS, run.policy.namespace)
        if _is_counted(run, cluster)
    ]


def _is_counted(run: Run, cluster_json: Unstructured) -> bool:
    """Whether the policy is for a Cluster; its namespace's labels are those that we know."""
    occurrence = cluster_occurrence(run.policy.spec.hook, cluster_json)
    return matches(run.policy, occurrence, run.namespace_labels.get(occurrence.namespace))


async def reserve(
    reservations: Reservations,
    policy: KnownPolicy,
    quota: Quota,
    uid: str,
    listing: Listing,
    *,
    is_gone: Callable[[str], bool] | None = None,
) -> Outcome | None:
    """Reserve for a Cluster if it fits; nothing if that cannot be decided now.

    `is_gone` says which of the Clusters that are not listed are gone; all, if it is not given.
    Callers hold the turn of the policy in their replica: else most of them would conflict, and
    count again.
    """
    for _ in range(_TRIES):
        before = await reservations.read(policy)
        if (clusters := await listing()) is None:
            return None
        listed = {cluster.uid: cluster for cluster in clusters}
        reserved = before.clusters & listed.keys()
        if is_gone is not None and not all(map(is_gone, before.clusters - reserved)):
            # Another replica has admitted a Cluster that this one does not know yet.
            return None
        candidate = listed.get(uid)
        if candidate is None or candidate.is_created or uid in reserved:
            return done(ADMITTED)
        if (problem := refusal(quota, candidate, clusters, reserved)) is not None:
            return waiting(problem)
        if len(reserved) >= MOST_RESERVATIONS:
            # A topology that exists is counted anyway. It is kept as long as there is room, for
            # replicas that do not know yet that it exists.
            reserved = {entry for entry in reserved if not listed[entry].is_created}
        if await reservations.write(policy, before, sorted([*reserved, uid])):
            return done(ADMITTED)
    return None
