"""Answers of hooks before any reconciler has run, and the results that they queue."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.client import Client, ClientError, Config, ConfigError, Unreachable
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_lifecycle.api.policies import Policy
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import answer_for
from capelin_lifecycle.policies.clusters import WholeCluster, occurrence_of, result_name
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


async def test_another_replica_accepts_a_result_that_is_done() -> None:
    made = policy(action=HAS_TEAM)
    upgrade, policy_of = occurrence_of(HOOK, request()), KnownPolicy.of(made)
    replica = Replica(made)
    replica.add_result(
        new_result(policy_of, result_name(policy_of.key, upgrade), upgrade, NOW, done="")
    )
    assert await replica.answer() == Answer()
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
