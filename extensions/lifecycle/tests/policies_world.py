"""Replicas of the extension on an API server in memory. Cluster API calls them for one Cluster."""

import asyncio
import logging
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from capelin.api import BaseObject, Unstructured
from capelin.api.core import ConfigMap, Namespace
from capelin.client import Config, ConfigError, NotFound
from capelin.controller import Context
from capelin.runtime import Failure
from capelin.testing.fake_client import Clock, FakeClient
from capelin_lifecycle.actions.job import JOBS, PODS
from capelin_lifecycle.api.names import HookName
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy, Policy
from capelin_lifecycle.api.results import LifecycleReservation, LifecycleResult
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import answer_for
from capelin_lifecycle.policies.clusters import WholeCluster
from capelin_lifecycle.reconcilers.policies import (
    ClusterLifecyclePolicyReconciler,
    LifecyclePolicyReconciler,
)
from capelin_lifecycle.reconcilers.results import ResultReconciler

from .factories import OneWorkload, policy

HOOK: HookName = "BeforeClusterUpgrade"
COPIED = (Namespace, WholeCluster, LifecyclePolicy, ClusterLifecyclePolicy, LifecycleResult)
KINDS = (LifecyclePolicy, ClusterLifecyclePolicy, LifecycleReservation, LifecycleResult)
APPROVAL: Unstructured = {"approval": {"approvers": ["alice"]}}
JOB: Unstructured = {
    "job": {"template": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}
}


class Recorder:
    """Forgets events."""

    def record(self, record: Any) -> None:
        del record


class Replica:
    """One replica: its copies, its hooks, and the reconcilers that run on the leader."""

    def __init__(self, world: "PoliciesWorld") -> None:
        def unreadable() -> Config:
            raise ConfigError("no credentials")

        self.world = world
        self.engine = Engine(unreadable, clock=world.clock)
        self.engine.connect(world.client, "system")
        store = self.engine.store
        store.synced.update({"LifecyclePolicy", "ClusterLifecyclePolicy", "Namespace", "Cluster"})
        self.results = ResultReconciler(store, self.engine.judge, "system", world.clock)
        self.results._workloads = OneWorkload(world.workload)  # type: ignore[assignment]
        self._known: dict[tuple[str, str], BaseObject] = {}
        recorder: Any = Recorder()
        self.ctx = Context(world.client, logging.getLogger(__name__), recorder)

    async def sync(self, *kinds: type[BaseObject]) -> None:
        """Bring the copies up to date."""
        for kind in kinds or COPIED:
            items = (await self.world.client.list(kind)).items
            now = {(kind.__name__, item.uid): item for item in items}
            for key in [it for it in self._known if it[0] == kind.__name__ and it not in now]:
                self.engine.store.note(self._known.pop(key), gone=True)
            for item in items:
                self.engine.store.note(item)
            self._known |= now

    async def call(
        self, hook: HookName = HOOK, *, blocks: bool = True, creates: bool = True
    ) -> Answer:
        """Call a hook as Cluster API does, and create the results that it leaves."""
        cluster = await self.world.cluster()
        fields: dict[str, Any] = {}
        if "Upgrade" in hook:
            fields = {
                "from_kubernetes_version": "v1.33.13",
                "to_kubernetes_version": cluster.spec["topology"]["version"],
            }
        request = SimpleNamespace(cluster_json=cluster.dump(), **fields)
        try:
            answer = await answer_for(self.engine, hook, request, blocks=blocks)
        except Failure as failure:
            return Answer(10, str(failure), is_known=False)
        if creates:
            await self.create_pending()
        return answer

    async def create_pending(self) -> None:
        """Create the results that the last answers did not wait for."""
        task = asyncio.create_task(self.engine.pending.create(self.world.client))
        await self.engine.pending.all_created()
        task.cancel()

    async def reconcile(self) -> None:
        """Reconcile each result and policy once."""
        await self.sync()
        for result in (await self.world.client.list(LifecycleResult)).items:
            # Another reconcile may have deleted it.
            with suppress(NotFound):
                await self.results.reconcile(self.ctx, result)
            await self.sync(LifecycleResult)
        registration: Any = None
        reconciler = LifecyclePolicyReconciler(self.engine.store, "system", registration)
        for found in (await self.world.client.list(LifecyclePolicy)).items:
            await reconciler.reconcile(self.ctx, found)
        everywhere = ClusterLifecyclePolicyReconciler(self.engine.store, "system")
        for found in (await self.world.client.list(ClusterLifecyclePolicy)).items:
            await everywhere.reconcile(self.ctx, found)
        await self.sync()


class PoliciesWorld:
    """A management cluster with the Cluster `team/demo`, which is upgraded."""

    def __init__(self, replicas: int = 1) -> None:
        self.clock = Clock()
        self.client = FakeClient(*KINDS, JOBS, PODS, clock=self.clock)
        self.workload = FakeClient(JOBS, PODS, ConfigMap, clock=self.clock)
        self.client.add(Namespace.of("team"))
        spec = {
            "topology": {"classRef": {"name": "small"}, "version": "v1.34.4"},
            "controlPlaneRef": {"apiGroup": "g", "kind": "K", "name": "demo"},
        }
        metadata = {"name": "demo", "namespace": "team", "labels": {"size": "small"}}
        self.client.add(WholeCluster.read({"metadata": metadata, "spec": spec}))
        self.replicas = [Replica(self) for _ in range(replicas)]

    async def cluster(self) -> WholeCluster:
        return await self.client.get(WholeCluster, "demo", "team")

    async def edit_cluster(self, **patch: Any) -> None:
        await self.client.patch(WholeCluster, "demo", "team", cast("Any", patch))

    async def add_policy(self, name: str, **spec: Any) -> Policy:
        made = policy(name, **{"hook": HOOK, **spec})
        made.metadata.uid = ""
        return await self.client.create(made)

    async def result_of(self, name: str) -> LifecycleResult | None:
        """The result of a policy that is not being deleted."""
        results = (await self.client.list(LifecycleResult)).items
        return next((it for it in results if it.spec.policy.name == name), None)

    async def phase(self, name: str) -> str:
        result = await self.result_of(name)
        return result.status.phase if result is not None and result.status else ""

    async def approve(self, name: str) -> None:
        """Approve by the code of the present result."""
        result = await self.result_of(name)
        assert result is not None
        key = f"approval.runtime.capelin.cluster.x-k8s.io/{name}"
        await self.edit_cluster(metadata={"annotations": {key: f"{result.id[:8]}:alice"}})

    async def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in (await self.workload.list(JOBS)).items]
