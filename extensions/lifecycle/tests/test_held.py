"""All verdicts of a hook's call hold at the same moment."""

from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin_lifecycle.actions.quota import counted_copies
from capelin_lifecycle.policies.clusters import KnownCluster
from capelin_lifecycle.policies.selection import KnownPolicy

from .factories import policy
from .policies_world import APPROVAL, JOB, PoliciesWorld, Replica

SATURDAY = datetime(2026, 1, 3, 22, 30, tzinfo=UTC)
MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)
WINDOW: Unstructured = {
    "approval": {"window": {"schedule": "0 22 * * SAT", "timeZone": "UTC", "duration": "2h"}}
}
SMALL: Unstructured = {
    "validate": {
        "rules": [{"expression": "object.metadata.labels.size == 'small'", "message": "too large"}]
    }
}


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hook wait for the processes of the sandbox, which the first test starts."""
    monkeypatch.setattr("capelin_lifecycle.hooks._SECONDS_AT_ONCE", 30.0)
    monkeypatch.setattr("capelin_lifecycle.hooks._SECONDS_AGAIN", 30.0)


async def started(**policies: Any) -> tuple[PoliciesWorld, Replica]:
    """A world on Saturday night, with policies whose first call was answered."""
    world = PoliciesWorld()
    (replica,) = world.replicas
    for name, spec in policies.items():
        await world.add_policy(name, **spec)
    world.clock.now = SATURDAY
    await replica.sync()
    await replica.call()
    await replica.reconcile()
    return world, replica


async def test_closed_window_holds_an_upgrade_that_is_approved_later() -> None:
    world, replica = await started(window={"action": WINDOW}, approve={"action": APPROVAL})
    assert await world.phase("window") == "Done"
    world.clock.now = MONDAY
    await world.approve("approve")
    await replica.sync()
    answer = await replica.call()
    assert "policy window: waits for the maintenance window" in answer.message
    await replica.reconcile()
    await replica.call()
    assert (await world.phase("window"), await world.phase("approve")) == ("Waiting", "Done")
    world.clock.now = datetime(2026, 1, 10, 23, tzinfo=UTC)
    await replica.reconcile()
    assert (await replica.call()).retry_seconds == 0


async def test_rule_that_held_once_holds_an_edited_cluster() -> None:
    world, replica = await started(rules={"action": SMALL}, approve={"action": APPROVAL})
    await world.edit_cluster(metadata={"labels": {"size": "large"}})
    await world.approve("approve")
    await replica.sync()
    assert "policy rules: too large" in (await replica.call()).message
    await replica.reconcile()
    assert await world.phase("rules") == "Waiting"


async def test_approval_is_for_the_topology_that_the_approver_saw() -> None:
    world, replica = await started(approve={"action": APPROVAL})
    await world.approve("approve")
    await world.edit_cluster(spec={"topology": {"workers": {"machineDeployments": []}}})
    await replica.sync()
    assert "the topology has changed" in (await replica.call()).message
    await replica.reconcile()
    again = (await replica.call()).message
    assert "was for another occurrence" in again
    await world.approve("approve")
    await replica.sync()
    assert (await replica.call()).retry_seconds == 0


async def test_approval_holds_until_it_is_withdrawn() -> None:
    world, replica = await started(approve={"action": APPROVAL}, window={"action": WINDOW})
    world.clock.now = MONDAY
    await world.approve("approve")
    await replica.reconcile()
    assert await world.phase("approve") == "Done"
    await world.edit_cluster(metadata={"annotations": None})
    await replica.sync()
    assert "waits for approval by alice" in (await replica.call()).message
    await replica.reconcile()
    assert await world.phase("approve") == "Waiting"


async def test_work_begins_only_while_the_verdicts_before_it_hold() -> None:
    world, replica = await started(
        window={"action": WINDOW}, approve={"action": APPROVAL, "order": 5}
    )
    await world.add_policy("wipe", action=JOB, order=10)
    await replica.sync()
    await replica.call()
    await world.approve("approve")
    world.clock.now = MONDAY
    # The leader has not decided about the window again.
    await replica.sync()
    wipe = await world.result_of("wipe")
    assert wipe is not None
    approve = await world.result_of("approve")
    assert approve is not None
    await replica.results.reconcile(replica.ctx, approve)
    await replica.sync()
    await replica.results.reconcile(replica.ctx, wipe)
    assert await world.jobs() == []
    world.clock.now = datetime(2026, 1, 10, 23, tzinfo=UTC)
    await replica.reconcile()
    await replica.reconcile()
    assert len(await world.jobs()) == 1


async def test_verdicts_of_an_upgrade_that_has_passed_stay() -> None:
    world, replica = await started(window={"action": WINDOW})
    assert (await replica.call()).retry_seconds == 0
    world.clock.now = MONDAY
    await replica.reconcile()
    assert await world.phase("window") == "Done"


async def test_quota_is_not_counted_while_a_namespace_is_unknown() -> None:
    fields: dict[str, Any] = {
        "hook": "BeforeClusterCreate",
        "namespaceSelector": {"matchLabels": {"stage": "production"}},
        "action": {"quota": {"groupBy": "All", "limits": [{"resource": "clusters", "limit": "1"}]}},
    }
    made = KnownPolicy.of(policy(namespace=None, **fields))
    quota = made.spec.action.quota
    assert quota is not None
    metadata = {"name": "one", "namespace": "new", "uid": "uid-1"}
    other = KnownCluster.of({"metadata": metadata, "spec": {"topology": {}}})
    metadata = {"name": "two", "namespace": "team", "uid": "uid-2"}
    own = KnownCluster.of({"metadata": metadata, "spec": {"topology": {}}})
    production = {"stage": "production"}
    known = {"team": production}
    assert await counted_copies({"uid-1": other}, own, made, quota, known) is None
    clusters = await counted_copies(
        {"uid-1": other}, own, made, quota, {**known, "new": production}
    )
    assert [cluster.uid for cluster in clusters or ()] == ["uid-1", "uid-2"]
