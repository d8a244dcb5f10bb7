"""Members of etcd without a usable node."""

from datetime import UTC, datetime, timedelta

import pytest
from capelin.api.core import Node, Pod
from capelin_control_plane.backends.pods.pod_status import Displaced, displaced_members

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
AFTER = timedelta(minutes=10)
LONG, SHORT = NOW - timedelta(minutes=11), NOW - timedelta(minutes=9)


def node(name: str, status: str = "True", since: datetime = LONG) -> Node:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since.isoformat()}
    return Node.read({"metadata": {"name": name}, "status": {"conditions": [ready]}})


def pod(
    index: int,
    on: str | None,
    *,
    ready: bool = False,
    since: datetime = LONG,
    component: str = "etcd",
) -> Pod:
    """A pod on a node, or on none. It has not been ready, or not been scheduled, since a moment."""
    type_ = "PodScheduled" if on is None else "Ready"
    condition = {"type": type_, "status": str(ready), "lastTransitionTime": since.isoformat()}
    return Pod.read(
        {
            "metadata": {
                "name": f"one-etcd-{index}",
                "labels": {"app.kubernetes.io/component": component},
            },
            "spec": {"nodeName": on} if on else {},
            "status": {"conditions": [condition]},
        }
    )


@pytest.mark.parametrize(
    ("member", "nodes", "displaced"),
    [
        # The node is lost.
        (pod(1, "b"), [node("a"), node("b", "Unknown")], True),
        (pod(1, "b"), [node("a"), node("b", "False")], True),
        (pod(1, "b"), [node("a"), node("b", "Unknown", SHORT)], False),
        # The node was deleted.
        (pod(1, "b"), [node("a")], True),
        (pod(1, "b", since=SHORT), [node("a")], False),
        # No node has its volume, or all that do are drained.
        (pod(1, None), [node("a")], True),
        (pod(1, None, since=SHORT), [node("a")], False),
        # It only does not work, or it works.
        (pod(1, "b"), [node("b")], False),
        (pod(1, "b", ready=True), [node("b", "Unknown")], False),
        (pod(1, "b", component="kube-apiserver"), [], False),
    ],
)
def test_members_whose_node_is_lost_for_long_are_displaced(
    member: Pod, nodes: list[Node], *, displaced: bool
) -> None:
    found = displaced_members([pod(0, "a", ready=True), member], nodes, NOW, AFTER)
    assert found.indexes == ({1} if displaced else set())


def test_the_provider_returns_when_the_next_member_is_displaced() -> None:
    pods = [pod(0, "a"), pod(1, "b"), pod(2, "c")]
    nodes = [node("a", "Unknown"), node("b", "Unknown", SHORT), node("c")]
    found = displaced_members(pods, nodes, NOW, AFTER)
    assert found == Displaced(frozenset({0}), SHORT + AFTER)


def test_a_node_without_conditions_is_not_lost() -> None:
    unknown = Node.read({"metadata": {"name": "b"}})
    assert displaced_members([pod(1, "b")], [unknown], NOW, AFTER) == Displaced()
