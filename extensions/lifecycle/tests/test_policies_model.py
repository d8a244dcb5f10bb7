"""Random edits, times and replicas: a gate opens only while each of its policies lets pass."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from capelin.api import Unstructured
from capelin.client import NotFound
from capelin_lifecycle.actions.approval import approval_annotation, next_opening
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api.actions import Window
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.policies.clusters import KnownCluster
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .policies_world import APPROVAL, JOB, PoliciesWorld

WINDOW: Unstructured = {"schedule": "0 22 * * *", "timeZone": "UTC", "duration": "6h"}
ACTIONS: dict[str, Unstructured] = {
    "approve": APPROVAL,
    "window": {"approval": {"window": WINDOW}},
    "job": JOB,
}
NAMES = st.sampled_from(list(ACTIONS))
ORDERS = st.sampled_from([0, 5])


class Policies(RuleBasedStateMachine):
    """Core, two replicas of which one leads, and persons who edit policies and the Cluster."""

    @initialize(hour=st.sampled_from([12, 23]))
    def begin(self, hour: int) -> None:
        """Begin while the window is closed, or while it is open."""
        self.runner = asyncio.Runner()
        self.world = PoliciesWorld(replicas=2)
        self.world.clock.now = self.world.clock.now.replace(hour=hour)
        self.topology = 0
        self.jobs: set[str] = set()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    # Policies

    @rule(name=NAMES, order=ORDERS)
    def add(self, name: str, order: int) -> None:
        self.run(self._add(name, order))

    async def _add(self, name: str, order: int) -> None:
        if await self.world.client.find(LifecyclePolicy, name, "team") is None:
            await self.world.add_policy(name, action=ACTIONS[name], order=order)

    @rule(name=NAMES, order=ORDERS)
    def edit_order(self, name: str, order: int) -> None:
        self.run(self._edit(name, {"order": order}))

    @rule(name=NAMES, selects=st.booleans())
    def select(self, name: str, *, selects: bool) -> None:
        labels = {"size": "small" if selects else "large"}
        self.run(self._edit(name, {"clusterSelector": {"matchLabels": labels}}))

    @rule(name=NAMES, suspend=st.booleans())
    def suspend(self, name: str, *, suspend: bool) -> None:
        self.run(self._edit(name, {"suspend": suspend}))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        with suppress(NotFound):
            self.run(self.world.client.delete(LifecyclePolicy, name, "team"))

    async def _edit(self, name: str, spec: Unstructured) -> None:
        with suppress(NotFound):
            await self.world.client.patch(LifecyclePolicy, name, "team", {"spec": spec})

    # The Cluster, persons and time

    @rule()
    def edit_topology(self) -> None:
        self.topology += 1
        variables = [{"name": "size", "value": self.topology}]
        self.run(self.world.edit_cluster(spec={"topology": {"variables": variables}}))

    @rule()
    def approve(self) -> None:
        self.run(self._approve())

    async def _approve(self) -> None:
        result = await self.world.result_of("approve")
        if result is not None:
            await self.world.approve("approve")

    @rule()
    def withdraw(self) -> None:
        annotations = {approval_annotation("approve"): None}
        self.run(self.world.edit_cluster(metadata={"annotations": annotations}))

    @rule(hours=st.sampled_from([1, 7, 24]))
    def wait(self, hours: int) -> None:
        self.world.clock.now += timedelta(hours=hours)

    @rule(type_=st.sampled_from(["Complete", "Failed"]))
    def end_jobs(self, type_: str) -> None:
        self.run(self._end_jobs(type_))

    async def _end_jobs(self, type_: str) -> None:
        status = {"conditions": [{"type": type_, "status": "True"}]}
        for job in (await self.world.workload.list(JOBS)).items:
            name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
            await self.world.workload.patch(
                JOBS, name, namespace, {"status": status}, subresource="status"
            )

    # The extension and core

    @rule(replica=st.integers(0, 1))
    def reconcile(self, replica: int) -> None:
        """One of the replicas leads."""
        self.run(self._reconcile(replica))

    async def _reconcile(self, replica: int) -> None:
        before = set(await self.world.jobs())
        await self.world.replicas[replica].reconcile()
        for job in set(await self.world.jobs()) - before - self.jobs:
            self.jobs.add(job)
            own = await self.world.client.find(LifecyclePolicy, "job", "team")
            for policy in await self._blocking():
                if own is not None and policy.spec.order < own.spec.order:
                    assert await self._holds(policy), f"the Job ran before {policy.name}"

    @rule(replica=st.integers(0, 1), fresh=st.booleans())
    def call(self, replica: int, *, fresh: bool) -> None:
        self.run(self._call(replica, fresh=fresh))

    async def _call(self, replica: int, *, fresh: bool = True) -> Answer:
        engine = self.world.replicas[replica]
        if fresh:
            await engine.sync()
        answer = await engine.call()
        if fresh and answer.retry_seconds == 0:
            for policy in await self._blocking():
                assert await self._holds(policy), f"the gate opens without {policy.name}"
        return answer

    async def _blocking(self) -> list[LifecyclePolicy]:
        """The policies that are for the Cluster now."""
        return [
            policy
            for policy in (await self.world.client.list(LifecyclePolicy, "team")).items
            if not policy.spec.suspend
            and policy.metadata.deletion_timestamp is None
            and policy.spec.cluster_selector.match_labels.get("size") in (None, "small")
        ]

    async def _holds(self, policy: LifecyclePolicy) -> bool:
        """Whether a policy lets the Cluster pass at this moment, by the objects themselves."""
        result = await self.world.result_of(policy.name)
        if policy.name == "window":
            opening = next_opening(Window.read(WINDOW), self.world.clock.now)
            return opening is not None and opening.is_open(self.world.clock.now)
        if result is None:
            return False
        if policy.name == "approve":
            cluster = await self.world.cluster()
            value = cluster.metadata.annotations.get(approval_annotation("approve"), "")
            topology = KnownCluster.of(cluster.dump()).occurrence.topology
            is_own = result.spec.topology in (None, topology)
            return is_own and value == f"{result.id[:8]}:alice"
        return result.record is not None and result.record.phase == "Done"

    # Properties

    @invariant()
    def each_attempt_of_a_job_has_one_result(self) -> None:
        if not hasattr(self, "world"):
            return
        results = self.run(self.world.client.list(LifecycleResult)).items
        names = [result.spec.policy.name for result in results]
        assert len(names) == len(set(names)), names

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.run(self._all_end())
        finally:
            self.runner.close()

    async def _all_end(self) -> None:
        """Remove what persons remove, and require that the gate opens."""
        answer = Answer()
        if (await self.world.client.find(LifecyclePolicy, "job", "team")) is not None:
            # A failed attempt is repeated when its policy changes.
            await self._edit("job", {"timeout": "3h"})
        for _ in range(12):
            self.world.clock.now = self.world.clock.now.replace(hour=23) + timedelta(seconds=30)
            await self._end_jobs("Complete")
            await self._approve()
            await self._reconcile(0)
            await self._reconcile(0)
            answer = await self._call(0)
            if answer.retry_seconds == 0:
                return
        raise AssertionError(answer.message)


profile = settings()
Policies.TestCase.settings = settings(
    stateful_step_count=30 if profile.derandomize else 50,
    max_examples=12 if profile.derandomize else profile.max_examples,
    suppress_health_check=(HealthCheck.too_slow,),
)
TestPolicies = Policies.TestCase
