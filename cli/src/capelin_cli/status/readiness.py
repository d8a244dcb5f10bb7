"""Whether a Cluster is as desired: one definition for every command that waits for it."""

from collections.abc import Iterable
from typing import Final

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import ASLEEP, find_condition
from capelin_lifecycle.api import LifecycleResult

from capelin_cli.status.cluster_tree import (
    ClusterGraph,
    ClusterObject,
    StatusCondition,
    read_graph,
)
from capelin_cli.status.condition_messages import (
    DELETION_HOOK,
    blocking_responses,
    hook_reasons,
    hooks_text,
    one_line,
    topology_summary,
)
from capelin_cli.status.policies import read_results
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import Show, wait_for

# The conditions that best explain why a control plane is not as desired, the best ones first: those
# that are true during work, then those that are true when all is well.
_ACTIVITIES: Final = ("RollingOut", "ScalingUp", "ScalingDown")
_GOALS: Final = ("EtcdClusterHealthy", "Available")
_PARTS: Final = ("RemoteConnectionProbe", "ControlPlaneAvailable", "WorkersAvailable")
"""The conditions of a Cluster without infrastructure that make it available."""


async def observe_cluster(client: Client, name: str, namespace: str) -> ClusterGraph | None:
    """Read a Cluster, its control plane and its workers. None if it does not exist."""
    cluster = await client.find(Cluster, name, namespace)
    return None if cluster is None else await observe(client, cluster)


async def observe(client: Client, cluster: Cluster) -> ClusterGraph:
    """The objects that the readiness of a Cluster depends on."""
    results = await read_results(client, cluster.namespace) if blocking_responses(cluster) else ()
    return await read_graph(client, cluster, results, whole=False)


async def deletion_progress(client: Client, deleted: Cluster) -> str | None:
    """Why the deletion of a Cluster is not complete. None when it is."""
    cluster = await client.find(Cluster, deleted.name, deleted.namespace)
    if cluster is None or cluster.uid != deleted.uid:
        return None
    return deletion_reason(cluster, await read_results(client, deleted.namespace))


def deletion_reason(cluster: Cluster, results: Iterable[LifecycleResult]) -> str:
    """The cause for which a deletion waits: the hook and its policies, or Cluster API's message."""
    reasons = hook_reasons(cluster, results)
    if any(reason.hook == DELETION_HOOK and reason.blocks for reason in reasons):
        return hooks_text([DELETION_HOOK], reasons)
    if cluster.metadata.deletion_timestamp is None:
        return "it is not being deleted"
    condition = find_condition(cluster.status.conditions, "Deleting")
    return one_line(condition.message if condition else "") or "it is being deleted"


async def wait_until_ready(
    client: Client, name: str, namespace: str, within: float, show: Show
) -> None:
    """Wait until a Cluster is as desired, including its control plane and workers."""

    async def reason() -> str | None:
        return not_ready_reason(await observe_cluster(client, name, namespace))

    await wait_for(f"cluster {name}", reason, within, show)


async def follow_until_ready(
    checklist: Checklist, client: Client, name: str, namespace: str, within: float
) -> None:
    """Wait until a Cluster is ready, and show the progress in a checklist."""
    with checklist.step(f"cluster {name} ready") as line:
        await wait_until_ready(client, name, namespace, within, checklist.showing(line))
        line.detail = ""


def not_ready_reason(graph: ClusterGraph | None) -> str | None:
    """Why a Cluster is not as desired yet. None when it is."""
    if graph is None:
        return "it does not exist yet"
    cluster = graph.cluster
    available = find_condition(cluster.status.conditions, "ControlPlaneAvailable")
    if available is not None and available.reason == ASLEEP:
        return f"it sleeps: wake it with capelin wake cluster {cluster.name}"
    reasons = (
        topology_problem(graph),
        # Before Available: this has the cause, and Available may be late.
        _control_plane_problem(cluster, graph.control_plane),
        _available_problem(cluster),
        *map(_workers_problem, graph.workers),
        _outdated_replicas(cluster),
    )
    return next((reason for reason in reasons if reason is not None), None)


def _available_problem(cluster: Cluster) -> str | None:
    """Why a Cluster is not available."""
    if cluster.spec.infrastructure_ref is not None or cluster.spec.topology is not None:
        return _condition_problem(cluster, "Available")
    # Core never reports such a Cluster as available: its InfrastructureReady stays unknown.
    problems = (_condition_problem(cluster, type_) for type_ in _PARTS)
    return next(filter(None, problems), None)


def topology_problem(graph: ClusterGraph) -> str | None:
    """Why the topology of a Cluster has not reached its objects, with the hooks that block it."""
    cluster = graph.cluster
    if cluster.spec.topology is None:
        return None
    problem = _condition_problem(cluster, "TopologyReconciled")
    condition = find_condition(cluster.status.conditions, "TopologyReconciled")
    hooks = blocking_responses(cluster)
    if condition is None or not hooks:
        return problem
    reasons = hook_reasons(cluster, graph.results)
    return topology_summary(condition.message, hooks_text(hooks, reasons))


def _condition_problem(cluster: Cluster, condition_type: str) -> str | None:
    condition = find_condition(cluster.status.conditions, condition_type)
    if condition is None:
        return f"{condition_type} is not known yet"
    if condition.status == "True" and condition.observed_generation in {
        None,
        cluster.metadata.generation,
    }:
        return None
    if condition.status == "True":
        return f"{condition_type} is not known for the latest change yet"
    return one_line(condition.message) or f"{condition_type} is {condition.status}"


def _control_plane_problem(cluster: Cluster, control_plane: ClusterObject | None) -> str | None:
    if control_plane is None:
        return None
    spec, status = control_plane.spec, control_plane.status
    topology = cluster.spec.topology
    desired = topology.control_plane.replicas if topology else None
    if desired is not None and spec.replicas is not None and spec.replicas != desired:
        return f"control plane: scaling to {desired} replicas has not begun"
    problem = None
    if spec.replicas is not None:
        ready, current = status.ready_replicas or 0, status.up_to_date_replicas
        if ready != spec.replicas:
            problem = f"{ready} of {spec.replicas} replicas are ready"
        elif current is not None and current != spec.replicas:
            problem = f"{current} of {spec.replicas} replicas are up to date"
        elif status.replicas is not None and status.replicas > spec.replicas:
            surplus = status.replicas - spec.replicas
            problem = f"{surplus} of {status.replicas} replicas are still to be removed"
    if problem is None and spec.version and status.version and status.version != spec.version:
        problem = f"runs {status.version}, not {spec.version} yet"
    if problem is None:
        return None
    cause = _cause(status.conditions)
    return f"control plane: {problem}" + (f" ({cause})" if cause else "")


def _cause(conditions: Iterable[StatusCondition]) -> str:
    """The message of the condition that best explains why the control plane is not as desired."""
    by_type = {condition.type: condition for condition in conditions}
    for names, status in ((_ACTIVITIES, "True"), (_GOALS, "False")):
        for name in names:
            condition = by_type.get(name)
            if condition is not None and condition.status == status and condition.message:
                return one_line(condition.message)
    return ""


def _workers_problem(workers: ClusterObject) -> str | None:
    # Cluster API counts a Cluster as available whatever its MachinePools do.
    title = f"{workers.kind} {workers.metadata.name}"
    desired, ready = workers.spec.replicas, workers.status.ready_replicas or 0
    if desired is not None and ready != desired:
        return f"{title} has {ready} of {desired} machines ready"
    # Cluster API counts machines of an older version as up to date.
    version = workers.spec.template.spec.version
    versions = (entry.version for entry in workers.status.versions)
    outdated = next((running for running in versions if version and running != version), None)
    return outdated and f"{title} still has machines of {outdated}"


def _outdated_replicas(cluster: Cluster) -> str | None:
    for title, replicas in (
        ("control plane", cluster.status.control_plane),
        ("workers", cluster.status.workers),
    ):
        if replicas is None or replicas.desired_replicas is None:
            continue
        desired = replicas.desired_replicas
        current, existing = replicas.up_to_date_replicas or 0, replicas.replicas or 0
        if current != desired:
            return f"{title}: {current} of {desired} are up to date"
        if existing > desired:
            return f"{title}: {existing - desired} of {existing} are still to be removed"
        if existing < desired:
            return f"{title}: {existing} of {desired} exist"
    return None
