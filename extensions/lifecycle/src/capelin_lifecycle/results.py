"""Moves results: starts their actions, observes them, and cleans up after them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from capelin.api import ObjectMeta, OwnerReference, format_duration
from capelin.api.capi import Cluster
from capelin.client import ClientError, ClientOptions, ConfigError, WorkloadClients
from capelin.contract import CLUSTER_NAME_LABEL, label_value
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

from capelin_lifecycle.actions import (
    CLUSTER_LABEL,
    MANAGER,
    POLICY_LABEL,
    RUNNERS,
    SLOW_SECONDS,
    ActionRunner,
    Cleanup,
    Outcome,
    Run,
    failed,
    waiting,
)
from capelin_lifecycle.actions.counting import CountedCluster
from capelin_lifecycle.api import (
    GROUP,
    UPGRADE_HOOKS,
    ClusterLifecyclePolicy,
    ClusterReference,
    LifecyclePolicy,
    LifecycleResult,
    PolicyReference,
    Quota,
    ResultSpec,
    ResultStatus,
)
from capelin_lifecycle.clusters import KnownCluster, counted_copies
from capelin_lifecycle.expressions import ExpressionError
from capelin_lifecycle.occurrence import Occurrence
from capelin_lifecycle.selection import KnownPolicy
from capelin_lifecycle.store import KnownResult, Store, Subject

Clock = Callable[[], datetime]

FINALIZER: Final = f"{GROUP}/result"
_CLEANUP_LIMIT: Final = timedelta(minutes=10)
"""After so long, what an unreachable workload cluster still has is left to it."""
_CLEANUP_RETRY: Final = 10.0
_STEP_SECONDS: Final = 60
_SLOW: Final = frozenset({"apply", "backup", "http", "job"})
_MOST_SLOW_STEPS: Final = 3
"""How many steps of one policy run at once, where a step may take long: others need turns too."""
_CROWDED_SECONDS: Final = 3.0
_LONGEST: Final = 1024
_WORKLOAD = ClientOptions(timeout=10.0, connect_timeout=5.0)


def new_result(policy: KnownPolicy, name: str, occurrence: Occurrence) -> LifecycleResult:
    """The result of a policy for an occurrence, which starts its action."""
    owner = OwnerReference(
        api_version=Cluster.resource.api_version,
        kind=Cluster.resource.kind,
        name=occurrence.cluster,
        uid=occurrence.uid,
    )
    return LifecycleResult(
        metadata=ObjectMeta(
            name=name,
            namespace=occurrence.namespace,
            labels={
                CLUSTER_NAME_LABEL: label_value(occurrence.cluster),
                CLUSTER_LABEL: occurrence.uid,
                POLICY_LABEL: policy.uid,
            },
            owner_references=[owner],
        ),
        spec=ResultSpec(
            policy=PolicyReference(
                kind=policy.kind, namespace=policy.namespace, name=policy.name, uid=policy.uid
            ),
            cluster=ClusterReference(name=occurrence.cluster, uid=occurrence.uid),
            hook=occurrence.hook,
            from_version=occurrence.from_version,
            to_version=occurrence.to_version,
            target_version=occurrence.target_version if occurrence.hook in UPGRADE_HOOKS else None,
            action=policy.spec.action.name,
            order=policy.spec.order,
        ),
    )


class ResultReconciler(Reconciler[LifecycleResult]):
    """Reconciles results."""

    watches = (For(LifecycleResult),)
    permissions = (
        Permission(GROUP, ("lifecycleresults",), ("create", "delete")),
        Permission(GROUP, ("lifecyclepolicies", "clusterlifecyclepolicies"), ("get",)),
        Permission("cluster.x-k8s.io", ("clusters",), ("get", "list", "watch")),
        Permission("", ("namespaces",), ("get", "list", "watch")),
        Permission("", ("secrets", "configmaps"), ("get",)),
        # Jobs whose target is the management cluster.
        Permission("batch", ("jobs",), ("create", "delete", "get")),
        Permission("", ("pods",), ("list",)),
        Permission("", ("pods/log",), ("get",)),
    )

    def __init__(
        self, store: Store, namespace: str, clock: Clock = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._workloads: WorkloadClients | None = None
        self._slow_steps: Counter[str] = Counter()

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
        """Clients of workload clusters, and the store's changes."""
        self._workloads = WorkloadClients(ctx.client, manager=MANAGER, options=_WORKLOAD)
        self._store.subscribe(self._changed)
        try:
            yield
        finally:
            self._store.unsubscribe(self._changed)
            await self._workloads.close()

    def _changed(self, subject: Subject, key: ObjectKey, uid: str) -> None:
        results: list[KnownResult] = []
        if subject == "policy":
            results = self._store.results_of_policy(uid)
        elif subject == "cluster":
            results = self._store.results_of_cluster(uid)
        elif (changed := self._store.result(key)) is not None:
            # Those that wait for it.
            results = [
                result
                for result in self._store.results_of_cluster(changed.cluster_uid)
                if result.occurrence == changed.occurrence and result.order > changed.order
            ]
        for result in results:
            self.wake(result.key)

    async def reconcile(self, ctx: Context, result: LifecycleResult, /) -> Result:
        """Reconcile one result."""
        spec = result.spec
        cluster_json = await ctx.client.find(Cluster.resource, spec.cluster.name, result.namespace)
        cluster = None
        if cluster_json is not None and cluster_json["metadata"]["uid"] == spec.cluster.uid:
            cluster_json["metadata"].pop("managedFields", None)
            cluster = Cluster.read(cluster_json)
        policy = self._store.policy(spec.policy.kind, spec.policy.namespace, spec.policy.name)
        if policy is not None and policy.uid != spec.policy.uid:
            policy = None
        if result.metadata.deletion_timestamp is not None:
            return await self._delete(ctx, result, policy, cluster)
        if cluster is None or self._is_over(result, cluster):
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
            return Done()
        if policy is None:
            return await self._without_policy(ctx, result)
        await ctx.add_finalizer(result, FINALIZER)
        run = self._run(ctx, result, policy, cluster, cluster_json or {})
        async with self._turn(policy) as is_free:
            if not is_free:
                return After(_CROWDED_SECONDS)
            outcome = await self._outcome(run)
        if outcome is not None:
            await self._save(ctx, result, policy, cluster, outcome)
            if outcome.phase in ("Waiting", "Running"):
                return After(float(outcome.retry_seconds))
        return Done()

    @asynccontextmanager
    async def _turn(self, policy: KnownPolicy) -> AsyncGenerator[bool]:
        """Whether a step of a policy may run now."""
        if policy.spec.action.name not in _SLOW:
            yield True
        elif self._slow_steps[policy.uid] >= _MOST_SLOW_STEPS:
            yield False
        else:
            self._slow_steps[policy.uid] += 1
            try:
                yield True
            finally:
                self._slow_steps[policy.uid] -= 1

    async def _without_policy(self, ctx: Context, result: LifecycleResult) -> Result:
        """The store may be late, or not know any policy: ask the API server."""
        reference = result.spec.policy
        kind = RESOURCES[reference.kind]
        found = await ctx.client.find(kind, reference.name, reference.namespace)
        metadata: dict[str, Any] = found["metadata"] if found is not None else {}
        if metadata.get("uid") == reference.uid and "deletionTimestamp" not in metadata:
            return After(1.0)
        await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
        return Done()

    def _run(
        self,
        ctx: Context,
        result: LifecycleResult,
        policy: KnownPolicy,
        cluster: Cluster,
        cluster_json: dict[str, Any],
    ) -> Run:
        return Run(
            client=ctx.client,
            workloads=self._connected_workloads(),
            namespace=self._namespace,
            policy=policy,
            result=result,
            cluster=cluster,
            cluster_json=cluster_json,
            namespace_labels=self._store.namespaces,
            counted=self._counting(policy, cluster_json),
            turn=self._store.turn(policy.uid),
            now=self._clock(),
        )

    def _counting(
        self, policy: KnownPolicy, cluster_json: dict[str, Any]
    ) -> Callable[[Quota], Sequence[CountedCluster]] | None:
        known = self._store.clusters
        if known is None:
            return None
        namespaces = self._store.namespaces
        return lambda quota: counted_copies(
            known, KnownCluster.of(cluster_json), policy, quota, namespaces
        )

    def _connected_workloads(self) -> WorkloadClients:
        if self._workloads is None:
            raise RuntimeError("the reconciler works only in its lifespan")
        return self._workloads

    async def _outcome(self, run: Run) -> Outcome | None:
        """How far the action is now; nothing if there is nothing to do any more."""
        policy, status = run.policy, run.result.status
        runner = RUNNERS.get(policy.spec.action.name)
        if _is_over(run, keeps_up=runner is not None and runner.keeps_up):
            return None
        if policy.spec.suspend:
            return waiting("the policy is suspended", SLOW_SECONDS)
        if policy.problem is not None or runner is None:
            return waiting(f"the policy cannot be used: {policy.problem}", SLOW_SECONDS)
        if (earlier := self._earlier(run.result)) is not None:
            return waiting(f"waits for policy {earlier}")
        started = status.started if status is not None and _is_current(run) else None
        if started is not None and run.now - started > policy.spec.timeout:
            return failed(f"not done within {format_duration(policy.spec.timeout)}")
        return await _reconciled(runner, run)

    def _earlier(self, result: LifecycleResult) -> str | None:
        """A policy of a smaller order that is not done yet."""
        own = self._store.result(ObjectKey(result.namespace or "", result.name))
        if own is None:
            return None
        names = {policy.uid: policy for policy in self._store.policies(result.spec.hook)}
        for other in self._store.results_of_cluster(own.cluster_uid):
            if other.occurrence != own.occurrence or other.order >= own.order:
                continue
            policy = names.get(other.policy_uid)
            if policy is None or policy.spec.suspend:
                continue
            phase = other.view.phase if other.view else "Waiting"
            if phase == "Done" or (phase == "Failed" and not policy.blocks):
                continue
            return policy.name
        return None

    async def _save(
        self,
        ctx: Context,
        result: LifecycleResult,
        policy: KnownPolicy,
        cluster: Cluster,
        outcome: Outcome,
    ) -> None:
        before, now = result.status, self._clock()
        changed = before is None or before.phase != outcome.phase
        is_current = before is not None and before.observed_generation == policy.generation
        started = before.started if before is not None and is_current else None
        if started is None and outcome.phase != "Waiting":
            started = now
        created = outcome.created
        if created is None:
            created = before.created if before is not None else []
        message = outcome.message[:_LONGEST]
        status = ResultStatus(
            phase=outcome.phase,
            message=message,
            since=now if before is None or changed else before.since,
            retry_seconds=outcome.retry_seconds,
            created=list(created),
            observed_generation=policy.generation,
            **({"started": started} if started is not None else {}),
        )
        await ctx.patch_status(result, status)
        if changed or (before is not None and before.message != message):
            warn = outcome.phase == "Failed"
            text = f"{result.spec.hook}: policy {policy.name}: {message or outcome.phase.lower()}"
            reason = f"LifecyclePolicy{outcome.phase}"
            ctx.event(cluster, "Warning" if warn else "Normal", reason, text)

    async def _delete(
        self,
        ctx: Context,
        result: LifecycleResult,
        policy: KnownPolicy | None,
        cluster: Cluster | None,
    ) -> Result:
        """Clean up if the policy goes; not if only this occurrence is over."""
        runner = RUNNERS.get(result.spec.action)
        if (
            FINALIZER in result.metadata.finalizers
            and runner is not None
            and cluster is not None
            and cluster.metadata.deletion_timestamp is None
            and (policy is None or not runner.keeps_up)
        ):
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await runner.cleanup(
                        Cleanup(ctx.client, self._connected_workloads(), result, cluster)
                    )
            except (ClientError, ConfigError, TimeoutError) as error:
                since = result.metadata.deletion_timestamp or self._clock()
                if datetime.now(UTC) - since < _CLEANUP_LIMIT:
                    ctx.log.info("Cleaning up is tried again: %s", redact(str(error)))
                    return After(_CLEANUP_RETRY)
                text = f"what policy {result.spec.policy.name} created was left: {error}"
                ctx.event(cluster, "Warning", "LifecyclePolicyLeftObjects", text)
        await ctx.remove_finalizer(result, FINALIZER)
        return Done()

    def _is_over(self, result: LifecycleResult, cluster: Cluster) -> bool:
        """Whether the upgrade that it is about was taken back, or another one has followed.

        A result that keeps objects up to date knows them, and stays until a later one does.
        """
        target, topology = result.spec.target_version, cluster.spec.topology
        if target is None or topology is None or topology.version == target:
            return False
        runner = RUNNERS.get(result.spec.action)
        if runner is None or not runner.keeps_up or not (result.status and result.status.created):
            return True
        return any(
            other.policy_uid == result.spec.policy.uid
            and other.key.name != result.name
            and other.view is not None
            and other.view.phase == "Done"
            and other.target == topology.version
            for other in self._store.results_of_cluster(result.spec.cluster.uid)
        )


def _is_current(run: Run) -> bool:
    status = run.result.status
    return status is not None and status.observed_generation == run.policy.generation


def _is_over(run: Run, *, keeps_up: bool) -> bool:
    """Whether the result stays as it is."""
    status = run.result.status
    if status is None or status.phase in {"Waiting", "Running"}:
        return False
    if _is_current(run):
        return True
    return status.phase == "Done" and (not keeps_up or run.policy.spec.suspend)


async def _reconciled(runner: ActionRunner, run: Run) -> Outcome:
    """How far the action is; what keeps it from going on is a reason to wait."""
    try:
        # What blocks for ever must not take the others' turn.
        async with asyncio.timeout(_STEP_SECONDS):
            return await runner.reconcile(run)
    except (ClientError, ConfigError) as error:
        return waiting(redact(str(error)), SLOW_SECONDS)
    except TimeoutError:
        return waiting("a step of the action takes more than a minute", SLOW_SECONDS)
    except ExpressionError as error:
        return waiting(f"an expression has no value: {error}", SLOW_SECONDS)


RESOURCES: Final = {
    "LifecyclePolicy": LifecyclePolicy.resource,
    "ClusterLifecyclePolicy": ClusterLifecyclePolicy.resource,
}
