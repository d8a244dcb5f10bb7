"""Messages of conditions in one line, and the reasons why hooks wait."""

from datetime import datetime
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_cli.status.cluster_tree import ClusterGraph, Node, with_children
from capelin_cli.status.condition_messages import (
    HookReason,
    blocking_hooks,
    hook_reasons,
    hooks_text,
    is_upgrading,
    one_line,
    topology_summary,
)
from capelin_cli.status.policies import reason_nodes
from capelin_cli.status.readiness import deletion_reason, not_ready_reason
from capelin_lifecycle.api import LifecycleResult

HELD = (
    "Cluster is upgrading to v1.34.4\n"
    "  * Following hooks are blocking upgrade: BeforeClusterUpgrade: policy freeze: waits for "
    "approval by alice; policy backup: Backup runs\n"
    "  * CapelinControlPlane pending upgrade to version v1.34.4\n"
    "  * MachinePool demo-workers pending upgrade to version v1.34.4"
)
LAST = (
    "Cluster is upgrading to v1.34.4\n"
    "  * Following hooks are blocking upgrade: AfterClusterUpgrade: policy tests: Job tests runs"
)
DELETING = (
    "Cluster is deleting. Following hooks are blocking delete: BeforeClusterDelete: policy "
    "protect: waits for approval by alice"
)
CREATING = (
    "Following hooks are blocking Cluster topology creation: BeforeClusterCreate: policy quota: "
    "exhausted"
)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", ""),
        ("* node is not ready", "node is not ready"),
        ("one\n  line", "one line"),
        ("* Machine a:\n  * NodeHealthy: no lease\n  * BootstrapReady: late", None),
        ("Cluster is upgrading to v1\n  * A pending", "Cluster is upgrading to v1; A pending"),
    ],
)
def test_bullets_are_joined(message: str, line: str | None) -> None:
    assert one_line(message) == (
        line if line is not None else "Machine a: NodeHealthy: no lease; BootstrapReady: late"
    )


def test_blocking_hooks_have_their_responses() -> None:
    assert blocking_hooks(HELD) == {
        "BeforeClusterUpgrade": (
            "policy freeze: waits for approval by alice; policy backup: Backup runs"
        )
    }
    assert blocking_hooks("Cluster is upgrading to v1.34.4\n  * MachinePool a upgrading") == {}
    # Cluster API names them in random order, and some without a message.
    several = "Following hooks are blocking upgrade: AfterWorkersUpgrade; BeforeClusterUpgrade: no"
    assert list(blocking_hooks(several).items()) == [
        ("BeforeClusterUpgrade", "no"),
        ("AfterWorkersUpgrade", ""),
    ]


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        (HELD, "upgrade to v1.34.4 waits for BeforeClusterUpgrade"),
        (LAST, "runs v1.34.4, waits for AfterClusterUpgrade"),
        (DELETING, "deletion waits for BeforeClusterDelete"),
        (CREATING, "creation waits for BeforeClusterCreate"),
        ("Cluster spec.paused is set to true", "Cluster spec.paused is set to true"),
    ],
)
def test_a_summary_names_the_hooks_that_block(message: str, summary: str) -> None:
    assert topology_summary(message) == summary


def test_a_summary_takes_a_text_about_the_hooks() -> None:
    assert topology_summary(DELETING, "alice") == "deletion waits for alice"


def test_upgrades_are_recognised() -> None:
    assert [is_upgrading(message) for message in (HELD, LAST, DELETING, "")] == [
        True,
        True,
        False,
        False,
    ]


SINCE = "2026-11-22T08:30:00Z"
UPGRADE = "Cluster is upgrading to v1.34.4\n  * Following hooks are blocking upgrade: "
DELETION = "Cluster is deleting. Following hooks are blocking delete: "


def cluster(message: str = "", *, deleting: str = "") -> Cluster:
    conditions = [
        {
            "type": condition_type,
            "status": status,
            "reason": "Because",
            "message": text,
            "lastTransitionTime": SINCE,
        }
        for condition_type, status, text in (
            ("TopologyReconciled", "False", message),
            ("Deleting", "True", deleting),
        )
        if text
    ]
    return Cluster.read(
        {
            "metadata": {"name": "demo", "namespace": "team", "uid": "demo"},
            "spec": {"topology": {"version": "v1.34.4"}},
            "status": {"conditions": conditions},
        }
    )


def result(
    policy: str,
    phase: str = "Waiting",
    message: str = "waits for approval by alice",
    *,
    hook: str = "BeforeClusterUpgrade",
    uid: str = "demo",
) -> LifecycleResult:
    spec: dict[str, Any] = {
        "policy": {"kind": "LifecyclePolicy", "namespace": "team", "name": policy},
        "cluster": {"name": "demo"},
        "hook": hook,
        "action": "approval",
    }
    if hook != "BeforeClusterDelete":
        spec["toVersion"] = "v1.34.4"
    owner = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "name": "demo",
        "uid": uid,
    }
    return LifecycleResult.read(
        {
            "metadata": {
                "name": f"{policy}-{uid}".lower(),
                "namespace": "team",
                "ownerReferences": [owner],
            },
            "spec": spec,
            "status": {"phase": phase, "message": message, "since": SINCE},
        }
    )


def test_status_shows_each_reason_in_its_own_row() -> None:
    results = [result("freeze"), result("done", "Done"), result("freeze", uid="other")]
    (node,) = reason_nodes(hook_reasons(cluster(), results))
    assert node.title == "BeforeClusterUpgrade/freeze"
    assert node.message == "waits for approval by alice (since 2026-11-22 08:30 UTC)"
    assert (node.state, node.version) == ("waiting", "v1.34.4")
    (failed,) = reason_nodes(hook_reasons(cluster(), [result("freeze", "Failed")]))
    assert failed.state == "bad"
    tree = with_children(Node("Cluster/demo", "good", children=(Node("Workers", "good"),)), [node])
    assert [child.title for child in tree.children] == [node.title, "Workers"]
    assert not tree.is_good


def test_a_hook_of_another_extension_is_also_a_reason() -> None:
    blocked = cluster(
        UPGRADE + "BeforeClusterUpgrade: policy freeze: waits for approval by alice, disk is full"
    )
    freeze, other = hook_reasons(blocked, [result("freeze")])
    assert freeze.policy == "freeze"
    assert other == HookReason("BeforeClusterUpgrade", "disk is full")
    assert reason_nodes([other]) == [
        Node("BeforeClusterUpgrade", "waiting", message="disk is full")
    ]


def test_a_response_that_is_older_than_the_result_is_not_a_reason() -> None:
    blocked = cluster(UPGRADE + "BeforeClusterUpgrade: policy freeze: has started")
    (reason,) = hook_reasons(blocked, [result("freeze")])
    assert reason.text == "policy freeze: waits for approval by alice"


@pytest.mark.parametrize(
    ("response", "blocks"), [("policy freeze has failed: expired", True), ("disk is full", False)]
)
def test_a_failed_policy_blocks_unless_it_is_ignored(response: str, blocks: bool) -> None:
    blocked = cluster(f"{UPGRADE}BeforeClusterUpgrade: {response}")
    reason, *_ = hook_reasons(blocked, [result("freeze", "Failed", "expired")])
    assert reason.text == "policy freeze has failed: expired"
    assert reason.blocks == blocks
    text = hooks_text(["BeforeClusterUpgrade"], hook_reasons(blocked, [result("freeze", "Failed")]))
    assert ("policy freeze" in text) == blocks


def test_a_blocked_upgrade_shows_its_reason_once() -> None:
    message = (
        UPGRADE + "BeforeClusterUpgrade: policy freeze: waits for approval by alice\n"
        "  * CapelinControlPlane pending upgrade to version v1.34.4"
    )
    reason = (
        "upgrade to v1.34.4 waits for BeforeClusterUpgrade: policy freeze: waits for approval by "
        "alice"
    )
    held = cluster(message)
    assert not_ready_reason(ClusterGraph(held, results=[result("freeze")])) == reason
    # Without the lifecycle extension's results, Cluster API's message has the reason.
    assert not_ready_reason(ClusterGraph(held)) == reason


def test_a_deletion_names_the_hook_the_policy_and_the_approver() -> None:
    deleting = cluster(deleting="Waiting for BeforeClusterDelete hook")
    protect = result("protect", hook="BeforeClusterDelete")
    expected = "BeforeClusterDelete: policy protect: waits for approval by alice"
    assert deletion_reason(deleting, [protect]) == expected
    blocked = cluster(
        f"{DELETION}BeforeClusterDelete: policy protect: waits for approval by alice",
        deleting="Waiting for BeforeClusterDelete hook",
    )
    assert deletion_reason(blocked, []) == expected
    assert deletion_reason(blocked, [protect, result("freeze")]) == expected


def test_a_deletion_without_hooks_has_the_reason_of_cluster_api() -> None:
    deleting = cluster()
    deleting.metadata.deletion_timestamp = datetime.fromisoformat(SINCE)
    assert deletion_reason(deleting, []) == "it is being deleted"
    deleting = cluster(deleting="* Machines:\n  * demo-1")
    deleting.metadata.deletion_timestamp = datetime.fromisoformat(SINCE)
    assert deletion_reason(deleting, []) == "Machines: demo-1"


def test_a_cluster_without_a_deletion_is_not_reported_as_being_deleted() -> None:
    assert deletion_reason(cluster(), []) == "it is not being deleted"
