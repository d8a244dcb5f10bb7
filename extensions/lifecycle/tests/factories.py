"""Policies and occurrences for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from capelin.api import Resource
from capelin.client import Client
from capelin.testing.fake_client import Clock, FakeClient, cluster
from capelin_lifecycle.actions.action import Run
from capelin_lifecycle.api.names import HookName
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy, Policy
from capelin_lifecycle.api.results import LifecycleReservation, LifecycleResult, ResultStatus
from capelin_lifecycle.policies.clusters import Occurrence, result_name
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict
from capelin_lifecycle.reconcilers.records import new_result, record_after


def policy(name: str = "p", *, namespace: str | None = "team", **spec: Any) -> Policy:
    """A policy as the API server returns it. Keyword arguments are fields as in YAML."""
    fields = {
        "hook": "BeforeClusterUpgrade",
        "action": {"approval": {"approvers": ["alice"]}},
        **spec,
    }
    kind = ClusterLifecyclePolicy if namespace is None else LifecyclePolicy
    return kind.read(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-of-{name}",
                "generation": 1,
            },
            "spec": fields,
        }
    )


def known(name: str = "p", problem: str | None = None, **spec: Any) -> KnownPolicy:
    """A policy as the extension works with it."""
    return KnownPolicy.of(policy(name, **spec), problem)


def occurrence(hook: HookName = "BeforeClusterUpgrade", **fields: Any) -> Occurrence:
    """An upgrade of a Cluster, or what the fields say."""
    given: dict[str, Any] = {
        "namespace": "team",
        "cluster": "demo",
        "uid": "uid-of-demo",
        "from_version": "v1.33.13",
        "to_version": "v1.34.4",
        "target_version": "v1.34.4",
        **fields,
    }
    return Occurrence(hook=hook, **given)


class OneWorkload:
    """Stands for the clients of workload clusters: there is one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @asynccontextmanager
    async def client(self, cluster: str, namespace: str) -> AsyncGenerator[Client]:
        assert (cluster, namespace) == ("demo", "team")
        yield self._client


class World:
    """A management and a workload cluster in memory, with the Cluster `team/demo`."""

    def __init__(self, *workload_kinds: Resource) -> None:
        self.clock = Clock()
        kinds = (
            LifecyclePolicy,
            ClusterLifecyclePolicy,
            LifecycleReservation,
            LifecycleResult,
        )
        self.client = FakeClient(*kinds, clock=self.clock)
        self.workload = FakeClient(*workload_kinds, clock=self.clock)
        self.cluster = self.client.add(cluster("demo", "team"))

    def run(self, known_policy: KnownPolicy, **status: Any) -> Run:
        """The action of a policy for the Cluster, with the status of its result."""
        upgrade = replace(occurrence(known_policy.spec.hook), uid=self.cluster.uid)
        name = result_name(known_policy.key, upgrade)
        result = new_result(known_policy, name, upgrade, self.clock.now)
        if status:
            result.status = ResultStatus.read(
                {"phase": "Running", "since": "2026-01-01T00:00:00Z", **status}
            )
        return Run(
            client=self.client,
            workloads=cast("Any", OneWorkload(self.workload)),
            namespace="system",
            policy=known_policy,
            result=self.client.add(result),
            cluster=self.cluster,
            cluster_json=self.cluster.dump(),
            now=self.clock.now,
        )

    def again(self, run: Run, outcome: Verdict) -> Run:
        """The next run after an outcome was saved."""
        record = record_after(run.result.record, run.policy, outcome, self.clock.now)
        status = {"phase": outcome.phase, "since": "2026-01-01T00:00:00Z"}
        result = run.result.model_copy(
            update={"status": ResultStatus.read(status), "record": record}
        )
        return replace(run, result=result, now=self.clock.now)
