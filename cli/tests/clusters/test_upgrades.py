"""The next action of `capelin upgrade`."""

from typing import Any

import pytest
from capelin.errors import InvalidInputError
from capelin_cli.clusters.topology import UpgradePlan, plan_upgrade
from capelin_cli.status.readiness import ObservedCluster

from cli.tests.status.test_readiness import GOOD, condition, control_plane, observed, pool

KNOWN = ("v1.33.13", "v1.34.4", "v1.35.4")
DESIRED = "v1.34.4"


def found(
    running: str = DESIRED, *workers: str, topology: dict[str, Any] | None = None
) -> ObservedCluster:
    """A cluster whose topology has v1.34.4."""
    conditions = GOOD if topology is None else (topology, GOOD[1])
    return ObservedCluster(
        observed(*conditions), [pool(3, 3, *workers)], control_plane(3, 3, version=running)
    )


def plan(requested: str | None, cluster: ObservedCluster) -> UpgradePlan:
    return plan_upgrade(requested, DESIRED, cluster, KNOWN)


@pytest.mark.parametrize("requested", ["v1.34.4", "1.34"])
def test_a_running_version_needs_no_action(requested: str) -> None:
    assert plan(requested, found()) == UpgradePlan(DESIRED, "Nothing")


@pytest.mark.parametrize(
    "cluster",
    [
        found("v1.33.13"),
        found(DESIRED, DESIRED, "v1.33.13"),
        # All of it runs the version, and a hook after the upgrade waits.
        found(
            topology={
                **condition("TopologyReconciled", "False"),
                "message": "Cluster is upgrading to v1.34.4\n  * Following hooks are blocking "
                "upgrade: AfterClusterUpgrade: tests run",
            }
        ),
    ],
)
@pytest.mark.parametrize("requested", ["1.34", None])
def test_waits_for_a_started_upgrade(requested: str | None, cluster: ObservedCluster) -> None:
    assert plan(requested, cluster) == UpgradePlan(DESIRED, "Wait")


def test_another_version_is_sent() -> None:
    assert plan("1.35", found()) == UpgradePlan("v1.35.4", "Send")
    assert plan(None, found()) == UpgradePlan("v1.35.4", "Send")


@pytest.mark.parametrize("requested", ["v1.35.4", "v1.33.13"])
def test_another_version_waits_for_the_running_upgrade(requested: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is being upgraded to v1\.34\.4") as caught:
        plan(requested, found("v1.33.13"))
    assert "capelin wait" in caught.value.hint


def test_a_cluster_without_known_versions_is_judged_by_its_readiness() -> None:
    assert plan("1.34", ObservedCluster(observed(*GOOD))) == UpgradePlan(DESIRED, "Nothing")
    assert plan("1.34", ObservedCluster(observed())) == UpgradePlan(DESIRED, "Wait")


def test_does_not_wait_for_a_paused_cluster_that_runs_the_version() -> None:
    paused = condition("TopologyReconciled", "False")
    assert plan("1.34", found(topology=paused)) == UpgradePlan(DESIRED, "Nothing")
