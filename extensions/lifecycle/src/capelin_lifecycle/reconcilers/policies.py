"""Reconciles policies: their validity, their results, and their deletion."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from capelin.api import Unstructured
from capelin.client import ClientError, UnreadableObject
from capelin.contract import (
    DELETE_FOR_MOVE_ANNOTATION,
    ConditionSpec,
    paused,
    update_conditions,
)
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Permission,
    Reconciler,
    Result,
)

from capelin_lifecycle.actions import CHECKS, EXPRESSIONS
from capelin_lifecycle.actions.action import POLICY_LABEL
from capelin_lifecycle.actions.sources import source_problems
from capelin_lifecycle.api.actions import REMOVED
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.api.policies import (
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    Policy,
    PolicyStatus,
    ResultCounts,
    ResultSummary,
)
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.policies.clusters import PolicyKey
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import KnownResult, Store, Subject
from capelin_lifecycle.reasons import Reason
from capelin_lifecycle.reconcilers import registration
from capelin_lifecycle.reconcilers.records import RESULT_FINALIZER, is_record
from capelin_lifecycle.reconcilers.registration import Registration
from capelin_lifecycle.sandbox.pool import SANDBOX, OverloadError

_RETRY_SECONDS: Final = 30.0
_LONGEST: Final = 1024
PolicyT = TypeVar("PolicyT", LifecyclePolicy, ClusterLifecyclePolicy)

FINALIZER: Final = f"{GROUP}/policy"
_SHOWN: Final = 50
_SUMMARY_SECONDS: Final = 2.0
"""How late the status of a policy may show changes of its results."""
_SOURCES_SECONDS: Final = 20.0


class UnreadablePolicies:
    """Keeps the conditions of policies that cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: dict[str, str] = {}
        """Reasons by uid."""

    async def keep(self, ctx: Context) -> None:
        """Write conditions until cancelled."""
        await self._store.repeat(partial(self._write_all, ctx))

    async def _write_all(self, ctx: Context) -> float | None:
        """Write new conditions. Returns the seconds until the next attempt, if that failed."""
        found = [
            entry for entry in self._store.unreadable.values() if entry.resource.group == GROUP
        ]
        policies = [entry for entry in found if entry.resource.kind.endswith("Policy")]
        self._written = {
            entry.uid: self._written[entry.uid] for entry in policies if entry.uid in self._written
        }
        retry: float | None = None
        for entry in policies:
            if self._written.get(entry.uid) == entry.reason:
                continue
            try:
                await ctx.client.apply_status(
                    unreadable_status(entry, ctx.now().strftime("%Y-%m-%dT%H:%M:%SZ")),
                    resource=entry.resource,
                )
            except ClientError as error:
                ctx.log.info("The condition of %s cannot be written: %s", entry, error)
                retry = _RETRY_SECONDS
            else:
                self._written[entry.uid] = entry.reason
        return retry


def unreadable_status(entry: UnreadableObject, now: str) -> Unstructured:
    """The status of an invalid policy, with the reason."""
    message = f"the policy cannot be read: {entry.reason}"[:_LONGEST]
    metadata = {"name": entry.name, "uid": entry.uid}
    if entry.namespace:
        metadata["namespace"] = entry.namespace
    conditions = [
        {
            "type": type_,
            "status": "False",
            "reason": Reason.UNREADABLE,
            "message": message,
            "lastTransitionTime": now,
        }
        for type_ in ("Valid", "Ready")
    ]
    return {
        "apiVersion": entry.resource.api_version,
        "kind": entry.resource.kind,
        "metadata": metadata,
        "status": {"conditions": conditions},
    }


def policy_problem(policy: Policy) -> str | None:
    """Why a policy without expressions cannot be used. An error concerns this policy only."""
    if (instead := REMOVED.get(policy.spec.action.name)) is not None:
        return instead
    check = CHECKS.get(policy.spec.action.name)
    try:
        problems = [] if check is None else check(KnownPolicy.of(policy))
    except Exception as error:  # noqa: BLE001 - any policy can be written
        return f"it cannot be checked ({type(error).__name__})"
    return "; ".join(problems)[:1024] or None


async def expressions_problem(policy: KnownPolicy) -> str | None:
    """Why the expressions of a policy cannot be used.

    Raises:
        OverloadError: the machine cannot compile them now.
    """
    expressions = EXPRESSIONS.get(policy.spec.action.name)
    if expressions is None:
        return None
    # Compiling has penalties of its own: an evaluation depends on a Cluster too.
    owner = replace(policy.owner(policy.namespace or ""), policy=f"expressions of {policy.uid}")
    return "; ".join(await SANDBOX.problems(owner, expressions(policy)))[:1024] or None


def status_of(
    policy: Policy,
    problem: str | None,
    results: Sequence[KnownResult],
    missing: Sequence[str] = (),
    undiscovered: str | None = None,
) -> tuple[PolicyStatus, list[ConditionSpec]]:
    """The status of a policy without its history.

    It follows from its results, its missing sources, and a handler that Cluster API does not call.
    """
    phases = Counter(result.view.phase if result.view else "Waiting" for result in results)
    unfinished = sorted(
        (result for result in results if not (result.view and result.view.phase == "Done")),
        key=lambda result: (str(result.since), result.key),
    )
    status = PolicyStatus(
        observed_generation=policy.metadata.generation,
        results=ResultCounts(
            waiting=phases["Waiting"],
            running=phases["Running"],
            done=phases["Done"],
            failed=phases["Failed"],
            paused=phases["Paused"],
        ),
        unfinished=[_summary(result) for result in unfinished[:_SHOWN]],
    )
    if problem is None:
        valid = ConditionSpec("Valid", "True", "Valid")
    else:
        valid = ConditionSpec("Valid", "False", Reason.INVALID_CONFIGURATION, problem)
    if policy.spec.suspend:
        ready = ConditionSpec("Ready", "False", Reason.SUSPENDED, "the policy is suspended")
    elif problem is not None:
        ready = ConditionSpec("Ready", "False", Reason.INVALID_CONFIGURATION, problem)
    elif undiscovered is not None:
        message = f"Cluster API has not discovered the handler {undiscovered} yet"
        ready = ConditionSpec("Ready", "False", Reason.NOT_DISCOVERED, message)
    elif missing:
        ready = ConditionSpec("Ready", "False", Reason.INVALID_SOURCE, "; ".join(missing)[:1024])
    elif phases["Failed"]:
        ready = ConditionSpec(
            "Ready", "False", Reason.FAILED, "see the failed results in the status"
        )
    else:
        ready = ConditionSpec("Ready", "True", "Ready")
    return status, [valid, ready]


def _summary(result: KnownResult) -> ResultSummary:
    view = result.view
    return ResultSummary(
        cluster=f"{result.key.namespace}/{result.cluster}",
        hook=result.hook,
        phase=view.phase if view else "Waiting",
        since=result.since,
        message=view.message if view else "",
    )


async def _reconcile(store: Store, ctx: Context, policy: Policy, namespace: str) -> Result:
    if DELETE_FOR_MOVE_ANNOTATION in policy.metadata.annotations:
        # It exists in another management cluster, and so do its results.
        if policy.metadata.deletion_timestamp is not None:
            await ctx.remove_finalizer(policy, FINALIZER)
        return Done()
    pause = paused(policy, None)
    if pause.status == "True":
        status = policy.status or PolicyStatus()
        others = [
            ConditionSpec(each.type, each.status, each.reason, each.message)
            for each in status.conditions
            if each.type != pause.type
        ]
        await _patch_conditions(ctx, policy, status, [*others, pause])
        return Done()
    if policy.metadata.deletion_timestamp is not None:
        return await _delete(ctx, policy)
    await ctx.add_finalizer(policy, FINALIZER)
    missing: list[str] = []
    known = KnownPolicy.of(policy)
    try:
        problem = policy_problem(policy) or await expressions_problem(known)
    except OverloadError:
        return After(_SOURCES_SECONDS)
    if problem is None and not policy.spec.suspend:
        missing = await source_problems(ctx.client, known, namespace)
    handler = registration.handler_of(known)
    is_discovered = store.discovered is None or handler is None or handler in store.discovered
    results = store.results_of_policy(known.key)
    undiscovered = None if is_discovered else handler
    status, specs = status_of(policy, problem, results, missing, undiscovered)
    await _patch_conditions(ctx, policy, status, [*specs, pause])
    # Sources are not watched: that would need the right to list all Secrets.
    return After(_SOURCES_SECONDS) if policy.spec.action.apply else Done()


async def _patch_conditions(
    ctx: Context, policy: Policy, status: PolicyStatus, specs: Sequence[ConditionSpec]
) -> None:
    before = policy.status
    conditions = update_conditions(
        before.conditions if before else [],
        specs,
        now=ctx.now(),
        generation=policy.metadata.generation,
    )
    await ctx.patch_status(policy, status.model_copy(update={"conditions": conditions}))


async def _delete(ctx: Context, policy: Policy) -> Result:
    """Delete its results, which clean up. Records of work stay, without the objects of the work."""
    is_waiting = False
    labels = {POLICY_LABEL: KnownPolicy.of(policy).key.label}
    results = await ctx.client.list(LifecycleResult, policy.namespace, labels=labels)
    for result in results.items:
        if result.metadata.deletion_timestamp is None and is_record(result):
            # The reconciler of results removes this finalizer when it has cleaned up.
            is_waiting |= RESULT_FINALIZER in result.metadata.finalizers
            continue
        is_waiting = True
        if result.metadata.deletion_timestamp is None:
            await ctx.client.delete(LifecycleResult, result.name, result.namespace, uid=result.uid)
    if is_waiting:
        return After(1.0)
    await ctx.remove_finalizer(policy, FINALIZER)
    return Done()


class _PolicyReconciler(Reconciler[PolicyT]):
    """Reconciles policies, and looks at them again when their results have changed.

    Their status counts results and lists the unfinished ones. Written for each change of hundreds
    of results, it would cost more than all hooks.
    """

    permissions = (Permission(GROUP, ("lifecycleresults",), ("get", "list", "watch", "delete")),)

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._due: set[ObjectKey] = set()

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
        del ctx
        with self._store.listening(self._changed):
            yield

    async def reconcile(self, ctx: Context, policy: PolicyT, /) -> Result:
        return await _reconcile(self._store, ctx, policy, self._namespace)

    def _changed(self, subject: Subject, _: ObjectKey, policy: PolicyKey | None) -> None:
        if subject not in ("result", "registration") or policy is None:
            return
        key = ObjectKey(policy.namespace or "", policy.name)
        if policy.kind == self.main_watch.kind.resource.kind and key not in self._due:
            self._due.add(key)
            asyncio.get_running_loop().call_later(_SUMMARY_SECONDS, self._wake_due, key)

    def _wake_due(self, policy: ObjectKey) -> None:
        self._due.discard(policy)
        self.wake(policy)


class LifecyclePolicyReconciler(_PolicyReconciler[LifecyclePolicy]):
    """Reconciles the policies of namespaces, and keeps the registration of all policies."""

    watches = (For(LifecyclePolicy),)
    permissions = (*_PolicyReconciler.permissions, *registration.PERMISSIONS)

    def __init__(self, store: Store, namespace: str, registration: Registration) -> None:
        super().__init__(store, namespace)
        self._registration = registration

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
        """Keep the registration on the replica that leads."""
        work = {
            "registration": partial(self._registration.keep, ctx),
            "unreadable": partial(UnreadablePolicies(self._store).keep, ctx),
        }
        async with super().lifespan(ctx), ctx.background.running(**work):
            yield


class ClusterLifecyclePolicyReconciler(_PolicyReconciler[ClusterLifecyclePolicy]):
    watches = (For(ClusterLifecyclePolicy),)
