"""Random edits, times and replicas: a gate opens only while each of its policies lets pass."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from capelin.api import Resource, Unstructured
from capelin.api.core import ConfigMap, Namespace
from capelin_lifecycle.actions.action import POLICY_LABEL
from capelin_lifecycle.actions.approval import approval_annotation, next_opening
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api.policies import POLICY_TYPES, Policy
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.policies.clusters import KnownCluster, WholeCluster
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.reconcilers.pending import PendingResults
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .policies_world import APPROVAL, HOOK, PoliciesWorld

ONCE = "AfterControlPlaneInitialized"
WINDOW: Unstructured = {"schedule": "0 22 * * *", "timeZone": "UTC", "duration": "6h"}
# Jobs that delete themselves would have no result.
TEMPLATE: Unstructured = {
    "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
    "ttlSecondsAfterFinished": 5,
}
ACTIONS: dict[str, Unstructured] = {
    "approve": APPROVAL,
    "everywhere": APPROVAL,
    "window": {"approval": {"window": WINDOW}},
    "job": {"job": {"template": TEMPLATE}},
    "migrate": {"job": {"template": TEMPLATE, "target": "Management"}},
    "cni": {"apply": {"sources": [{"configMap": "cni"}]}},
    "cni-v2": {"apply": {"sources": [{"configMap": "cni-v2"}]}},
}
ADDON: Unstructured = {"hook": ONCE, "onFailure": "Continue", "action": ACTIONS["job"]}
NETWORKS = tuple(Resource("example.com", v, "Network", "networks") for v in ("v1", "v1beta1"))
NAMES = st.sampled_from(list(ACTIONS))
NUMBER = st.integers(0, 2)
"""One of the policies of an example, which are few, so that they meet."""
ORDERS = st.sampled_from([0, 5])
REPLICA = st.integers(0, 1)
THEN = st.integers(0, 2)
"""How far the policies get after an event: nothing, a reconcile, or a call and reconciles."""


class PoliciesMachine(RuleBasedStateMachine):
    """Core, two replicas of which one leads, and edits of policies and of the Cluster."""

    @initialize(
        hour=st.sampled_from([12, 23]),
        names=st.lists(NAMES, min_size=1, max_size=3, unique=True),
        orders=st.lists(ORDERS, min_size=3, max_size=3),
    )
    def begin(self, hour: int, names: list[str], orders: list[int]) -> None:
        """Begin while the window is closed, or while it is open."""
        self.runner = asyncio.Runner()
        self.world = PoliciesWorld(replicas=2)
        self.world.clock.now = self.world.clock.now.replace(hour=hour)
        self.world.workload.install(*NETWORKS)
        self.topology = 0
        self.is_initialized = False
        self.jobs: dict[str, set[str]] = {}
        """The Jobs of each policy that ran, or run, for the Cluster."""
        self.ended: dict[str, str] = {}
        self.names = names
        self.run(self._begin(orders))

    def _name(self, number: int) -> str:
        return self.names[number % len(self.names)]

    async def _begin(self, orders: list[int]) -> None:
        patch = {"metadata": {"labels": {"stage": "production"}}}
        await self.world.client.patch(Namespace, "team", None, patch)
        for name in ("cni", "cni-v2"):
            for namespace in ("team", "system"):
                self.world.client.add(ConfigMap.of(name, namespace, data=_network("v1")))
        await self.world.add_policy("addon", **ADDON)
        for name, order in zip(self.names, orders, strict=False):
            await self._add(name, order)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def _then(self, then: int) -> None:
        if then == 2:
            self.run(self._call(0))
            self.run(self._reconcile(0))
        if then:
            self.run(self._reconcile(0))

    # Policies

    @rule(number=NUMBER, order=ORDERS, then=THEN)
    def add(self, number: int, order: int, then: int) -> None:
        self.run(self._add(self._name(number), order))
        self._then(then)

    async def _add(self, name: str, order: int, action: str = "") -> None:
        if await self._policy(name) is None:
            spec: Unstructured = {"action": ACTIONS[action or name], "order": order}
            if name == "everywhere":
                production = {"matchLabels": {"stage": "production"}}
                spec |= {"namespace": None, "namespaceSelector": production}
            await self.world.add_policy(name, **spec)

    @rule(number=NUMBER, order=ORDERS, then=THEN)
    def edit_order(self, number: int, order: int, then: int) -> None:
        self.run(self._edit(self._name(number), {"order": order}))
        self._then(then)

    @rule(number=NUMBER, selects=st.booleans(), then=THEN)
    def select(self, number: int, then: int, *, selects: bool) -> None:
        labels = {"size": "small" if selects else "large"}
        self.run(self._edit(self._name(number), {"clusterSelector": {"matchLabels": labels}}))
        self._then(then)

    @rule(number=NUMBER, hook=st.sampled_from([HOOK, "BeforeClusterDelete"]), then=THEN)
    def edit_hook(self, number: int, hook: str, then: int) -> None:
        self.run(self._edit(self._name(number), {"hook": hook}))
        self._then(then)

    @rule(number=NUMBER, suspend=st.booleans(), then=THEN)
    def suspend(self, number: int, then: int, *, suspend: bool) -> None:
        self.run(self._edit(self._name(number), {"suspend": suspend}))
        self._then(then)

    @rule(zone=st.sampled_from(["UTC", "Nowhere"]), then=THEN)
    def edit_zone(self, zone: str, then: int) -> None:
        """With an unknown time zone, the policy cannot be used."""
        self.run(self._edit_zone(zone))
        self._then(then)

    async def _edit_zone(self, zone: str) -> None:
        for policy in await self._policies():
            approval = policy.spec.action.approval
            if approval is not None and approval.window is not None:
                changed = {"approval": {"window": {"timeZone": zone}}}
                await self._edit(policy.name, {"action": changed})

    @rule(number=NUMBER, then=THEN)
    def remove(self, number: int, then: int) -> None:
        self.run(self._remove(self._name(number)))
        self._then(then)

    async def _remove(self, name: str) -> None:
        if (policy := await self._policy(name)) is not None:
            await self.world.client.delete(type(policy), name, policy.namespace)

    @rule(number=NUMBER, action=NAMES, order=ORDERS, then=THEN)
    def replace(self, number: int, action: str, order: int, then: int) -> None:
        """Delete a policy and create it with another action. No edit can change the action."""
        self.run(self._remove(self._name(number)))
        self._then(then)
        if self.run(self._policy(self._name(number))) is None:
            self.run(self._add(self._name(number), order, action))
            self.jobs.pop(self._name(number), None)

    @rule(name=st.sampled_from(["cni", "cni-v2"]), version=st.sampled_from(["", "v1", "v1beta1"]))
    def edit_manifests(self, name: str, version: str) -> None:
        """Change the version of the manifest, or remove it, and have it applied."""
        self.run(self._edit_manifests(name, version))

    async def _edit_manifests(self, name: str, version: str) -> None:
        self.topology += 1
        for namespace in ("team", "system"):
            data = {"data": _network(version)}
            await self.world.client.patch(ConfigMap, name, namespace, data)
        await self._edit(name, {"timeout": f"{self.topology + 60}m"})

    async def _edit(self, name: str, spec: Unstructured) -> None:
        if (policy := await self._policy(name)) is not None:
            await self.world.client.patch(type(policy), name, policy.namespace, {"spec": spec})

    async def _policy(self, name: str) -> Policy | None:
        return next((it for it in await self._policies() if it.name == name), None)

    async def _policies(self) -> list[Policy]:
        kinds = POLICY_TYPES.values()
        return [it for kind in kinds for it in (await self.world.client.list(kind)).items]

    # The Cluster, persons and time

    @rule(then=THEN)
    def edit_topology(self, then: int) -> None:
        self.topology += 1
        variables = [{"name": "size", "value": self.topology}]
        self.run(self.world.edit_cluster(spec={"topology": {"variables": variables}}))
        self._then(then)

    @rule(on=st.sampled_from([True, False, False]))
    def pause(self, *, on: bool) -> None:
        self.run(self.world.edit_cluster(spec={"paused": on}))

    @rule()
    def replace_cluster(self) -> None:
        """Delete the Cluster with all that it owns, and create another one of its name."""
        self.run(self._replace_cluster())

    async def _replace_cluster(self) -> None:
        client, before = self.world.client, await self.world.cluster()
        await client.delete(WholeCluster, "demo", "team")
        for result in (await client.list(LifecycleResult)).items:
            await client.delete(LifecycleResult, result.name, "team")
        for resource in (JOBS, NETWORKS[0]):
            for item in (await self.world.workload.list(resource)).items:
                metadata = item["metadata"]
                await self.world.workload.delete(resource, metadata["name"], metadata["namespace"])
        self.jobs, self.is_initialized = {}, False
        await self._reconcile(0)
        metadata = {"name": "demo", "namespace": "team", "labels": before.metadata.labels}
        client.add(WholeCluster.read({"metadata": metadata, "spec": before.spec}))

    @rule(name=st.sampled_from(["approve", "everywhere"]), then=THEN)
    def approve(self, name: str, then: int) -> None:
        self.run(self._approve(name))
        self._then(then)

    async def _approve(self, name: str) -> None:
        if await self.world.result_of(name) is not None:
            await self.world.approve(name)

    @rule()
    def withdraw(self) -> None:
        annotations = {approval_annotation("approve"): None}
        self.run(self.world.edit_cluster(metadata={"annotations": annotations}))

    @rule(number=NUMBER)
    def delete_result(self, number: int) -> None:
        """A person deletes a result, to have the action run again."""
        self.run(self._delete_result(self._name(number)))

    async def _delete_result(self, name: str) -> None:
        if (result := await self.world.result_of(name)) is not None:
            await self.world.client.delete(LifecycleResult, result.name, "team")
            self.jobs.pop(name, None)

    @rule(hours=st.sampled_from([1, 7, 24]))
    def wait(self, hours: int) -> None:
        self.world.clock.now += timedelta(hours=hours)

    @rule(type_=st.sampled_from(["Complete", "Failed"]))
    def end_jobs(self, type_: str) -> None:
        self.run(self._end_jobs(type_))

    async def _end_jobs(self, type_: str) -> None:
        status = {"conditions": [{"type": type_, "status": "True"}]}
        for client in (self.world.workload, self.world.client):
            for job in (await client.list(JOBS)).items:
                name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
                if name in self.ended:
                    continue
                result = await self._result(_policy_of(name))
                is_late = result is not None and result.record and result.record.phase == "Failed"
                self.ended[name] = "Late" if is_late else type_
                await client.patch(JOBS, name, namespace, {"status": status}, subresource="status")
                if "ttlSecondsAfterFinished" in job["spec"]:
                    await client.delete(JOBS, name, namespace)

    # The extension and core

    @rule(replica=REPLICA, times=st.integers(1, 2))
    def reconcile(self, replica: int, times: int) -> None:
        """One of the replicas leads."""
        for _ in range(times):
            self.run(self._reconcile(replica))

    async def _reconcile(self, replica: int) -> None:
        before, networks = await self._live_jobs(), await self._networks()
        await self.world.replicas[replica].reconcile()
        jobs = await self._live_jobs()
        for name in jobs.keys() - before.keys():
            await self._begun(name, jobs)
        await self._require_records(jobs)
        for name, label in networks.items() - (await self._networks()).items():
            if name not in await self._networks():
                await self._gone(label)

    async def _begun(self, name: str, jobs: dict[str, Unstructured]) -> None:
        """A Job was created."""
        policy = await self._policy(_policy_of(name))
        assert policy is not None
        assert policy.name == "addon" or await self._selects(policy), f"{name} is not for it"
        assert not (await self.world.cluster()).spec.get("paused"), f"{name} begins in a pause"
        former = self.jobs.setdefault(policy.name, set())
        for other in former:
            assert self.ended.get(other) != "Complete", f"{other} is complete, and {name} begins"
            assert other not in jobs or other in self.ended, f"{other} runs, and {name} begins"
        former.add(name)
        for smaller in await self._blocking() if policy.name != "addon" else []:
            if smaller.spec.order < policy.spec.order:
                assert await self._holds(smaller), f"{name} begins before {smaller.name}"

    async def _require_records(self, jobs: dict[str, Unstructured]) -> None:
        """Each Job is that of a result, by which it ends with its policy and Cluster."""
        results = (await self.world.client.list(LifecycleResult)).items
        known = {
            it.name for result in results for it in result.created if "job" in result.spec.action
        }
        assert jobs.keys() <= known, f"no result has the Jobs {jobs.keys() - known}"
        for result in results:
            names = [it.name for it in result.created if it.kind == "Job"]
            if result.record is not None and result.record.phase == "Failed" and names:
                if "was deleted while its Job ran" in result.record.message:
                    # Nothing looked at the Job between its end and that of its policy.
                    self.ended[names[-1]] = "Late"
                assert self.ended.get(names[-1]) != "Complete", f"{names[-1]} is complete"

    async def _gone(self, label: str) -> None:
        """An object of a policy was deleted."""
        for policy in await self._policies():
            apply, is_own = policy.spec.action.apply, KnownPolicy.of(policy).key.label == label
            if apply is None or not is_own or policy.metadata.deletion_timestamp is not None:
                continue
            for source in apply.sources:
                name, namespace = source.config_map or "", policy.namespace or "system"
                found = await self.world.client.get(ConfigMap, name, namespace)
                assert not any(found.data.values()), f"the object of {policy.name} is deleted"

    async def _live_jobs(self) -> dict[str, Unstructured]:
        clients = (self.world.workload, self.world.client)
        jobs = [job for client in clients for job in (await client.list(JOBS)).items]
        return {job["metadata"]["name"]: job for job in jobs}

    async def _networks(self) -> dict[str, str]:
        items = (await self.world.workload.list(NETWORKS[0])).items
        return {it["metadata"]["name"]: it["metadata"]["labels"][POLICY_LABEL] for it in items}

    @rule(
        replica=REPLICA, knows=st.sampled_from(["all", "some", "no namespace"]), dies=st.booleans()
    )
    def call(self, replica: int, knows: str, *, dies: bool) -> None:
        """Core calls the gate. The replica may die behind its answer."""
        self.run(self._call(replica, knows, dies=dies))

    async def _call(self, replica: int, knows: str = "all", *, dies: bool = False) -> Answer:
        called = self.world.replicas[replica]
        if knows != "some":
            await called.sync()
        if knows == "no namespace":
            called.engine.store.namespaces.clear()
        answer = await called.call(creates=not dies)
        if dies:
            called.engine.pending = PendingResults()
        if knows == "no namespace":
            called.engine.store.namespaces["team"] = {"stage": "production"}
        blocking = await self._blocking()
        if knows != "some" and answer.retry_seconds == 0 and blocking:
            assert not (await self.world.cluster()).spec.get("paused"), "the gate opens in a pause"
            for policy in blocking:
                assert await self._holds(policy), f"the gate opens without {policy.name}"
        return answer

    @rule(replica=REPLICA, is_blind=st.booleans())
    def initialize_once(self, replica: int, *, is_blind: bool) -> None:
        """Core calls this hook until it succeeds, and never again."""
        if not self.is_initialized:
            self.run(self._initialize_once(replica, is_blind=is_blind))

    async def _initialize_once(self, replica: int, *, is_blind: bool) -> None:
        called = self.world.replicas[replica]
        await called.sync()
        kinds = set(called.engine.store.synced)
        if is_blind:
            called.engine.store.synced.clear()
        answer = await called.call(ONCE, blocks=False)
        called.engine.store.synced |= kinds
        self.is_initialized = answer.is_known
        if answer.is_known:
            assert await self.world.result_of("addon") is not None, "the addon never begins"

    async def _blocking(self) -> list[Policy]:
        """The policies that are for the Cluster now."""
        return [policy for policy in await self._policies() if await self._selects(policy)]

    async def _selects(self, policy: Policy) -> bool:
        return (
            policy.spec.hook == HOOK
            and not policy.spec.suspend
            and policy.metadata.deletion_timestamp is None
            and policy.spec.cluster_selector.match_labels.get("size") in (None, "small")
        )

    async def _holds(self, policy: Policy) -> bool:
        """Whether a policy lets the Cluster pass at this moment, by the objects themselves."""
        result, approval = await self._result(policy.name), policy.spec.action.approval
        if approval is None:
            return (
                result is not None and result.record is not None and result.record.phase == "Done"
            )
        if approval.window is not None:
            if approval.window.time_zone != "UTC":
                return False
            opening = next_opening(approval.window, self.world.clock.now)
            return opening is not None and opening.is_open(self.world.clock.now)
        if result is None:
            return False
        cluster = await self.world.cluster()
        value = cluster.metadata.annotations.get(approval_annotation(policy.name), "")
        topology = KnownCluster.of(cluster.dump()).occurrence.topology
        is_own = result.spec.topology in (None, topology)
        return is_own and value == f"{result.id[:8]}:alice"

    async def _result(self, name: str) -> LifecycleResult | None:
        """The result of a policy for the gate and the present Cluster."""
        uid = (await self.world.cluster()).uid
        hook = ONCE if name == "addon" else HOOK
        results = (await self.world.client.list(LifecycleResult)).items
        return next(
            (
                result
                for result in results
                if (result.spec.policy.name, result.spec.hook) == (name, hook)
                and result.cluster_uid == uid
            ),
            None,
        )

    # Properties

    @invariant()
    def each_occurrence_has_one_result(self) -> None:
        if not hasattr(self, "world"):
            return
        results = self.run(self.world.client.list(LifecycleResult)).items
        names = [(result.spec.policy.name, result.spec.hook) for result in results]
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
        await self.world.edit_cluster(spec={"paused": None})
        await self._edit_zone("UTC")
        for name in ACTIONS:
            # A failed attempt is repeated when its policy changes.
            await self._edit(name, {"timeout": "300h"})
        for _ in range(12):
            self.world.clock.now = self.world.clock.now.replace(hour=23) + timedelta(seconds=30)
            await self._end_jobs("Complete")
            for name in ACTIONS:
                await self._approve(name)
            await self._reconcile(0)
            await self._reconcile(0)
            answer = await self._call(0)
            if answer.retry_seconds == 0:
                return
        raise AssertionError(answer.message)


def _network(version: str) -> dict[str, str]:
    """The data of a ConfigMap with the manifest of one object, or without it."""
    manifest = f"""\
apiVersion: example.com/{version}
kind: Network
metadata: {{name: pods, namespace: default}}
"""
    return {"network.yaml": manifest if version else ""}


def _policy_of(job: str) -> str:
    """The policy of a Job, by its name."""
    return job.rpartition("-")[0]


profile = settings()
PoliciesMachine.TestCase.settings = settings(
    stateful_step_count=30 if profile.derandomize else 50,
    max_examples=12 if profile.derandomize else profile.max_examples,
    suppress_health_check=(HealthCheck.too_slow,),
)
TestPolicies = PoliciesMachine.TestCase
