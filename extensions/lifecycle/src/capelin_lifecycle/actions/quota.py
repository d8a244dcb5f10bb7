"""Limits what the Clusters of a group have together.

A Cluster counts from when it was admitted. A reservation in the policy's status says so for as long
as the Cluster is there. It is written only if nobody has written the policy since it was read: of
two Clusters at once, one conflicts and counts again.

The hook itself reserves, on any replica, from the copies that the replica has. It leaves to the
reconciler, which lists all Clusters, what these copies do not tell.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from capelin.api import Unstructured, amount
from capelin.api.capi import Cluster
from capelin.client import Client, Conflict

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, waiting
from capelin_lifecycle.api import (
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    Policy,
    Quota,
    QuotaLimit,
    Reservation,
)
from capelin_lifecycle.expressions import ExpressionError, as_amount, compile_expression
from capelin_lifecycle.occurrence import cluster_occurrence
from capelin_lifecycle.selection import KnownPolicy, matches

VARIABLES = ("object",)
_TRIES = 10
_MOST_RESERVATIONS: Final = 1000
"""As many as the status of a policy can have."""

Listing = Callable[[], Awaitable[Sequence["CountedCluster"]]]
"""Lists the Clusters that a policy counts."""


@dataclass(frozen=True, slots=True)
class CountedCluster:
    """A Cluster as a quota sees it."""

    uid: str
    name: str
    group: str
    is_created: bool
    """Whether its topology exists."""
    amounts: Mapping[str, Decimal]


def refusal(
    quota: Quota,
    candidate: CountedCluster,
    others: Sequence[CountedCluster],
    reserved: set[str],
) -> str | None:
    """Why a Cluster does not fit beside the admitted ones; `None` if it does."""
    used: defaultdict[str, Decimal] = defaultdict(Decimal)
    for cluster in others:
        is_admitted = cluster.is_created or cluster.uid in reserved
        if cluster.uid != candidate.uid and cluster.group == candidate.group and is_admitted:
            for resource, value in cluster.amounts.items():
                used[resource] += value
    problems: list[str] = []
    for limit in quota.limits:
        wanted, most = candidate.amounts[limit.resource], amount(limit.limit)
        if used[limit.resource] + wanted > most:
            problems.append(
                f"{_shown(wanted)} {limit.resource} wanted,"
                f" {_shown(used[limit.resource])} of {limit.limit} in use"
            )
    if not problems:
        return None
    group = f" of {candidate.group}" if candidate.group else ""
    return f"the quota{group} is exhausted: {', '.join(problems)}"


def counted(quota: Quota, cluster_json: Unstructured) -> CountedCluster:
    """A Cluster with its group and what it has of everything that is limited.

    Raises:
        ExpressionError: an expression has no value for it.
    """
    cluster = Cluster.read(cluster_json)
    return CountedCluster(
        uid=cluster.uid,
        name=f"{cluster.namespace}/{cluster.name}",
        group=_group(quota, cluster),
        is_created=bool(cluster.spec.infrastructure_ref or cluster.spec.control_plane_ref),
        amounts={limit.resource: _amount(limit, cluster, cluster_json) for limit in quota.limits},
    )


def _group(quota: Quota, cluster: Cluster) -> str:
    match quota.group_by:
        case "Namespace":
            return f"namespace {cluster.namespace}"
        case "Label":
            return f"{quota.label}={cluster.metadata.labels.get(quota.label or '', '')}"
        case "Class":
            topology = cluster.spec.topology
            return f"class {(topology.class_ref.name if topology else None) or ''}"
        case "All":
            return ""


def _amount(limit: QuotaLimit, cluster: Cluster, cluster_json: Unstructured) -> Decimal:
    if limit.expression is not None:
        expression = compile_expression(limit.expression, VARIABLES, boolean=False)
        return as_amount(expression.evaluate({"object": cluster_json}))
    return Decimal(1) if limit.resource == "clusters" else Decimal(node_count(cluster))


def node_count(cluster: Cluster) -> int:
    """How many nodes a Cluster's topology asks for; a part without replicas counts as one."""
    topology = cluster.spec.topology
    if topology is None:
        return 0
    workers = [*topology.workers.machine_deployments, *topology.workers.machine_pools]
    replicas = [topology.control_plane.replicas, *(worker.replicas for worker in workers)]
    return sum(1 if count is None else count for count in replicas)


def _shown(value: Decimal) -> str:
    return f"{value.normalize():f}"


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
        outcome = await reserve(
            run.client,
            run.policy,
            quota,
            run.cluster.uid,
            lambda: self._others(run, quota),
            is_complete=True,
        )
        return outcome or waiting("the quota is contended")

    async def _others(self, run: Run, quota: Quota) -> list[CountedCluster]:
        return [
            counted(quota, cluster)
            async for cluster in run.client.iterate(_CLUSTERS, run.policy.namespace)
            if _is_counted(run, cluster)
        ]


_CLUSTERS = Cluster.resource


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

    `is_complete` says that the listing has every Cluster that there is.
    """
    for _ in range(_TRIES):
        live_policy = await _read(client, policy)
        clusters = await listing()
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
