"""Moves results: starts their actions, observes them, and cleans up after them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

from capelin.api import Unstructured, wire_name
from capelin.api.capi import Cluster
from capelin.client import ClientError, ClientOptions, ConfigError, WorkloadClients
from capelin.contract import DELETE_FOR_MOVE_ANNOTATION, PAUSED_ANNOTATION, paused
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Permission,
    Reconciler,
    Result,
    redact,
)

from capelin_lifecycle import in_place
from capelin_lifecycle.actions import RUNNERS
from capelin_lifecycle.actions.action import MANAGER, Cleanup, Run
from capelin_lifecycle.api.names import BLOCKING_HOOKS, GROUP
from capelin_lifecycle.api.policies import POLICY_TYPES
from capelin_lifecycle.api.results import (
    LifecycleResult,
    PolicyReference,
    ResultRecord,
    ResultStatus,
)
from capelin_lifecycle.decision import Facts, in_time, lets_pass
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence, PolicyKey
from capelin_lifecycle.policies.selection import KnownPolicy, matches
from capelin_lifecycle.policies.store import KnownResult, Store, Subject
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, waiting
from capelin_lifecycle.reconcilers.priority import HookPriority
from capelin_lifecycle.reconcilers.records import (
    RESULT_FINALIZER,
    abandoned,
    after_pause,
    has_action_of,
    has_started,
    is_decided,
    is_over,
    is_record,
    keeps_up,
    next_attempt,
    owner_reference,
    record_after,
    stays,
)
from capelin_lifecycle.sandbox.expressions import ExpressionError

Clock = Callable[[], datetime]

_UNDECIDED: Final = waiting("other Clusters are being admitted to the quota, trying again")

_CLEANUP_LIMIT: Final = timedelta(minutes=10)
"""Then the cleanup leaves objects in a workload cluster that does not answer."""
_CLEANUP_RETRY: Final = 10.0
_STEP_SECONDS: Final = 60
_MOST_SLOW_STEPS: Final = 3
"""How many steps of one policy run at once, where a step may take long: others need turns too."""
_MOST_QUICK_STEPS: Final = 3
"""How many of the other steps run at once. The same process answers hooks, which come first: with
a step for each of ten namespaces at once, the p99 of hooks doubled."""
_MOST_QUICK_STEPS_OF_A_NAMESPACE: Final = 1
"""So a namespace whose expressions take long does not hold up others."""
_CROWDED_SECONDS: Final = 3.0
_LONGEST: Final = 1024
_LOOKS_AT_COPIES: Final = frozenset({"approval", "quota"})
"""Actions for which the replica's copy of the Cluster is enough."""
_RARELY: Final = 300.0
"""How often to look at results that wait for a change of their Cluster, which wakes them."""
_WORKLOAD = ClientOptions(timeout=10.0, connect_timeout=5.0)


class ResultReconciler(Reconciler[LifecycleResult]):
    watches = (For(LifecycleResult),)
    permissions = (
        Permission(GROUP, ("lifecycleresults",), ("create", "delete", "patch")),
        Permission(GROUP, ("lifecyclereservations",), ("create", "get", "update")),
        Permission(GROUP, ("lifecyclepolicies", "clusterlifecyclepolicies"), ("get",)),
        Permission("cluster.x-k8s.io", ("clusters",), ("get", "list", "watch")),
        Permission("", ("namespaces",), ("list", "watch")),
        Permission("", ("secrets", "configmaps"), ("get",)),
        # Jobs whose target is the management cluster.
        Permission("batch", ("jobs",), ("create", "delete", "get")),
        Permission("", ("pods",), ("list",)),
        Permission("", ("pods/log",), ("get",)),
        Permission("", ("events",), ("list",)),
        *in_place.PERMISSIONS,
    )

    def __init__(
        self,
        store: Store,
        judge: Judge,
        namespace: str,
        clock: Clock = lambda: datetime.now(UTC),
        priority: HookPriority | None = None,
    ) -> None:
        self._store = store
        self._judge = judge
        self._namespace = namespace
        self._clock = clock
        self._priority = priority or HookPriority()
        self._workloads: WorkloadClients | None = None
        self._slow_steps: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._quick_steps = asyncio.Semaphore(_MOST_QUICK_STEPS)
        self._quick_steps_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
        self._workloads = WorkloadClients(ctx.client, manager=MANAGER, options=_WORKLOAD)
        try:
            with self._store.listening(self._changed):
                yield
        finally:
            await self._workloads.close()

    def _changed(self, subject: Subject, key: ObjectKey, policy: PolicyKey | None) -> None:
        results: list[KnownResult] = []
        if subject == "registration":
            return
        if subject == "policy" and policy is not None:
            results = self._store.results_of_policy(policy)
        elif subject == "cluster":
            results = [
                result
                for result in self._store.results_of_cluster(key)
                if not (_has_ended(result) and self._is_current(result, result.target))
            ]
        elif (changed := self._store.result(key)) is not None:
            # Those that wait for it.
            results = [
                result
                for result in self._store.results_of_cluster(changed.cluster_key)
                if result.occurrence == changed.occurrence and result.order > changed.order
            ]
        for result in results:
            self.wake(result.key)

    def _is_current(self, result: KnownResult | LifecycleResult, target: str | None) -> bool:
        """Whether its own Cluster exists, with the version that it is about, by its copy."""
        known = self._known_cluster(result)
        return known is not None and target in (None, known.occurrence.target_version)

    def _known_cluster(self, result: KnownResult | LifecycleResult) -> KnownCluster | None:
        """The copy of its Cluster, if its owner reference shows that it is that one."""
        if isinstance(result, KnownResult):
            key = result.cluster_key
        else:
            key = ObjectKey(result.namespace or "", result.spec.cluster.name)
        known = self._store.cluster(key) if self._store.clusters is not None else None
        is_own = known is not None and known.occurrence.uid == result.cluster_uid
        return known if is_own else None

    def group(self, obj: LifecycleResult, /) -> str | None:
        """The namespace: its policies may take long."""
        return obj.namespace

    async def reconcile(self, ctx: Context, result: LifecycleResult, /) -> Result:
        if result.spec.action in RUNNERS:
            await self._priority.turn()
            return await self._reconcile(ctx, result)
        free = asyncio.Semaphore(_MOST_QUICK_STEPS_OF_A_NAMESPACE)
        async with (
            self._quick_steps_of.setdefault(result.namespace or "", free),
            self._quick_steps,
        ):
            await self._priority.turn()
            return await self._reconcile(ctx, result)

    async def _reconcile(self, ctx: Context, result: LifecycleResult) -> Result:
        spec, policy = result.spec, self._policy(result.spec.policy)
        is_deleted = result.metadata.deletion_timestamp is not None
        if DELETE_FOR_MOVE_ANNOTATION in result.metadata.annotations:
            # It exists in another management cluster, and so do the objects of its action.
            if is_deleted:
                # A finalizer that is added while clusterctl deletes it is not clusterctl's.
                await ctx.remove_finalizer(result, RESULT_FINALIZER)
            return Done()
        is_current = not is_deleted and self._is_current(result, spec.target_version)
        if is_current and policy is not None and stays(result, policy):
            await self._show_end(ctx, result)
            return Done()
        cluster_json = self._copy(result) if is_current else None
        if cluster_json is None:
            cluster_json = await _read_cluster(ctx, result)
        cluster = Cluster.read(cluster_json) if cluster_json is not None else None
        pause = None if cluster is None else _pause(result, cluster, policy)
        if pause is not None:
            if not is_deleted:
                await self._show_pause(ctx, result, pause)
            return Done()
        if is_deleted:
            return await self._delete(ctx, result, policy, cluster)
        return await self._reconcile_normal(ctx, result, policy, cluster_json)

    async def _reconcile_normal(
        self,
        ctx: Context,
        result: LifecycleResult,
        policy: KnownPolicy | None,
        cluster_json: Unstructured | None,
    ) -> Result:
        """Take the next step of a result that is neither paused nor deleted."""
        cluster = Cluster.read(cluster_json) if cluster_json is not None else None
        if cluster is None and result.cluster_uid is None:
            # It was restored, and its Cluster may be restored later.
            return Done()
        if cluster is None or cluster_json is None or self._is_outdated(result, cluster):
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
            return Done()
        if policy is None:
            return await self._without_policy(ctx, result, cluster)
        if not stays(result, policy) and self._has_no_place(result, policy, cluster_json):
            # The next call of the hook creates a new result.
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
            return Done()
        if not self._is_selected(result, policy, cluster_json) and (
            keeps_up(result) or is_over(result)
        ):
            await self._show_unselected(ctx, result)
            return Done()
        if result.cluster_uid is None:
            await _adopt(ctx, result, cluster)
        run = Run(
            client=ctx.client,
            workloads=self._connected_workloads(),
            result=result,
            cluster=cluster,
            namespace=self._namespace,
            policy=policy,
            cluster_json=cluster_json,
            now=self._clock(),
        )
        return await self._advance(run, ctx)

    async def _advance(self, run: Run, ctx: Context) -> Result:
        """Take the next step of the action, and save its progress."""
        result, policy = run.result, run.policy
        if stays(result, policy):
            await self._show_end(ctx, result)
            return Done()
        if result.record is not None and result.record.phase is not None:
            await _write_record(ctx, result, next_attempt(result.record, policy))
        if (resumed := after_pause(result, self._clock())) is not None:
            await _write_record(ctx, result, resumed)
        if result.spec.action in RUNNERS:
            await ctx.add_finalizer(result, RESULT_FINALIZER)
        if policy.spec.action.name not in RUNNERS:
            outcome = await self._verdict(run)
        else:
            steps = self._slow_steps.setdefault(policy.uid, asyncio.Semaphore(_MOST_SLOW_STEPS))
            if steps.locked():
                return After(_CROWDED_SECONDS)
            async with steps:
                outcome = await self._verdict(run)
        await self._save(ctx, run, outcome)
        if outcome.phase in ("Waiting", "Running"):
            rarely = outcome.only_by_cluster
            return After(_RARELY if rarely else float(outcome.retry_seconds))
        return Done()

    def _policy(self, reference: PolicyReference) -> KnownPolicy | None:
        return self._store.policy(reference.kind, reference.namespace, reference.name)

    def _copy(self, result: LifecycleResult) -> Unstructured | None:
        """The copy of its Cluster if that is enough for the action. It has no status."""
        known = self._known_cluster(result)
        is_enough = result.spec.action in _LOOKS_AT_COPIES or is_over(result)
        return known.manifest if known is not None and is_enough else None

    async def _without_policy(
        self, ctx: Context, result: LifecycleResult, cluster: Cluster
    ) -> Result:
        """The policy is being deleted, or the store is late: ask the API server."""
        reference = result.spec.policy
        resource = POLICY_TYPES[reference.kind].resource
        found = await ctx.client.find(resource, reference.name, reference.namespace)
        metadata: dict[str, Any] = found["metadata"] if found is not None else {}
        if found is not None and "deletionTimestamp" not in metadata:
            return After(1.0)
        if DELETE_FOR_MOVE_ANNOTATION in (metadata.get("annotations") or {}):
            return Done()
        if found is None and (result.cluster_uid is None or is_record(result)):
            # A restore may bring the policy. Without it, nothing happens.
            return Done()
        if not is_record(result):
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
            return Done()
        return await self._release(ctx, result, cluster)

    async def _release(self, ctx: Context, result: LifecycleResult, cluster: Cluster) -> Result:
        """Delete what the action of a deleted policy created, and keep the record."""
        if (record := abandoned(result, self._clock())) is not None:
            await _write_record(ctx, result, record)
        if not await self._clean_up(ctx, result, cluster):
            return After(_CLEANUP_RETRY)
        await ctx.remove_finalizer(result, RESULT_FINALIZER)
        await self._show_end(ctx, result)
        return Done()

    def _connected_workloads(self) -> WorkloadClients:
        if self._workloads is None:
            raise RuntimeError("the reconciler works only in its lifespan")
        return self._workloads

    async def _verdict(self, run: Run) -> Verdict:
        """The progress of the policy now. Any obstacle is a reason to wait."""
        policy, result, known = run.policy, run.result, KnownCluster.of(run.cluster_json)
        spec, record = result.spec, result.record
        hook = _occurrence_of(result, known)
        facts = Facts(
            called=spec.called or result.metadata.creation_timestamp or run.now,
            result_id=result.id,
            earlier=self._earlier(result, hook),
        )
        try:
            # A step that blocks for ever must not take the turn of the others.
            async with asyncio.timeout(_STEP_SECONDS):
                if facts.earlier is None and not is_decided(result) and not has_started(result):
                    facts = replace(facts, earlier=await self._closed(run, known, hook))
                verdict = await self._judge.verdict(
                    policy, known, hook, facts=facts, now=run.now, client=run.client
                )
                if verdict is not None:
                    return verdict
                runner = RUNNERS.get(policy.spec.action.name)
                if runner is None:
                    return _UNDECIDED
                outcome = await runner.reconcile(run)
                return in_time(policy, outcome, record and record.started, run.now)
        except (ClientError, ConfigError) as error:
            return waiting(redact(str(error)), SLOW_SECONDS)
        except TimeoutError:
            return waiting("a step of the action takes more than a minute", SLOW_SECONDS)
        except ExpressionError as error:
            return waiting(f"an expression has no value: {error}", SLOW_SECONDS)

    def _earlier(self, result: LifecycleResult, hook: Occurrence) -> str | None:
        """A policy of a smaller order that is not done yet."""
        own = self._store.result(ObjectKey(result.namespace or "", result.name))
        if own is None:
            return None
        results = {
            other.policy: other
            for other in self._store.results_of_cluster(own.cluster_key)
            if other.occurrence == own.occurrence and other.is_about(hook.uid)
        }
        labels = self._store.namespaces.get(hook.namespace)
        names: list[tuple[int, str, str]] = []
        for policy in self._store.policies(result.spec.hook):
            other = results.get(policy.key)
            if other is not None:
                is_earlier = not policy.spec.suspend and other.order < own.order
                view = other.view
            else:
                # Its result is about to be created, or the API server has rejected it. Core repeats
                # the calls of a blocking hook. Of another one, a later policy never gets a result.
                view, is_repeated = None, result.spec.hook in BLOCKING_HOOKS
                is_earlier = (
                    policy.problem is None
                    and policy.spec.order < own.order
                    and (is_repeated or policy.existed_at(result.spec.called))
                    and matches(policy, hook, labels)
                )
            if is_earlier and not lets_pass(policy, view):
                names.append((policy.spec.order, policy.namespace or "", policy.name))
        return min(names)[2] if names else None

    async def _closed(self, run: Run, known: KnownCluster, hook: Occurrence) -> str | None:
        """A policy of a smaller order that was done, and does not hold now."""
        own = self._store.result(ObjectKey(run.result.namespace or "", run.result.name))
        for other in self._store.results_of_cluster(own.cluster_key) if own else ():
            key = other.policy
            policy = self._store.policy(key.kind, key.namespace, key.name)
            if (
                own is None
                or policy is None
                or policy.spec.action.name in RUNNERS
                or policy.spec.suspend
                or other.order >= own.order
                or other.occurrence != own.occurrence
            ):
                continue
            facts = Facts(called=other.called or run.now, result_id=other.id)
            verdict = await self._judge.verdict(
                policy, known, hook, facts=facts, now=run.now, client=run.client
            )
            if not other.is_for(hook.topology) or not lets_pass(policy, verdict):
                return policy.name
        return None

    async def _save(self, ctx: Context, run: Run, outcome: Verdict) -> None:
        result, policy = run.result, run.policy
        before, now = result.status, self._clock()
        record = record_after(result.record, policy, outcome, now)
        if record is not None and record != result.record:
            # First: a status without its record does not survive a move.
            await _write_record(ctx, result, record)
        changed = before is None or before.phase != outcome.phase
        message = outcome.message[:_LONGEST]
        status = ResultStatus(
            phase=outcome.phase,
            message=message,
            since=now if before is None or changed else before.since,
            retry_seconds=outcome.retry_seconds,
        )
        await ctx.patch_status(result, status)
        if before is None and outcome.phase == "Done":
            # The Cluster has not waited.
            return
        if changed or (before is not None and before.message != message):
            warn = outcome.phase == "Failed"
            text = f"{result.spec.hook}: policy {policy.name}: {message or outcome.phase.lower()}"
            reason = f"LifecyclePolicy{outcome.phase}"
            ctx.event(run.cluster, "Warning" if warn else "Normal", reason, text)

    async def _show_end(self, ctx: Context, result: LifecycleResult) -> None:
        """Write the status of a result that is over: a move and a restore do not bring it."""
        record, status = result.record, result.status
        if record is None or record.phase is None:
            return
        if status is not None and (status.phase, status.message) == (record.phase, record.message):
            return
        ended = ResultStatus(
            phase=record.phase, message=record.message, since=record.finished or self._clock()
        )
        await ctx.patch_status(result, ended)

    async def _show_pause(self, ctx: Context, result: LifecycleResult, pause: str) -> None:
        if is_over(result):
            await self._show_end(ctx, result)
            return
        before = result.status
        is_new = before is None or before.phase != "Paused"
        since = self._clock() if before is None or is_new else before.since
        await ctx.patch_status(result, ResultStatus(phase="Paused", message=pause, since=since))

    async def _delete(
        self,
        ctx: Context,
        result: LifecycleResult,
        policy: KnownPolicy | None,
        cluster: Cluster | None,
    ) -> Result:
        """Clean up if the policy goes. Do not if only this occurrence is over."""
        runner = RUNNERS.get(result.spec.action)
        is_over = policy is None or policy.spec.action.name != result.spec.action
        if (
            runner is not None
            and (is_over or not runner.keeps_up)
            and not await self._clean_up(ctx, result, cluster)
        ):
            return After(_CLEANUP_RETRY)
        await ctx.remove_finalizer(result, RESULT_FINALIZER)
        return Done()

    async def _clean_up(
        self, ctx: Context, result: LifecycleResult, cluster: Cluster | None
    ) -> bool:
        """Delete the objects that the action created. Returns whether that is complete."""
        runner = RUNNERS.get(result.spec.action)
        if runner is None or RESULT_FINALIZER not in result.metadata.finalizers:
            return True
        has_workload = cluster is not None and cluster.metadata.deletion_timestamp is None
        try:
            async with asyncio.timeout(_STEP_SECONDS):
                workloads = self._connected_workloads()
                await runner.cleanup(Cleanup(ctx.client, workloads, result, has_workload))
        except (ClientError, ConfigError, TimeoutError) as error:
            record = result.record
            ended = record.finished if record is not None else None
            since = result.metadata.deletion_timestamp or ended or self._clock()
            if datetime.now(UTC) - since < _CLEANUP_LIMIT:
                ctx.log.info("Cleaning up is tried again: %s", redact(str(error)))
                return False
            text = f"objects that policy {result.spec.policy.name} created remain: {error}"
            ctx.event(cluster or result, "Warning", "LifecyclePolicyLeftObjects", text)
        return True

    def _is_selected(
        self, result: LifecycleResult, policy: KnownPolicy, cluster_json: Unstructured
    ) -> bool:
        """Whether the policy is still for the result's hook and Cluster, or may be."""
        known = KnownCluster.of(cluster_json)
        occurrence = _occurrence_of(result, known)
        if occurrence.namespace not in self._store.namespaces:
            return policy.spec.hook == occurrence.hook
        # A suspended policy keeps its results.
        active = replace(policy, spec=policy.spec.model_copy(update={"suspend": False}))
        return matches(active, occurrence, self._store.namespaces[occurrence.namespace])

    def _has_no_place(
        self, result: LifecycleResult, policy: KnownPolicy, cluster_json: Unstructured
    ) -> bool:
        """Whether it is for another action or topology, or for a Cluster that is not selected."""
        topology = KnownCluster.of(cluster_json).occurrence.topology
        if not has_action_of(result, policy) or result.spec.topology not in (None, topology):
            return True
        return not has_started(result) and not self._is_selected(result, policy, cluster_json)

    async def _show_unselected(self, ctx: Context, result: LifecycleResult) -> None:
        """Show that the action ends here. Its objects stay until the policy goes."""
        record = result.record
        phase = record.phase if record is not None and record.phase is not None else "Waiting"
        before = result.status
        since = self._clock() if before is None or before.phase != phase else before.since
        message = "the policy no longer selects the Cluster: its objects stay as they are"
        await ctx.patch_status(result, ResultStatus(phase=phase, message=message, since=since))

    def _is_outdated(self, result: LifecycleResult, cluster: Cluster) -> bool:
        """Whether the upgrade that it is about was reverted, or another one has followed.

        A result that keeps objects up to date lists them, and stays until a later result does.
        """
        target, topology = result.spec.target_version, cluster.spec.topology
        if target is None or topology is None or topology.version == target:
            return False
        runner = RUNNERS.get(result.spec.action)
        if runner is None or not runner.keeps_up or not result.created:
            return True
        policy = _key_of(result.spec.policy)
        return any(
            other.policy == policy
            and other.key.name != result.name
            and other.is_about(cluster.uid)
            and other.view is not None
            and other.view.phase == "Done"
            and other.target == topology.version
            for other in self._store.results_of_cluster(
                ObjectKey(result.namespace or "", result.spec.cluster.name)
            )
        )


def _occurrence_of(result: LifecycleResult, known: KnownCluster) -> Occurrence:
    """The occurrence of a result, for its Cluster as it is."""
    spec = result.spec
    return replace(
        known.occurrence,
        hook=spec.hook,
        from_version=spec.from_version,
        to_version=spec.to_version,
    )


async def _read_cluster(ctx: Context, result: LifecycleResult) -> Unstructured | None:
    """Its Cluster, and no other one of the same name."""
    found = await ctx.client.find(Cluster.resource, result.spec.cluster.name, result.namespace)
    if found is None or not result.is_about(found["metadata"]["uid"]):
        return None
    found["metadata"].pop("managedFields", None)
    return found


async def _adopt(ctx: Context, result: LifecycleResult, cluster: Cluster) -> None:
    """Give a result that was restored the owner that a restore drops."""
    owner = owner_reference(cluster.name, cluster.uid)
    metadata = {"uid": result.uid, "ownerReferences": [owner.dump()]}
    fresh = await ctx.client.patch(
        LifecycleResult, result.name, result.namespace, {"metadata": metadata}
    )
    result.metadata = fresh.metadata


async def _write_record(ctx: Context, result: LifecycleResult, record: ResultRecord) -> None:
    dumped = record.dump()
    # Remove the fields that the record lacks, by any manager: after a move, clusterctl is one.
    fields = {name: dumped.get(wire_name(name)) for name in ResultRecord.model_fields}
    patch = {
        "metadata": {"uid": result.uid},
        "record": {wire_name(name): value for name, value in fields.items()},
    }
    fresh = await ctx.client.patch(LifecycleResult, result.name, result.namespace, patch)
    result.metadata, result.record = fresh.metadata, fresh.record


def _pause(result: LifecycleResult, cluster: Cluster, policy: KnownPolicy | None) -> str | None:
    """Why the result is paused. `None` if it is not."""
    pauses = [paused(result, cluster), paused(cluster, None)]
    reasons = [pause.message for pause in pauses if pause.status == "True"]
    if policy is not None and policy.is_paused:
        reasons.append(f"policy {policy.name} has the {PAUSED_ANNOTATION} annotation")
    return ", ".join(reasons) or None


def _key_of(reference: PolicyReference) -> PolicyKey:
    return PolicyKey(reference.kind, reference.namespace, reference.name)


def _has_ended(result: KnownResult) -> bool:
    return result.view is not None and result.view.phase in ("Done", "Failed")
