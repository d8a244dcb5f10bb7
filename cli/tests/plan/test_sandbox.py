"""The objects of a sandbox, and the metrics of its core."""

from typing import Any

import pytest
from capelin_cli.plan.sandbox import concurrent, is_idle, until_gone

from .objects import cluster, deployment

CONCURRENCY = "topology.cluster.x-k8s.io/upgrade-concurrency"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('workqueue_depth{controller="machine",name="machine",priority="0"} 0', True),
        ('workqueue_depth{controller="machine",name="machine",priority="0"} 1', False),
        ('controller_runtime_active_workers{controller="machine"} 2', False),
        ('workqueue_adds_total{controller="machine",name="machine"} 7', True),
    ],
)
def test_metrics_of_core(line: str, *, expected: bool) -> None:
    metrics = f"# HELP workqueue_depth Current depth of workqueue\n{line}\n"
    assert is_idle(metrics) is expected


async def test_a_busy_core_may_create_a_removed_object_again() -> None:
    """The plan after it would have an object of another Cluster."""
    moments = iter([(True, 5), (False, 0), (True, 1), (True, 0), (True, 0)])
    removals: list[int] = []

    async def idle() -> bool:
        was_idle, removed = next(moments)
        removals.append(removed)
        return was_idle

    async def remove() -> int:
        return removals[-1]

    await until_gone(idle, remove)
    assert removals == [5, 0, 1, 0]


def annotations(objects: list[Any]) -> list[Any]:
    return [each["metadata"].get("annotations", {}) for each in objects]


def test_groups_are_upgraded_at_the_same_time() -> None:
    found = concurrent([cluster(), deployment()], [])
    assert annotations(found) == [{CONCURRENCY: "100"}, {}]


def test_groups_wait_for_those_whose_machines_a_user_deletes() -> None:
    rollout = {"strategy": {"type": "OnDelete"}}
    objects = [cluster(), deployment()]
    assert concurrent(objects, [deployment(rollout=rollout)]) == objects
    own = cluster()
    own["metadata"]["annotations"] = {CONCURRENCY: "2"}
    assert concurrent([own], []) == [own]
