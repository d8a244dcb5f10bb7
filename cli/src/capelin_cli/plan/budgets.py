"""The PodDisruptionBudgets that will block drains, from the workload cluster itself."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.client import (
    WORKLOAD_OPTIONS,
    Client,
    ClientError,
    Destinations,
    WorkloadClients,
)
from capelin_lifecycle.api.policies import Selector
from capelin_lifecycle.policies.selection import selects

from capelin_cli.explain.facts import at, labels_of, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.model import Budget, ClusterPlan
from capelin_cli.plan.snapshot import POOL, Snapshot, uid_of

BUDGETS: Final = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
_PODS: Final = Resource("", "v1", "Pod", "pods")


def drained_nodes(source: Snapshot, after: Snapshot, plan: ClusterPlan) -> set[str]:
    """The Nodes of the Machines that the change removes.

    The Machines of a pool remain in the sandbox, because their provider removes them.
    """
    old, new = source.machines(plan.cluster), after.machines(plan.cluster)
    remaining = {uid_of(machine) for machines in new.values() for machine in machines}
    replaced = {each.owner for each in plan.machines if each.replaced}
    nodes = {
        text_at(machine, "status", "nodeRef", "name")
        for owner, machines in old.items()
        for machine in machines
        if uid_of(machine) not in remaining or (owner.startswith(POOL) and owner in replaced)
    }
    return nodes - {""}


async def blocking_budgets(
    client: Client, cluster: Reference, nodes: set[str], destinations: Destinations
) -> tuple[list[Budget], str]:
    """The budgets that permit no eviction now. The text is the reason why they are unknown."""
    if not nodes:
        return [], ""
    options = replace(WORKLOAD_OPTIONS, destinations=destinations)
    clients = WorkloadClients(client, options=options)
    try:
        async with clients.client(cluster.name, cluster.namespace or "") as workload:
            budgets = (await workload.list(BUDGETS)).items
            pods = (await workload.list(_PODS)).items if budgets else []
    except (ClientError, ExceptionGroup) as error:
        reason = f"PodDisruptionBudgets: the workload cluster does not answer: {error}"
        return [], reason
    finally:
        await clients.close()
    return blocked_by(budgets, pods, nodes), ""


def blocked_by(
    budgets: Iterable[Unstructured], pods: Sequence[Unstructured], nodes: set[str]
) -> list[Budget]:
    """The budgets without a permitted disruption that have pods on these Nodes."""
    return sorted(_blocking(budgets, pods, nodes), key=lambda each: (each.namespace, each.name))


def _blocking(
    budgets: Iterable[Unstructured], pods: Sequence[Unstructured], nodes: set[str]
) -> Iterator[Budget]:
    drained = [pod for pod in pods if text_at(pod, "spec", "nodeName") in nodes]
    for budget in budgets:
        if at(budget, "status", "disruptionsAllowed") or not at(budget, "status", "expectedPods"):
            continue
        namespace = text_at(budget, "metadata", "namespace")
        selector = Selector.read(cast("dict[str, Any]", at(budget, "spec", "selector") or {}))
        counted = Counter(
            selects(selector, labels_of(pod))
            for pod in drained
            if text_at(pod, "metadata", "namespace") == namespace
        )
        if counted[True]:
            name = text_at(budget, "metadata", "name")
            yield Budget(name=name, namespace=namespace, pods=counted[True])
