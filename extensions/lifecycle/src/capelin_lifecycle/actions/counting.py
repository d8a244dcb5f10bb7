"""Counts what Clusters have of what a quota limits, and whether one more fits. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal

from capelin.api import Unstructured, amount
from capelin.api.capi import Cluster

from capelin_lifecycle.api import Quota, QuotaLimit
from capelin_lifecycle.expressions import as_amount, compile_expression

VARIABLES = ("object",)


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
    reserved: AbstractSet[str],
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
