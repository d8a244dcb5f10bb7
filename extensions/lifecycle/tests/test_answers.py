"""Answers of hooks before any reconciler has run, and the results that they queue."""

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.client import Client, ClientError, Config, ConfigError, Forbidden, Unreachable
from capelin.runtime import Failure
from capelin.runtime.fixtures import sample_cluster
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import ValidateTopology
from capelin.testing.extensions import fake_request
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_lifecycle.api.policies import Policy
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import Settings, TopologyHandlers, answer_for
from capelin_lifecycle.policies.clusters import (
    WholeCluster,
    occurrence_of,
    result_name,
    topology_cluster,
)
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.reconcilers.pending import PendingResult, PendingResults
from capelin_lifecycle.reconcilers.records import new_result

from .factories import known, occurrence, policy

HOOK = "BeforeClusterUpgrade"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hook wait for the processes of the sandbox, which the first test starts."""
    monkeypatch.setattr("capelin_lifecycle.hooks._SECONDS_AT_ONCE", 30.0)


def rules(expression: str) -> dict[str, Any]:
    return {"validate": {"rules": [{"expression": expression, "message": "a team"}]}}


HAS_TEAM = rules("has(object.metadata.labels) && 'team' in object.metadata.labels")


class Replica:
    """An engine with policies and results in its store, but without an API server."""

    def __init__(self, *policies: Policy) -> None:
        def unreadable() -> Config:
            raise ConfigError("no credentials")

        self.engine = Engine(unreadable)
        self.engine.store.synced.update(
            {"LifecyclePolicy", "ClusterLifecyclePolicy", "Namespace", "Cluster"}
        )
        for made in policies:
            self.engine.store.note(made)

    async def answer(self, **labels: str) -> Answer:
        self.add_cluster(manifest(**labels))
        return await answer_for(self.engine, HOOK, request(), blocks=True)

    def add_cluster(self, cluster: Unstructured) -> None:
        self.engine.store.note(WholeCluster.read(cluster))

    def add_result(self, result: LifecycleResult) -> None:
        self.engine.store.note(result)

    @property
    def queued(self) -> dict[str, str | None]:
        """Policies with a result in the queue, and the message of each finished one."""
        return {result.policy.name: result.done for result in self.engine.pending.waiting}


def manifest(**labels: str) -> Unstructured:
    return {
        "metadata": {
            "name": "demo",
            "namespace": "team",
            "uid": "uid-of-demo",
            "resourceVersion": "7",
            "labels": labels,
        },
        "spec": {
            "topology": {"classRef": {"name": "small"}, "version": "v1.34.4"},
            "controlPlaneRef": {"apiGroup": "g", "kind": "K", "name": "demo"},
        },
    }


def request(cluster: Unstructured | None = None, **fields: Any) -> Any:
    given = {"from_kubernetes_version": "v1.33.13", "to_kubernetes_version": "v1.34.4", **fields}
    return SimpleNamespace(cluster_json=cluster or manifest(), **given)


async def test_rules_are_evaluated_without_a_request() -> None:
    replica = Replica(policy(action=HAS_TEAM))
    assert await replica.answer() == Answer(5, "policy p: a team")
    assert replica.queued == {"p": None}
    replica = Replica(policy(action=HAS_TEAM))
    assert await replica.answer(team="red") == Answer()
    assert replica.queued == {"p": ""}


async def test_a_hook_waits_for_an_approval_without_a_request() -> None:
    answer = await Replica(policy()).answer()
    assert answer.message.startswith("policy p: waits for approval by alice")
    assert answer.retry_seconds == 5


async def test_result_that_is_done_counts_as_long_as_its_rules_hold() -> None:
    made = policy(action=HAS_TEAM)
    upgrade, policy_of = occurrence_of(HOOK, request()), KnownPolicy.of(made)
    replica = Replica(made)
    replica.add_result(
        new_result(policy_of, result_name(policy_of.key, upgrade), upgrade, NOW, done="")
    )
    assert await replica.answer(team="red") == Answer()
    assert await replica.answer() == Answer(5, "policy p: a team")
    assert replica.queued == {}


async def test_a_policy_of_greater_order_starts_after_the_smaller_order_is_done() -> None:
    first, second = policy("first", action=HAS_TEAM), policy("second", order=1, action=HAS_TEAM)
    replica = Replica(first, second)
    answer = await replica.answer()
    assert answer.message == "policy first: a team; policy second: waits for policy first"
    assert replica.queued == {"first": None, "second": None}
    replica = Replica(first, second)
    assert await replica.answer(team="red") == Answer()
    assert replica.queued == {"first": "", "second": ""}


async def test_a_waiting_result_delays_a_policy_of_greater_order() -> None:
    first, second = policy("first"), policy("second", order=1, action=rules("true"))
    replica = Replica(first, second)
    upgrade = occurrence_of(HOOK, request())
    policy_of = KnownPolicy.of(first)
    result = new_result(policy_of, result_name(policy_of.key, upgrade), upgrade, NOW)
    status = {"phase": "Waiting", "message": "no", "since": "2026-01-01T00:00:00Z"}
    replica.add_result(LifecycleResult.read({**result.dump(), "status": status}))
    assert (
        await replica.answer()
    ).message == "policy first: no; policy second: waits for policy first"
    assert replica.queued == {"second": None}


async def test_a_hook_creates_the_result_of_work_before_it_answers() -> None:
    pods = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    job = {"job": {"template": {"template": {"spec": pods}}}}
    replica = Replica(policy("work", action=job), policy("rules", action=HAS_TEAM))
    with pytest.raises(ClientError, match="not connected"):
        await replica.answer()
    assert replica.queued == {}


WORK = {"job": {"template": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}}


async def test_results_of_smaller_orders_exist_before_that_of_work() -> None:
    replica = Replica(policy("approve"), policy("wipe", order=10, action=WORK))
    client = FakeClient(LifecycleResult)
    replica.engine.connect(client, "system")
    await replica.answer()
    created = [r.spec.policy.name for r in (await client.list(LifecycleResult)).items]
    assert sorted(created) == ["approve", "wipe"]


async def test_no_result_of_work_exists_if_that_of_a_smaller_order_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(policy("approve"), policy("wipe", order=10, action=WORK))
    client = FakeClient(LifecycleResult)
    replica.engine.connect(client, "system")
    create = client.create

    async def create_work(result: LifecycleResult, **options: Any) -> LifecycleResult:
        if result.spec.action == "approval":
            raise Forbidden(403, "Forbidden", "exceeded quota")
        return await create(result, **options)

    monkeypatch.setattr(client, "create", create_work)
    with pytest.raises(Forbidden):
        await replica.answer()
    assert (await client.list(LifecycleResult)).items == []


async def test_unknown_namespace_differs_from_a_namespace_without_labels() -> None:
    production = {"matchLabels": {"stage": "production"}}
    replica = Replica(policy(namespace=None, namespaceSelector=production))
    answer = await replica.answer()
    assert (answer.is_known, answer.message) == (False, "namespace team is not known yet")
    replica.engine.store.namespaces["team"] = {"stage": "test"}
    assert await replica.answer() == Answer()


@pytest.mark.parametrize("is_blind", [True, False], ids=["no policies", "no cluster"])
async def test_a_notice_that_core_calls_once_fails_until_policies_and_cluster_are_known(
    *, is_blind: bool
) -> None:
    once = policy(hook="AfterControlPlaneInitialized", action=WORK, onFailure="Continue")
    replica = Replica(once)
    if is_blind:
        replica.engine.store.synced.clear()
    answer = await answer_for(
        replica.engine, "AfterControlPlaneInitialized", request(), blocks=False
    )
    assert not answer.is_known


def result_of(name: str, done: str | None = None) -> PendingResult:
    return PendingResult(known(name), name, occurrence(), NOW, done)


async def test_results_are_created_after_the_answers() -> None:
    client, pending = FakeClient(LifecycleResult), PendingResults()
    await client.create(new_result(known("b"), "b", occurrence(), NOW))
    working = asyncio.create_task(pending.create(client))
    for name in "aabc":
        pending.add(result_of(name, done="fine"))
    await pending.all_created()
    created = [request for request in client.requests if request.method == "POST"]
    assert len(created) == 4
    results = (await client.list(LifecycleResult)).items
    done = {result.name: result.record.message if result.record else None for result in results}
    assert done == {"a": "fine", "b": None, "c": "fine"}
    working.cancel()


async def test_result_is_created_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capelin_lifecycle.reconcilers.pending._RETRY_SECONDS", 0.01)
    client, pending = FakeClient(LifecycleResult), PendingResults()

    class Flaky(Client):
        async def create(self, *arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await client.create(*arguments, **options)

    failures: list[ClientError] = [Unreachable("no answer"), Unreachable("no answer")]
    working = asyncio.create_task(pending.create(Flaky(client.config)))
    pending.add(result_of("a"))
    await pending.all_created()
    assert [result.name for result in (await client.list(LifecycleResult)).items] == ["a"]
    # A result that the API server rejects is dropped, and does not block others.
    failures.append(ClientError("refused"))
    pending.add(result_of("b"))
    pending.add(result_of("c"))
    await until(lambda: not pending.waiting)
    assert [result.name for result in (await client.list(LifecycleResult)).items] == ["a", "c"]
    working.cancel()


@pytest.mark.parametrize(("stage", "is_held"), [("production", True), ("test", False)])
async def test_selectors_hold_for_topologies(stage: str, *, is_held: bool) -> None:
    check = policy(
        "sizes",
        namespace=None,
        hook="ValidateTopology",
        clusterSelector={"matchLabels": {"stage": "production"}},
        action={"approvedPlan": {"required": True}},
    )
    replica = Replica(check)
    document = fake_request(ValidateTopology, sample_cluster("prod"))
    topology = read(ValidateTopology.request_type(), document)
    named = topology_cluster(topology)
    cluster = manifest(stage=stage)
    cluster["metadata"] |= {"name": named.cluster, "namespace": named.namespace, "uid": named.uid}
    replica.add_cluster(cluster)
    call: Any = SimpleNamespace(request=topology, settings=Settings(policy="sizes"))
    with pytest.raises(Failure) if is_held else nullcontext():
        await TopologyHandlers(replica.engine).validation(call)
