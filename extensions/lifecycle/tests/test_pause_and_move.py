"""Results of paused, moved, restored and recreated Clusters and policies: nothing runs twice."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from capelin.api import BaseObject, Unstructured
from capelin.api.core import ConfigMap
from capelin.contract import DELETE_FOR_MOVE_ANNOTATION, PAUSED_ANNOTATION, find_condition
from capelin.controller import Context, Result
from capelin.testing.fake_client import Clock, FakeClient
from capelin_lifecycle.actions.job import JOBS, PODS
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api.names import BLOCKING_HOOKS, HookName
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy, PolicyStatus
from capelin_lifecycle.api.results import LifecycleReservation, LifecycleResult
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import Occurrence, WholeCluster, result_name
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reconcilers.policies import (
    FINALIZER,
    LifecyclePolicyReconciler,
    policy_problem,
)
from capelin_lifecycle.reconcilers.records import RESULT_FINALIZER, new_result, owner_reference
from capelin_lifecycle.reconcilers.results import ResultReconciler

from .factories import OneWorkload, policy

JOB = {"job": {"template": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}}
MANIFESTS = {"apply": {"sources": [{"configMap": "manifests"}]}}
APPROVAL = {"approval": {"approvers": ["alice"]}}
HOOK = "AfterClusterUpgrade"


class Recorder:
    def record(self, record: Any) -> None:
        del record


class Management:
    """A management cluster with the lifecycle extension, and the workload cluster `demo`."""

    def __init__(self, workload: FakeClient, clock: Clock) -> None:
        self.clock = clock
        self.workload = workload
        kinds = (LifecyclePolicy, ClusterLifecyclePolicy, LifecycleReservation, LifecycleResult)
        self.client = FakeClient(*kinds, clock=clock)
        self.store = Store(policy_problem)
        self.store.synced.update({"LifecyclePolicy", "ClusterLifecyclePolicy", "Cluster"})
        judge = Judge(self.store, Reservations(self.client, "system"))
        self.reconciler = ResultReconciler(self.store, judge, "system", clock)
        self.reconciler._workloads = OneWorkload(workload)  # type: ignore[assignment]
        recorder: Any = Recorder()
        self.ctx = Context(self.client, logging.getLogger(__name__), recorder)

    def add_cluster(self, uid: str, *, is_paused: bool = False, **metadata: Any) -> None:
        spec: Unstructured = {"topology": {"version": "v1.34.4"}}
        if is_paused:
            spec["paused"] = True
        named = {"name": "demo", "namespace": "team", "uid": uid, **metadata}
        cluster = WholeCluster.read({"metadata": named, "spec": spec})
        self.store.note(self.client.add(cluster))

    async def pause(self, *, is_paused: bool = True) -> None:
        changed = await self.client.patch(
            WholeCluster, "demo", "team", {"spec": {"paused": is_paused or None}}
        )
        self.store.note(changed)

    def add_policy(self, uid: str = "first", name: str = "p", **spec: Any) -> KnownPolicy:
        fields: dict[str, Any] = {"hook": HOOK, "action": JOB, **spec}
        made = policy(name, **fields)
        made.metadata.uid = uid
        assert isinstance(made, LifecyclePolicy)
        stored = self.client.add(made)
        self.store.note(stored)
        return KnownPolicy.of(stored)

    async def change_policy(self, **spec: Any) -> KnownPolicy:
        patch = {"spec": spec}
        changed = await self.client.patch(LifecyclePolicy, "p", "team", patch)
        self.store.note(changed)
        return KnownPolicy.of(changed)

    async def call(self, known: KnownPolicy) -> None:
        """Do the work of a hook for the policy."""
        called = self.occurrence(known.spec.hook)
        name = result_name(known.key, called)
        if await self.client.find(LifecycleResult, name, "team") is None:
            await self.client.create(new_result(known, name, called, self.clock()))

    def occurrence(self, hook: HookName = HOOK) -> Occurrence:
        uid = next(iter(self.store.clusters or ()), "")
        return Occurrence(
            hook=hook,
            namespace="team",
            cluster="demo",
            uid=uid,
            to_version="v1.34.4",
            target_version="v1.34.4",
        )

    def add_manifest(self, version: str) -> None:
        """Set the manifest that the action `MANIFESTS` applies."""
        text = (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm, namespace: default}\n"
            f'data: {{version: "{version}"}}\n'
        )
        self.client.add(ConfigMap.of("manifests", "team", data={"m.yaml": text}))

    async def results(self) -> list[LifecycleResult]:
        return (await self.client.list(LifecycleResult)).items

    async def result(self) -> LifecycleResult:
        (found,) = await self.results()
        return found

    async def reconcile(self) -> Result | None:
        outcome = None
        for result in await self.results():
            self.store.note(result)
            outcome = await self.reconciler.reconcile(self.ctx, result)
        for result in await self.results():
            self.store.note(result)
        return outcome

    async def reconcile_policy(self) -> None:
        found = await self.client.get(LifecyclePolicy, "p", "team")
        registration: Any = None
        reconciler = LifecyclePolicyReconciler(self.store, "system", registration)
        await reconciler.reconcile(self.ctx, found)

    async def phase(self) -> str:
        status = (await self.result()).status
        return status.phase if status else ""

    async def jobs(self) -> list[str]:
        """The Jobs that exist in the workload cluster."""
        return [job["metadata"]["name"] for job in (await self.workload.list(JOBS)).items]

    @property
    def created_jobs(self) -> int:
        """How many Jobs were ever created there."""
        return sum(
            sent.method == "POST" and sent.path.endswith("/jobs") for sent in self.workload.requests
        )

    async def finish_job(self, type_: str = "Complete") -> None:
        (job,) = (await self.workload.list(JOBS)).items
        metadata = job["metadata"]
        status = {"conditions": [{"type": type_, "status": "True"}]}
        await self.workload.patch(
            JOBS, metadata["name"], metadata["namespace"], {"status": status}, subresource="status"
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workload(clock: Clock) -> FakeClient:
    return FakeClient(JOBS, PODS, clock=clock)


@pytest.fixture
def here(workload: FakeClient, clock: Clock) -> Management:
    management = Management(workload, clock)
    management.add_cluster("here")
    return management


@pytest.fixture
def there(workload: FakeClient, clock: Clock) -> Management:
    return Management(workload, clock)


async def copy(source: Management, target: Management, *, with_owners: bool = True) -> None:
    """Create objects as clusterctl and Velero do: no status, other uids, owners if at all."""
    for found in (await source.client.list(LifecyclePolicy)).items:
        moved = LifecyclePolicy.read({**found.dump(), "metadata": _moved(found), "status": None})
        target.store.note(target.client.add(moved))
    for result in await source.results():
        metadata = _moved(result)
        if with_owners:
            uid = target.occurrence().uid
            metadata["ownerReferences"] = [owner_reference("demo", uid).dump()]
        target.client.add(LifecycleResult.read({**result.dump(), "metadata": metadata}))


def _moved(obj: BaseObject) -> Unstructured:
    dropped = {"uid", "resourceVersion", "ownerReferences", "creationTimestamp", "generation"}
    return {k: v for k, v in obj.dump()["metadata"].items() if k not in dropped}


async def delete_for_move(source: Management) -> None:
    """The steps of clusterctl on the source, with a reconcile after each of its requests."""
    (result,) = await source.results()
    path = {"metadata": {"annotations": {DELETE_FOR_MOVE_ANNOTATION: ""}}}
    await source.client.patch(LifecycleResult, result.name, "team", path)
    await source.reconcile()
    await source.client.delete(LifecycleResult, result.name, "team")
    await source.reconcile()
    for left in await source.results():
        await source.client.patch(
            LifecycleResult, left.name, "team", {"metadata": {"finalizers": None}}
        )
        await source.reconcile()


# Pausing


async def test_nothing_runs_for_a_paused_cluster(here: Management) -> None:
    known = here.add_policy()
    await here.call(known)
    await here.pause()
    await here.reconcile()
    result = await here.result()
    assert result.status is not None
    assert (result.status.phase, result.status.message) == (
        "Paused",
        "Cluster spec.paused is set to true",
    )
    assert result.metadata.finalizers == []
    assert await here.jobs() == []
    await here.pause(is_paused=False)
    await here.reconcile()
    assert await here.phase() == "Running"
    assert len(await here.jobs()) == 1


@pytest.mark.parametrize("where", ["Cluster", "LifecycleResult", "LifecyclePolicy"])
async def test_the_annotation_pauses_too(here: Management, where: str) -> None:
    await here.call(here.add_policy())
    annotation = {"metadata": {"annotations": {PAUSED_ANNOTATION: ""}}}
    if where == "Cluster":
        here.add_cluster("here", annotations={PAUSED_ANNOTATION: ""})
    elif where == "LifecycleResult":
        name = (await here.result()).name
        await here.client.patch(LifecycleResult, name, "team", annotation)
    else:
        changed = await here.client.patch(LifecyclePolicy, "p", "team", annotation)
        here.store.note(changed)
    await here.reconcile()
    assert await here.phase() == "Paused"
    assert await here.jobs() == []


async def test_a_deletion_waits_until_the_pause_is_over(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    await here.pause()
    name = (await here.result()).name
    await here.client.delete(LifecycleResult, name, "team")
    await here.reconcile()
    assert (await here.result()).metadata.finalizers == [RESULT_FINALIZER]
    assert len(await here.jobs()) == 1
    await here.pause(is_paused=False)
    await here.reconcile()
    assert await here.results() == []
    assert await here.jobs() == []


async def test_a_paused_policy_does_not_change(here: Management) -> None:
    here.add_policy()
    annotation = {"metadata": {"annotations": {PAUSED_ANNOTATION: ""}}}
    await here.client.patch(LifecyclePolicy, "p", "team", annotation)
    await here.reconcile_policy()
    paused = await here.client.get(LifecyclePolicy, "p", "team")
    assert paused.metadata.finalizers == []
    condition = find_condition((paused.status or PolicyStatus()).conditions, "Paused")
    assert condition is not None
    assert condition.status == "True"


async def test_pauses_do_not_count_as_the_time_of_an_action(here: Management, clock: Clock) -> None:
    await here.call(here.add_policy(timeout="1h"))
    await here.reconcile()
    await here.pause()
    await here.reconcile()
    clock.advance(2 * 3600)
    await here.pause(is_paused=False)
    await here.reconcile()
    assert await here.phase() == "Running"
    clock.advance(3601)
    await here.reconcile()
    assert await here.phase() == "Failed"


async def test_a_job_that_ended_in_time_is_done_when_it_is_observed_late(
    here: Management, clock: Clock
) -> None:
    await here.call(here.add_policy(timeout="1h"))
    await here.reconcile()
    await here.finish_job()
    clock.advance(2 * 3600)
    await here.reconcile()
    assert await here.phase() == "Done"


# Changes of policies


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterSelector": {"matchLabels": {"stage": "test"}}},
        {"hook": "BeforeClusterDelete"},
        {"versions": {"to": "<1.34"}},
    ],
)
async def test_work_that_has_not_begun_does_not_begin_for_a_policy_that_selects_other_clusters(
    here: Management, spec: Unstructured
) -> None:
    here.store.namespaces["team"] = {}
    await here.call(here.add_policy())
    await here.change_policy(**spec)
    await here.reconcile()
    assert (await here.results(), await here.jobs()) == ([], [])


async def test_work_that_runs_ends_although_its_policy_selects_other_clusters(
    here: Management,
) -> None:
    here.store.namespaces["team"] = {}
    await here.call(here.add_policy())
    await here.reconcile()
    await here.change_policy(clusterSelector={"matchLabels": {"stage": "test"}})
    await here.reconcile()
    assert await here.phase() == "Running"
    await here.finish_job("Failed")
    await here.reconcile()
    await here.change_policy(timeout="3h")
    await here.reconcile()
    # No other attempt for this Cluster.
    assert here.created_jobs == 1


async def test_manifests_of_a_policy_that_selects_other_clusters_stay_as_they_are(
    here: Management,
) -> None:
    here.store.namespaces["team"] = {}
    await here.call(here.add_policy(action=MANIFESTS))
    here.add_manifest("1")
    await here.reconcile()
    await here.reconcile()
    assert await here.phase() == "Done"
    here.add_manifest("2")
    await here.change_policy(clusterSelector={"matchLabels": {"stage": "test"}})
    await here.reconcile()
    assert (await here.workload.get(ConfigMap, "cm", "default")).data == {"version": "1"}
    result = await here.result()
    assert result.status is not None
    assert "no longer selects the Cluster" in result.status.message


@pytest.mark.parametrize("ended", [False, True], ids=["runs", "failed"])
async def test_another_action_ends_the_former_one(here: Management, ended: bool) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    if ended:
        await here.finish_job("Failed")
        await here.reconcile()
    changed = await here.change_policy(action={"job": None, **APPROVAL})
    await here.reconcile()
    await here.reconcile()
    assert (await here.results(), await here.jobs()) == ([], [])
    await here.call(changed)
    await here.reconcile()
    assert (await here.result()).spec.action == "approval"
    assert await here.phase() == "Waiting"


async def test_work_in_place_of_an_approval_has_its_own_result(here: Management) -> None:
    await here.call(here.add_policy(action=APPROVAL))
    await here.reconcile()
    changed = await here.change_policy(action={"approval": None, **JOB})
    await here.reconcile()
    assert (await here.results(), await here.jobs()) == ([], [])
    await here.call(changed)
    await here.reconcile()
    assert (await here.result()).metadata.finalizers == [RESULT_FINALIZER]
    assert len(await here.jobs()) == 1


async def test_another_action_deletes_the_manifests_of_the_former_one(here: Management) -> None:
    here.add_manifest("1")
    await here.call(here.add_policy(action=MANIFESTS))
    await here.reconcile()
    await here.reconcile()
    assert await here.phase() == "Done"
    await here.change_policy(action={"apply": None, **JOB})
    await here.reconcile()
    await here.reconcile()
    assert await here.results() == []
    assert await here.workload.find(ConfigMap, "cm", "default") is None


@pytest.mark.parametrize("hook", ["BeforeClusterUpgrade", "AfterControlPlaneInitialized"])
async def test_work_waits_for_a_smaller_order_without_a_result(
    here: Management, clock: Clock, hook: HookName
) -> None:
    here.store.namespaces["team"] = {}
    first = here.add_policy("second", "first", order=-1, action=JOB, hook=hook)
    known = here.add_policy(hook=hook)
    clock.advance(5)
    await here.call(known)
    await here.reconcile()
    result = await here.result()
    assert result.status is not None
    assert (result.status.phase, result.status.message) == ("Waiting", "waits for policy first")
    assert await here.jobs() == []
    here.store.note(await here.client.get(LifecyclePolicy, first.name, "team"), gone=True)
    here.add_policy("third", "late", order=-1, action=JOB, hook=hook)
    await here.reconcile()
    # Core calls one of them again, and the new policy then gets a result.
    is_called_again = hook in BLOCKING_HOOKS
    assert len(await here.jobs()) == (0 if is_called_again else 1)


# Moving


async def test_move_starts_no_second_job(here: Management, there: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    (job,) = await here.jobs()
    await here.pause()
    await here.reconcile()
    there.add_cluster("there", is_paused=True)
    await copy(here, there)
    await there.reconcile()
    assert await there.phase() == "Paused"
    await delete_for_move(here)
    assert await here.results() == []
    assert await there.jobs() == [job]
    await there.pause(is_paused=False)
    await there.reconcile()
    assert await there.phase() == "Running"
    await there.finish_job()
    await there.reconcile()
    assert await there.phase() == "Done"
    assert there.created_jobs == 1


async def test_the_finalizer_does_not_come_back_during_a_move(here: Management) -> None:
    """Between clusterctl's patches, even if the replica's copy of the Cluster is not paused yet."""
    await here.call(here.add_policy())
    await here.reconcile()
    (job,) = await here.jobs()
    here.client.requests.clear()
    await delete_for_move(here)
    assert await here.results() == []
    assert await here.jobs() == [job]


async def test_a_finalizer_that_was_added_too_late_is_removed(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    name = (await here.result()).name
    moved = {"metadata": {"annotations": {DELETE_FOR_MOVE_ANNOTATION: ""}}}
    await here.client.patch(LifecycleResult, name, "team", moved)
    await here.client.delete(LifecycleResult, name, "team")
    await here.reconcile()
    assert await here.results() == []
    assert len(await here.jobs()) == 1


async def test_a_policy_that_is_deleted_for_a_move_leaves_its_results(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    await here.reconcile_policy()
    found = await here.client.get(LifecyclePolicy, "p", "team")
    assert found.metadata.finalizers == [FINALIZER]
    moved = {"metadata": {"annotations": {DELETE_FOR_MOVE_ANNOTATION: ""}}}
    await here.client.patch(LifecyclePolicy, "p", "team", moved)
    await here.reconcile_policy()
    await here.client.delete(LifecyclePolicy, "p", "team")
    here.store.note(found, gone=True)
    await here.reconcile_policy()
    assert await here.client.find(LifecyclePolicy, "p", "team") is None
    await here.reconcile()
    assert (await here.result()).metadata.deletion_timestamp is None
    assert len(await here.jobs()) == 1


@pytest.mark.parametrize("end", ["Complete", "Failed"])
@pytest.mark.parametrize("with_owners", [True, False])
async def test_a_finished_result_stays_finished_after_a_move_or_restore(
    here: Management, there: Management, end: str, with_owners: bool
) -> None:
    """The Job was removed meanwhile: only the record shows that it ran."""
    await here.call(here.add_policy())
    await here.reconcile()
    await here.finish_job(end)
    await here.reconcile()
    before = (await here.result()).status
    (job,) = await here.jobs()
    await here.workload.delete(JOBS, job, "default")
    there.add_cluster("there")
    await copy(here, there, with_owners=with_owners)
    await there.reconcile()
    await there.call(there.add_policy("second"))
    await there.reconcile()
    after = await there.result()
    assert before is not None
    assert after.status is not None
    assert (after.status.phase, after.status.message) == (before.phase, before.message)
    assert there.created_jobs == 1
    assert after.is_about("there")


async def test_a_restored_result_waits_for_its_cluster(here: Management, there: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    await copy(here, there, with_owners=False)
    await there.reconcile()
    assert (await there.result()).metadata.owner_references == []
    there.add_cluster("there")
    await there.reconcile()
    result = await there.result()
    assert result.cluster_uid == "there"
    assert there.created_jobs == 1


async def test_a_restored_result_waits_for_its_policy(here: Management, there: Management) -> None:
    await here.call(here.add_policy(action=APPROVAL))
    there.add_cluster("there")
    await copy(here, there, with_owners=False)
    there.store.note(await there.client.get(LifecyclePolicy, "p", "team"), gone=True)
    await there.client.delete(LifecyclePolicy, "p", "team")
    await there.reconcile()
    assert (await there.result()).id == (await here.result()).id
    there.add_policy("second", action=APPROVAL)
    await there.reconcile()
    assert await there.phase() == "Waiting"


async def test_a_result_created_after_its_policy_was_deleted_is_deleted(here: Management) -> None:
    """The hook creates it behind its answer, and the policy is deleted meanwhile."""
    known = here.add_policy(action=APPROVAL)
    found = await here.client.get(LifecyclePolicy, "p", "team")
    await here.client.delete(LifecyclePolicy, "p", "team")
    here.store.note(found, gone=True)
    await here.call(known)
    await here.reconcile()
    assert await here.results() == []


async def test_a_job_that_vanishes_while_it_runs_is_not_run_again(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    (job,) = await here.jobs()
    await here.workload.delete(JOBS, job, "default")
    await here.reconcile()
    result = await here.result()
    assert result.status is not None
    assert (result.status.phase, result.status.message) == (
        "Failed",
        f"Job {job} was deleted before its end was observed",
    )
    assert here.created_jobs == 1


# Clusters and policies that are created again


async def test_a_recreated_cluster_runs_its_job_again(here: Management) -> None:
    known = here.add_policy()
    await here.call(known)
    await here.reconcile()
    earlier = await here.result()
    first = await here.client.get(WholeCluster, "demo", "team")
    await here.client.delete(WholeCluster, "demo", "team")
    here.store.note(first, gone=True)
    here.add_cluster("second")
    # The garbage collector has not deleted the old result yet, so its name is in use.
    await here.reconcile()
    await here.reconcile()
    assert await here.results() == []
    await here.call(known)
    await here.reconcile()
    assert (await here.result()).id != earlier.id
    assert here.created_jobs == 2


@asynccontextmanager
async def deleted_policy(here: Management) -> AsyncGenerator[None]:
    """While a policy is being deleted."""
    await here.reconcile_policy()
    await here.client.delete(LifecyclePolicy, "p", "team")
    found = await here.client.get(LifecyclePolicy, "p", "team")
    here.store.note(found)
    for _ in range(3):
        await here.reconcile_policy()
        await here.reconcile()
        if await here.client.find(LifecyclePolicy, "p", "team") is None:
            break
    assert await here.client.find(LifecyclePolicy, "p", "team") is None
    yield


async def test_a_recreated_policy_does_not_repeat_a_job_that_is_done(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    await here.finish_job()
    await here.reconcile()
    async with deleted_policy(here):
        # Its objects go with it, and the record stays.
        assert await here.jobs() == []
        assert (await here.result()).metadata.finalizers == []
    # Also if it has changed.
    await here.call(here.add_policy("second", timeout="2h"))
    await here.reconcile()
    assert await here.phase() == "Done"
    assert here.created_jobs == 1


async def test_a_job_that_ran_when_its_policy_was_deleted_has_failed(here: Management) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    async with deleted_policy(here):
        assert await here.jobs() == []
        status = (await here.result()).status
        assert status is not None
        assert status.message == (
            "policy p was deleted while its Job ran. Delete this result to run it again"
        )
    await here.call(here.add_policy("second"))
    await here.reconcile()
    assert await here.phase() == "Failed"
    assert here.created_jobs == 1
    # Another policy of the name is another attempt, as is a changed one.
    here.add_policy("third", timeout="2h")
    await here.reconcile()
    assert await here.phase() == "Running"
    assert here.created_jobs == 2


async def test_changed_policy_runs_a_failed_job_again(
    here: Management,
) -> None:
    await here.call(here.add_policy())
    await here.reconcile()
    await here.finish_job("Failed")
    await here.reconcile()
    assert await here.phase() == "Failed"
    here.add_policy("changed", timeout="2h")
    await here.reconcile()
    assert await here.phase() == "Running"
    assert len(set(await here.jobs())) == 2


async def test_a_recreated_policy_asks_for_an_approval_again(here: Management) -> None:
    await here.call(here.add_policy(action=APPROVAL))
    await here.reconcile()
    first = await here.result()
    async with deleted_policy(here):
        assert await here.results() == []
    await here.call(here.add_policy("second", action=APPROVAL))
    await here.reconcile()
    second = await here.result()
    key = "approval.runtime.capelin.cluster.x-k8s.io/p"
    here.add_cluster("here", annotations={key: f"{first.id[:8]}:alice"})
    await here.reconcile()
    status = (await here.result()).status
    assert status is not None
    assert f"the approval with code {first.id[:8]} was for another occurrence" in status.message
    here.add_cluster("here", annotations={key: f"{second.id[:8]}:alice"})
    await here.reconcile()
    assert await here.phase() == "Done"


async def test_an_approval_is_valid_after_a_move(here: Management, there: Management) -> None:
    """Given before the move, or after it by the code that was shown before it."""
    await here.call(here.add_policy(action=APPROVAL))
    await here.reconcile()
    code = (await here.result()).id[:8]
    key = "approval.runtime.capelin.cluster.x-k8s.io/p"
    there.add_cluster("there", annotations={key: f"{code}:alice"})
    await copy(here, there)
    await there.reconcile()
    assert await there.phase() == "Done"
