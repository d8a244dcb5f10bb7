"""Limits the resources that Clusters of a group have together: counts and admits Clusters.

A Cluster counts from its admission on. Its reservation stays for as long as the Cluster exists.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from capelin.api import Unstructured, amount
from capelin.api.capi import Cluster
from capelin.client import Client

from capelin_lifecycle.api.actions import Quota
from capelin_lifecycle.api.results import MOST_RESERVATIONS
from capelin_lifecycle.policies.clusters import KnownCluster, cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, matches, needs_namespace
from capelin_lifecycle.policies.verdict import Verdict, done, waiting
from capelin_lifecycle.sandbox.expressions import ExpressionError, as_amount
from capelin_lifecycle.sandbox.pool import SANDBOX, Question

VARIABLES: Final = ("object",)
ADMITTED: Final = "within the quota"
_TURN_SECONDS: Final = 0.005


def quota_expressions(policy: KnownPolicy) -> dict[str, Question]:
    quota = policy.spec.action.quota
    questions = _questions(quota) if quota else {}
    return {f"expression of {resource}": question for resource, question in questions.items()}


def _questions(quota: Quota) -> dict[str, Question]:
    texts = {limit.resource: limit.expression for limit in quota.limits}
    return {name: Question(text, VARIABLES) for name, text in texts.items() if text is not None}


@dataclass(frozen=True, slots=True)
class CountedCluster:
    """A Cluster as a quota counts it."""

    uid: str
    name: str
    group: str | None
    """None if the Cluster lacks the label that makes groups."""
    is_created: bool
    """Whether its topology exists."""
    amounts: Mapping[str, Decimal | ExpressionError]
    """How much it has of each resource, or why that has no value."""


@dataclass(frozen=True, slots=True)
class Census:
    """The Clusters that a quota counts, and those that it has admitted."""

    clusters: Sequence[CountedCluster]
    reserved: AbstractSet[str]
    """Uids of the admitted Clusters."""
    is_gone: Callable[[str], bool]
    """Whether a Cluster that is not among them no longer exists."""


def quota_verdict(quota: Quota, uid: str, census: Census) -> Verdict | None:
    """Whether a Cluster fits. `None` if another replica has admitted one that is unknown here."""
    listed = {cluster.uid: cluster for cluster in census.clusters}
    reserved = census.reserved & listed.keys()
    if not all(map(census.is_gone, census.reserved - reserved)):
        return None
    candidate = listed.get(uid)
    if candidate is None or candidate.is_created or uid in reserved:
        return done(ADMITTED)
    if (problem := refusal(quota, candidate, census.clusters, reserved)) is not None:
        return waiting(problem)
    if len(reserved) >= MOST_RESERVATIONS:
        # Existing topologies count anyway. Their reservations stay while there is room, for
        # replicas that have not observed the topologies yet.
        reserved = {entry for entry in reserved if not listed[entry].is_created}
    return Verdict("Done", ADMITTED, reserve=sorted([*reserved, uid]))


def refusal(
    quota: Quota,
    candidate: CountedCluster,
    others: Sequence[CountedCluster],
    reserved: AbstractSet[str],
) -> str | None:
    """Why a Cluster does not fit in with the admitted ones. `None` if it does."""
    if candidate.group is None:
        return (
            f"the quota counts by the label {quota.label}, which the Cluster lacks: set the label,"
            " or leave out Clusters without it by the policy's clusterSelector"
        )
    admitted = [
        cluster
        for cluster in others
        if cluster.uid != candidate.uid
        and cluster.group == candidate.group
        and (cluster.is_created or cluster.uid in reserved)
    ]
    unknown, exceeded = _uncounted([candidate, *admitted]), _exceeded(quota, candidate, admitted)
    if not unknown and not exceeded:
        return None
    group = f" of {candidate.group}" if candidate.group else ""
    problems = [f"the quota{group} is exhausted: {', '.join(exceeded)}"] if exceeded else []
    return "; ".join([*problems, *unknown])


def _exceeded(
    quota: Quota, candidate: CountedCluster, admitted: Sequence[CountedCluster]
) -> list[str]:
    """Every limit that the Cluster and the admitted ones exceed together."""
    used: defaultdict[str, Decimal] = defaultdict(Decimal)
    for cluster in admitted:
        for resource, value in cluster.amounts.items():
            if isinstance(value, Decimal):
                used[resource] += value
    exceeded: list[str] = []
    for limit in quota.limits:
        wanted, most = candidate.amounts[limit.resource], amount(limit.limit)
        if isinstance(wanted, Decimal) and used[limit.resource] + wanted > most:
            exceeded.append(
                f"{_shown(wanted)} {limit.resource} requested,"
                f" {_shown(used[limit.resource])} of {limit.limit} in use"
            )
    return exceeded


def _uncounted(clusters: Sequence[CountedCluster]) -> list[str]:
    """For each resource the first Cluster for which its expression has no value."""
    problems: dict[str, str] = {}
    for cluster in clusters:
        for resource, value in cluster.amounts.items():
            if isinstance(value, ExpressionError):
                text = f"the expression of {resource} has no value for {cluster.name}: {value}"
                problems.setdefault(resource, text)
    return list(problems.values())


async def counted(policy: KnownPolicy, quota: Quota, cluster_json: Unstructured) -> CountedCluster:
    """A Cluster with its group and its amounts of the limited resources."""
    cluster = Cluster.read(cluster_json)
    questions = _questions(quota)
    owner = policy.owner(cluster.namespace or "")
    values = await SANDBOX.evaluate(owner, list(questions.values()), {"object": cluster_json})
    amounts: dict[str, Decimal | ExpressionError] = {
        "clusters": Decimal(1),
        "nodes": Decimal(node_count(cluster)),
        **{resource: _amount(value) for resource, value in zip(questions, values, strict=True)},
    }
    return CountedCluster(
        uid=cluster.uid,
        name=f"{cluster.namespace}/{cluster.name}",
        group=_group(quota, cluster),
        is_created=bool(cluster.spec.infrastructure_ref or cluster.spec.control_plane_ref),
        amounts={limit.resource: amounts[limit.resource] for limit in quota.limits},
    )


def _group(quota: Quota, cluster: Cluster) -> str | None:
    match quota.group_by:
        case "Namespace":
            return f"namespace {cluster.namespace}"
        case "Label":
            value = cluster.metadata.labels.get(quota.label or "")
            return f"{quota.label}={value}" if value else None
        case "Class":
            topology = cluster.spec.topology
            return f"class {(topology.class_ref.name if topology else None) or ''}"
        case "All":
            return ""


def _amount(value: Any) -> Decimal | ExpressionError:
    if isinstance(value, ExpressionError):
        return value
    try:
        return as_amount(value)
    except ExpressionError as error:
        return error


def node_count(cluster: Cluster) -> int:
    """The number of nodes in a Cluster's topology. A part without replicas counts as one."""
    topology = cluster.spec.topology
    if topology is None:
        return 0
    workers = [*topology.workers.machine_deployments, *topology.workers.machine_pools]
    replicas = [topology.control_plane.replicas, *(worker.replicas for worker in workers)]
    return sum(1 if count is None else count for count in replicas)


def _shown(value: Decimal) -> str:
    return f"{value.normalize():f}"


async def counted_copies(
    clusters: Mapping[str, KnownCluster],
    own: KnownCluster,
    policy: KnownPolicy,
    quota: Quota,
    namespaces: Mapping[str, Mapping[str, str]],
) -> list[CountedCluster] | None:
    """All Clusters that a policy's quota counts, and `own`, which may be newer than its copy.

    None while the labels of a namespace decide that the replica has not read yet.
    """
    found: list[CountedCluster] = []
    began = time.monotonic()
    for cluster in {**clusters, own.occurrence.uid: own}.values():
        occurrence = cluster.occurrence
        if needs_namespace(policy, occurrence, namespaces):
            return None
        if matches(policy, occurrence, namespaces.get(occurrence.namespace)):
            found.append(await _counted_once(cluster, policy, quota))
        if time.monotonic() - began > _TURN_SECONDS:
            # Expressions are evaluated for all Clusters when a policy is new: others wait too.
            await asyncio.sleep(0)
            began = time.monotonic()
    return found


async def _counted_once(cluster: KnownCluster, policy: KnownPolicy, quota: Quota) -> CountedCluster:
    """A Cluster as the quota counts it, remembered until the policy changes."""
    remembered = cluster.counts.get(policy.uid)
    if remembered is None or remembered[0] != policy.generation:
        remembered = policy.generation, await counted(policy, quota, cluster.manifest)
        cluster.counts[policy.uid] = remembered
    return remembered[1]


async def all_clusters(
    client: Client,
    policy: KnownPolicy,
    quota: Quota,
    namespaces: Mapping[str, Mapping[str, str]],
) -> list[CountedCluster] | None:
    """All Clusters that a policy's quota counts, from the API server. None as for copies."""
    found: list[CountedCluster] = []
    async for manifest in client.iterate(Cluster.resource, policy.namespace):
        occurrence = cluster_occurrence(policy.spec.hook, manifest)
        if needs_namespace(policy, occurrence, namespaces):
            return None
        if matches(policy, occurrence, namespaces.get(occurrence.namespace)):
            found.append(await counted(policy, quota, manifest))
    return found
