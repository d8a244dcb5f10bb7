"""Messages of Cluster API's conditions, in one line."""

import pytest
from capelin_cli.status.condition_messages import (
    blocking_hooks,
    is_upgrading,
    one_line,
    topology_summary,
)

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
