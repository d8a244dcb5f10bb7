"""PodDisruptionBudgets that block drains."""

from typing import Any

from capelin_cli.plan.budgets import blocked_by, drained_nodes
from capelin_cli.plan.model import Budget, ClusterPlan, MachineChanges

from .objects import CLUSTER, machine, made, snapshot

LABELS = {"app": "web"}


def budget(allowed: int = 0, expected: int = 1, namespace: str = "default") -> Any:
    return {
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"matchLabels": LABELS}},
        "status": {"disruptionsAllowed": allowed, "expectedPods": expected},
    }


def pod(node: str, namespace: str = "default", **labels: str) -> Any:
    return {
        "metadata": {"namespace": namespace, "labels": labels or LABELS},
        "spec": {"nodeName": node},
    }


def test_a_budget_with_pods_on_drained_nodes() -> None:
    pods = [pod("a"), pod("b"), pod("a", app="db"), pod("a", "other")]
    assert blocked_by([budget()], pods, {"a"}) == [Budget(name="web", namespace="default", pods=1)]


def test_budgets_that_permit_evictions_or_have_no_pods() -> None:
    budgets = [budget(allowed=1), budget(expected=0), budget(namespace="empty")]
    assert blocked_by(budgets, [pod("a")], {"a"}) == []


def test_nodes_of_removed_machines() -> None:
    before = [machine(name) for name in "abc"]
    for each in before:
        each["status"] = {"nodeRef": {"name": f"node-{each['metadata']['name']}"}}
    after = snapshot(machine("a"), machine("new"))
    plan = ClusterPlan(cluster=CLUSTER)
    assert drained_nodes(snapshot(*before), after, plan) == {"node-b", "node-c"}


def test_nodes_of_a_replaced_pool() -> None:
    pool, labels = made("MachinePool", "p"), {"cluster.x-k8s.io/pool-name": "p"}
    member = machine("a", labels=labels)
    member["status"] = {"nodeRef": {"name": "node-a"}}
    world = snapshot(pool, member)
    changes = MachineChanges(owner="MachinePool p", before=1, after=1, replaced=1)
    for machines, nodes in (([changes], {"node-a"}), ([], set[str]())):
        plan = ClusterPlan(cluster=CLUSTER, machines=machines)
        assert drained_nodes(world, world, plan) == nodes
