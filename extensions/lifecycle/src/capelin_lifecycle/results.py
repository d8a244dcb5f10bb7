"""Moves results: starts their actions, observes them, and cleans up after them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from capelin.api import Unstructured, format_duration
from capelin.api.capi import Cluster
from capelin.client import ClientError, ClientOptions, ConfigError, WorkloadClients
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
    ACTIONS_AT_ONCE,
    DONE_ANNOTATION,
    MANAGER,
    RUNNERS,
    SLOW_SECONDS,
    ActionRunner,
    Cleanup,
    Lasting,
    Outcome,
    Run,
    done,
    failed,
    waiting,
)
from capelin_lifecycle.actions.counting import CountedCluster
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api import (
    GROUP,
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    LifecycleResult,
    PolicyReference,
    Quota,
    ResultStatus,
)
from capelin_lifecycle.clusters import KnownCluster, counted_copies
from capelin_lifecycle.expressions import ExpressionError
from capelin_lifecycle.selection import KnownPolicy
from capelin_lifecycle.store import KnownResult, Store, Subject

Clock = Callable[[], datetime]

FINALIZER: Final = f"{GROUP}/result"
_CLEANUP_LIMIT: Final = timedelta(minutes=10)
"""After so long, what an unreachable workload cluster still has is left to it."""
_CLEANUP_RETRY: Final = 10.0
_STEP_SECONDS: Final = 60
_MOST_SLOW_STEPS: Final = 3
"""How many steps of one policy run at once, where a step may take long: others need turns too."""
_MOST_QUICK_STEPS: Final = 2
"""How many of the other steps run at once: the same process answers hooks, which come first."""
_CROWDED_SECONDS: Final = 3.0
_LONGEST: Final = 1024
_LOOKS_AT_COPIES: Final = frozenset({"approval", "quota"})
"""Actions for which the replica's copy of the Cluster is enough."""
_RARELY: Final = 300.0
"""How often to look at what goes on only when its Cluster changes, and is then woken."""
_WORKLOAD = ClientOptions(timeout=10.0, connect_timeout=5.0)


class ResultReconciler(Reconciler[LifecycleResult]):
    """Reconciles results."""

    watches = (For(LifecycleResult),)
    permissions = (
        Permission(GROUP, ("lifecycleresults",), ("create", "delete")),
        Permission(GROUP, ("lifecyclereservations",), ("create", "get", "update")),
        Permission(GROUP, ("lifecyclepolicies", "clusterlifecyclepolicies"), ("get",)),
        Permission("cluster.x-k8s.io", ("clusters",), ("get", "list", "watch")),
        Permission("", ("namespaces",), ("get", "list", "watch")),
        Permission("", ("secrets", "configmaps"), ("get",)),
        # Jobs whose target is the management cluster.
        Permission("batch", ("jobs",), ("create", "delete", "get")),
        Permission("", ("pods",), ("list",)),
        Permission("", ("pods/log",), ("get",)),
        Permission("", ("events",), ("list",)),
    )

    def __init__(
        self,
        store: Store,
        reservations: Reservations,
        namespace: str,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._reservations = reservations
        self._namespace = namespace
        self._clock = clock
        self._workloads: WorkloadClients | None = None
        self._slow_steps: Counter[str] = Counter()
        self._quick_steps = asyncio.Semaphore(_MOST_QUICK_STEPS)

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
            results = [
                result
                for result in self._store.results_of_cluster(uid)
                if not (_is_over(result) and self._is_current(result.cluster_uid, result.target))
            ]
        elif (changed := self._store.result(key)) is not None:
            # Those that wait for it.
            results = [
                result
                for result in self._store.results_of_cluster(changed.cluster_uid)
                if result.occurrence == changed.occurrence and result.order > changed.order
            ]
        for result in results:
            self.wake(result.key)

    def _is_current(self, cluster_uid: str, target: str | None) -> bool:
        """Whether a Cluster is there, with the version that a result is about, by its copy."""
        known = (self._store.clusters or {}).get(cluster_uid)
        return known is not None and target in (None, known.occurrence.target_version)

    async def reconcile(self, ctx: Context, result: LifecycleResult, /) -> Result:
        """Reconcile one result."""
        if result.spec.action not in ACTIONS_AT_ONCE:
            return await self._reconcile(ctx, result)
        async with self._quick_steps:
            return await self._reconcile(ctx, result)

    async def _reconcile(self, ctx: Context, result: LifecycleResult) -> Result:
        spec, policy = result.spec, self._policy(result.spec.policy)
        is_deleted = result.metadata.deletion_timestamp is not None
        is_current = not is_deleted and self._is_current(spec.cluster.uid, spec.target_version)
        if is_current and policy is not None and _stays(result, policy):
            return Done()
        cluster_json = self._copy(result) if is_current else None
        if cluster_json is None:
            cluster_json = await _read_cluster(ctx, result)
        cluster = Cluster.read(cluster_json) if cluster_json is not None else None
        if is_deleted:
            return await self._delete(ctx, result, policy, cluster)
        if cluster is None or cluster_json is None or self._is_outdated(result, cluster):
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
            return Done()
        if policy is None:
            return await self._without_policy(ctx, result)
        return await self._advance(self._run(ctx, result, policy, cluster, cluster_json), ctx)

    async def _advance(self, run: Run, ctx: Context) -> Result:
        """Take the next step of the action, and save how far it is."""
        result, policy = run.result, run.policy
        if not isinstance(RUNNERS.get(result.spec.action), Lasting):
            await ctx.add_finalizer(result, FINALIZER)
        async with self._turn(policy) as is_free:
            if not is_free:
                return After(_CROWDED_SECONDS)
            message = _done_before(result)
            outcome = await self._outcome(run) if message is None else done(message)
        if outcome is not None:
            await self._save(ctx, result, policy, run.cluster, outcome)
            if outcome.phase in ("Waiting", "Running"):
                rarely = outcome.only_by_cluster
                return After(_RARELY if rarely else float(outcome.retry_seconds))
        return Done()

    def _policy(self, reference: PolicyReference) -> KnownPolicy | None:
        policy = self._store.policy(reference.kind, reference.namespace, reference.name)
        return policy if policy is not None and policy.uid == reference.uid else None

    def _copy(self, result: LifecycleResult) -> Unstructured | None:
        """The copy of its Cluster, if that is all that the action looks at: it has no status."""
        known = (self._store.clusters or {}).get(result.spec.cluster.uid)
        is_enough = result.spec.action in _LOOKS_AT_COPIES or _done_before(result) is not None
        return orjson.loads(known.document) if known is not None and is_enough else None

    @asynccontextmanager
    async def _turn(self, policy: KnownPolicy) -> AsyncGenerator[bool]:
        """Whether a step of a policy may run now."""
        if policy.spec.action.name in ACTIONS_AT_ONCE:
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
            is_gone=self._store.is_gone,
            reservations=self._reservations,
            now=self._clock(),
        )

    def _counting(
        self, policy: KnownPolicy, cluster_json: dict[str, Any]
    ) -> Callable[[Quota], Awaitable[Sequence[CountedCluster]]] | None:
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
        if _stays(run.result, policy):
            return None
        if policy.spec.suspend:
            return waiting("the policy is suspended", SLOW_SECONDS)
        if policy.problem is not None or runner is None:
            return waiting(f"the policy cannot be used: {policy.problem}", SLOW_SECONDS)
        if (earlier := self._earlier(run.result)) is not None:
            return waiting(f"waits for policy {earlier}")
        started = status.started if status is not None and _is_about(run.result, policy) else None
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
        if before is None and outcome.phase == "Done":
            # The Cluster has not waited.
            return
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

    def _is_outdated(self, result: LifecycleResult, cluster: Cluster) -> bool:
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


async def _read_cluster(ctx: Context, result: LifecycleResult) -> Unstructured | None:
    """Its Cluster, and no other one of the same name."""
    reference = result.spec.cluster
    found = await ctx.client.find(Cluster.resource, reference.name, result.namespace)
    if found is None or found["metadata"]["uid"] != reference.uid:
        return None
    found["metadata"].pop("managedFields", None)
    return found


def _done_before(result: LifecycleResult) -> str | None:
    """What the hook that created it has answered, if that is not in its status yet."""
    if result.status is not None:
        return None
    return result.metadata.annotations.get(DONE_ANNOTATION)


def _is_over(result: KnownResult) -> bool:
    return result.view is not None and result.view.phase in ("Done", "Failed")


def _is_about(result: LifecycleResult, policy: KnownPolicy) -> bool:
    """Whether its status is about the policy as it is."""
    status = result.status
    return status is not None and status.observed_generation == policy.generation


def _stays(result: LifecycleResult, policy: KnownPolicy) -> bool:
    """Whether the result stays as it is."""
    status = result.status
    if status is None or status.phase in {"Waiting", "Running"}:
        return False
    if _is_about(result, policy):
        return True
    runner = RUNNERS.get(policy.spec.action.name)
    keeps_up = runner is not None and runner.keeps_up
    return status.phase == "Done" and (not keeps_up or policy.spec.suspend)


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
