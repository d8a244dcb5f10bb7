"""The extension: a gate and a notice for each hook of a Cluster's life.

A gate has the failure policy `Fail` and answers for policies that block. A notice has `Ignore` and
answers for the others. Discovery reports those that policies need.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from capelin.api import Model
from capelin.client import ClientError
from capelin.controller import ObjectKey
from capelin.runtime import Call, Extension, Failure, Response, proceed, retry_after
from capelin.runtime import v1alpha1 as hooks
from capelin.runtime.v1alpha1 import (
    CanUpdateMachineSetResponse,
    DiscoverVariablesResponse,
    GeneratePatchesResponse,
    GenerateUpgradePlanResponse,
)

from capelin_lifecycle import in_place
from capelin_lifecycle.actions import RUNNERS
from capelin_lifecycle.actions.approved_plan import check_approved
from capelin_lifecycle.actions.topology import (
    check_topology,
    discovered_variables,
    generated_patches,
    upgrade_plan,
)
from capelin_lifecycle.api.actions import PatchVersion
from capelin_lifecycle.api.names import LIFECYCLE_HOOKS, HookName, PolicyKind
from capelin_lifecycle.decision import Answer, Facts, lets_pass
from capelin_lifecycle.decision import answer as combined
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.policies.clusters import (
    KnownCluster,
    Occurrence,
    TopologyRequest,
    cluster_occurrence,
    contradiction,
    live_occurrence,
    occurrence_of,
    requested_version,
    result_name,
    topology_cluster,
)
from capelin_lifecycle.policies.selection import KnownPolicy, matches, needs_namespace, selected
from capelin_lifecycle.policies.verdict import QUICK_SECONDS, Verdict
from capelin_lifecycle.reconcilers.pending import PendingResult
from capelin_lifecycle.reconcilers.records import new_result
from capelin_lifecycle.reconcilers.registration import TOPOLOGY_HANDLERS, handler_name
from capelin_lifecycle.sandbox.expressions import ExpressionError

log = logging.getLogger(__name__)

NAME: Final = "lifecycle"
_TIMEOUT_SECONDS: Final = 10
_UNKNOWN_SECONDS: Final = 10
_SECONDS_AT_ONCE: Final = 0.08
"""Limit of immediate decisions in a first call, which takes less than 200 ms in all."""
_SECONDS_AGAIN: Final = 3.0
"""Limit of decisions that no reconciler takes: without them, a Cluster waits for the next call."""
_DECIDING: Final = Verdict("Waiting", "the policy is decided again", QUICK_SECONDS)


def build(engine: Engine) -> Extension:
    """The extension on an engine, which runs while it is served."""
    extension = Extension(NAME, lifespan=engine.running, is_discovered=engine.is_discovered)
    for name, hook in LIFECYCLE_HOOKS.items():
        for blocks in (True, False):
            extension.handler(
                hook,
                name=handler_name(name, blocks=blocks),
                timeout_seconds=_TIMEOUT_SECONDS,
                failure_policy="Fail" if blocks else "Ignore",
            )(_handler(engine, name, blocks=blocks))
    topology = TopologyHandlers(engine)
    names = TOPOLOGY_HANDLERS
    register = partial(extension.handler, settings=Settings)
    register(hooks.GeneratePatches, name=names["GeneratePatches"])(topology.patches)
    register(hooks.DiscoverVariables, name=names["DiscoverVariables"])(topology.variables)
    register(hooks.ValidateTopology, name=names["ValidateTopology"])(topology.validation)
    extension.handler(hooks.GenerateUpgradePlan, name=names["GenerateUpgradePlan"])(
        topology.upgrade_plan
    )

    @extension.handler(hooks.CanUpdateMachineSet, name=in_place.HANDLERS["CanUpdateMachineSet"])
    def can_update(
        call: Call[hooks.CanUpdateMachineSet, None],
    ) -> CanUpdateMachineSetResponse:
        return in_place.can_update_machine_set(call.request)

    @extension.handler(hooks.UpdateMachine, name=in_place.HANDLERS["UpdateMachine"])
    async def update(call: Call[hooks.UpdateMachine, None]) -> Response:
        return await engine.update_machine(call.request)

    return extension


class Settings(Model):
    """Settings of an external patch in a ClusterClass."""

    policy: str = ""
    """Name of the policy: `NAMESPACE/NAME`, or `NAME` of a ClusterLifecyclePolicy."""
    version: str = ""
    """Version of its patches."""


class TopologyHandlers:
    """The handlers that ClusterClasses name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def patches(self, call: Call[hooks.GeneratePatches, Settings]) -> GeneratePatchesResponse:
        await self._check_namespace(call.settings.policy, call.request)
        if not call.settings.version and self._is_check(call.settings.policy):
            # Cluster API asks each external patch for patches, also one that only validates.
            return GeneratePatchesResponse(status="Success", items=[])
        policy = self._policy("GeneratePatches", call.settings.policy)
        return await generated_patches(policy, self._version(call.settings), call.request)

    def variables(self, call: Call[hooks.DiscoverVariables, Settings]) -> DiscoverVariablesResponse:
        """Describe the variables of patches. Checks of topologies have none."""
        settings = call.settings
        self._check_known()
        try:
            return discovered_variables(self._version(settings))
        except Failure:
            if "/" not in settings.policy:
                raise
            # The request does not name its ClusterClass: do not reveal what the namespace has.
            raise Failure(
                f"policy {settings.policy!r} has no usable version {settings.version!r} of patches,"
                " or does not exist. Its condition Valid shows problems"
            ) from None

    async def validation(self, call: Call[hooks.ValidateTopology, Settings]) -> Response:
        request = call.request
        await self._check_namespace(call.settings.policy, request)
        policy = self._policy("ValidateTopology", call.settings.policy)
        if policy.spec.suspend:
            return proceed()
        if not await self._is_selected(policy, request):
            return proceed()
        await check_topology(policy, request)
        if (plan := policy.spec.action.approved_plan) is not None:
            cluster = await self._live(topology_cluster(request), "0")
            check_approved(plan, policy.name, request, cluster.annotations)
        return proceed()

    async def _is_selected(self, policy: KnownPolicy, request: TopologyRequest) -> bool:
        """Whether a policy is for the Cluster of a topology.

        Raises:
            Failure: That is not known yet, or the Cluster does not exist.
        """
        if policy.selects_all:
            return True
        cluster = await self._live(topology_cluster(request), "0")
        occurrence = replace(cluster.occurrence, hook=policy.spec.hook)
        namespaces = self._engine.store.namespaces
        if needs_namespace(policy, occurrence, namespaces):
            raise Failure(f"namespace {occurrence.namespace} is not known yet")
        return matches(policy, occurrence, namespaces.get(occurrence.namespace))

    async def upgrade_plan(
        self, call: Call[hooks.GenerateUpgradePlan, None]
    ) -> GenerateUpgradePlanResponse:
        """Plan an upgrade by the first policy for the Cluster."""
        request, store = call.request, self._engine.store
        self._check_known()
        requested = cluster_occurrence("GenerateUpgradePlan", request.cluster_json)
        cluster = await self._live(requested, requested_version(request))
        occurrence = replace(cluster.occurrence, hook="GenerateUpgradePlan")
        labels = store.namespaces.get(occurrence.namespace)
        for policy in selected(store.policies("GenerateUpgradePlan"), occurrence, labels):
            plan = policy.spec.action.upgrade_plan
            if plan is not None:
                return upgrade_plan(plan, request, self._engine.now())
        raise Failure(
            "no policy with an upgradePlan is for this Cluster: create one, or remove"
            " spec.upgrade.external from its ClusterClass"
        )

    async def _check_namespace(self, reference: str, request: TopologyRequest) -> None:
        """Check that Cluster and ClusterClass use the policy of a namespace only within it.

        Raises:
            Failure: they use it elsewhere, or the Cluster does not exist.
        """
        namespace = reference.rpartition("/")[0]
        if not namespace:
            return
        self._check_known()
        requested = topology_cluster(request)
        cluster = await self._live(requested, "0")
        if {requested.namespace, cluster.facts.class_namespace} != {namespace}:
            raise Failure(
                f"{_name_of(requested)} cannot use policy {reference}: a LifecyclePolicy is for"
                " Clusters and ClusterClasses of its own namespace. Share patches and rules by a"
                " ClusterLifecyclePolicy"
            )

    async def _live(self, requested: Occurrence, version: str) -> KnownCluster:
        try:
            return await _live_cluster(self._engine, requested, version)
        except ClientError as error:
            raise Failure(f"{_name_of(requested)} cannot be read: {error}") from None

    def _version(self, settings: Settings) -> PatchVersion:
        policy = self._policy("GeneratePatches", settings.policy)
        versions = policy.spec.action.patches.versions if policy.spec.action.patches else []
        for version in versions:
            if version.name == settings.version:
                return version
        known = ", ".join(version.name for version in versions)
        raise Failure(
            f"policy {settings.policy} has no version {settings.version!r} of patches (known:"
            f" {known}). Set it in the settings of the ClusterClass's patch"
        )

    def _is_check(self, reference: str) -> bool:
        """Whether a policy is for ValidateTopology."""
        self._check_known()
        policy = self._find(reference)
        return policy is not None and policy.spec.hook == "ValidateTopology"

    def _find(self, reference: str) -> KnownPolicy | None:
        namespace, _, name = reference.rpartition("/")
        return self._engine.store.policy(_kind_of(reference), namespace or None, name)

    def _policy(self, hook: HookName, reference: str) -> KnownPolicy:
        self._check_known()
        policy, kind = self._find(reference), _kind_of(reference)
        if policy is None or policy.spec.hook != hook:
            raise Failure(
                f"there is no {kind} {reference!r} for {hook}. The setting policy of the"
                " ClusterClass's patch has the form NAMESPACE/NAME"
            )
        if policy.problem is not None:
            raise Failure(f"policy {reference} cannot be used: {policy.problem}")
        return policy

    def _check_known(self) -> None:
        if not self._engine.store.knows_policies:
            raise Failure(self._engine.store.problem or "the policies are not known")


def _kind_of(reference: str) -> PolicyKind:
    """The kind of the policy that a setting names."""
    return "LifecyclePolicy" if "/" in reference else "ClusterLifecyclePolicy"


def _handler(engine: Engine, name: HookName, *, blocks: bool) -> Callable[[Call[Any, Any]], Any]:
    async def answer(call: Call[Any, Any]) -> Response:
        with engine.priority.answering():
            answered = await answer_for(engine, name, call.request, blocks=blocks)
        if answered.retry_seconds == 0:
            return proceed()
        if not LIFECYCLE_HOOKS[name].blocks():
            if not answered.is_known:
                # Cluster API calls until the hook succeeds. Only then do its policies run later.
                raise Failure(answered.message)
            return proceed()
        return retry_after(answered.retry_seconds, answered.message)

    return answer


async def answer_for(engine: Engine, name: HookName, request: Any, *, blocks: bool) -> Answer:
    """Start the policies of an occurrence that have not started, and answer for all of them.

    Raises:
        Failure: Cluster API would not call this hook for the live Cluster.
    """
    store, requested = engine.store, occurrence_of(name, request)
    if not store.knows_policies:
        return _without_policies(engine, requested, blocks=blocks)
    if not store.may_concern(name, requested.namespace):
        return Answer()
    try:
        cluster = await _live_cluster(engine, requested, requested_version(request))
    except ClientError as error:
        return _unknown(name, f"{_name_of(requested)} cannot be read: {error}", blocks=blocks)
    if (problem := contradiction(requested, cluster)) is not None:
        raise Failure(f"{name} is not for {_name_of(requested)} now: {problem}")
    if cluster.facts.is_paused:
        return Answer(_UNKNOWN_SECONDS, f"{_name_of(requested)} is paused", is_known=False)
    if name == "BeforeClusterCreate" and cluster.facts.is_created:
        # The caller is late: the decision no longer matters.
        return Answer()
    return await _answer(engine, live_occurrence(requested, cluster), cluster, blocks=blocks)


def _unknown(name: HookName, message: str, *, blocks: bool) -> Answer:
    """Not yet. A notice holds up no Cluster, unless core calls its hook only until it succeeds."""
    if blocks or not LIFECYCLE_HOOKS[name].blocks():
        return Answer(_UNKNOWN_SECONDS, message, is_known=False)
    return Answer()


async def _answer(
    engine: Engine, hook: Occurrence, cluster: KnownCluster, *, blocks: bool
) -> Answer:
    store = engine.store
    if any(needs_namespace(policy, hook, store.namespaces) for policy in store.policies(hook.hook)):
        return _unknown(hook.hook, f"namespace {hook.namespace} is not known yet", blocks=blocks)
    labels = store.namespaces.get(hook.namespace)
    policies = selected(store.policies(hook.hook), hook, labels)
    named = [
        (policy, ObjectKey(hook.namespace, result_name(policy.key, hook))) for policy in policies
    ]
    verdicts = {key: _verdict_of_result(engine, key, hook) for _, key in named}
    # A window, a rule or an approval that held once has to hold while the others do.
    held = [key for policy, key in named if _is_held(policy, verdicts[key])]
    verdicts.update(dict.fromkeys(held))
    undecided = [
        (policy, key) for policy, key in named if policy.problem is None and verdicts[key] is None
    ]
    if undecided:
        await _create_results(engine, hook, undecided)
        with suppress(TimeoutError):
            # The reconciler decides everything else that takes longer.
            async with asyncio.timeout(_SECONDS_AGAIN if held else _SECONDS_AT_ONCE):
                await _decide(engine, hook, named, verdicts, cluster)
        _create_results_soon(engine, hook, undecided, verdicts)
        verdicts.update({key: verdicts[key] or _DECIDING for key in held})
    await asyncio.gather(*(_reopen(engine, hook, key) for key in _contradicted(engine, verdicts)))
    answering = [(policy, key) for policy, key in named if policy.blocks == blocks]
    return combined([policy for policy, _ in answering], [verdicts[key] for _, key in answering])


Named = Sequence[tuple[KnownPolicy, ObjectKey]]
"""Policies in their order, with the names of their results."""
Verdicts = dict[ObjectKey, Verdict | None]


def _is_held(policy: KnownPolicy, verdict: Verdict | None) -> bool:
    """Whether a verdict lets a Cluster pass only as long as its facts stay the same."""
    is_done = verdict is not None and verdict.phase == "Done"
    return is_done and policy.problem is None and policy.spec.action.name not in RUNNERS


def _contradicted(engine: Engine, verdicts: Verdicts) -> list[ObjectKey]:
    """The results that show the end of an action whose verdict holds the Cluster again."""
    return [
        key
        for key, verdict in verdicts.items()
        if verdict is not None
        and verdict.phase == "Waiting"
        and verdict is not _DECIDING
        and (result := engine.store.result(key)) is not None
        and result.view is not None
        and result.view.phase == "Done"
    ]


async def _reopen(engine: Engine, hook: Occurrence, key: ObjectKey) -> None:
    """Have the reconciler decide again. The answer does not depend on it."""
    result = engine.store.result(key)
    if result is not None and result.is_about(hook.uid):
        with suppress(ClientError):
            await engine.reopen(key)


def _verdict_of_result(engine: Engine, key: ObjectKey, hook: Occurrence) -> Verdict | None:
    result = engine.store.result(key)
    if result is not None and result.is_about(hook.uid) and not result.is_for(hook.topology):
        return Verdict("Waiting", "the topology has changed, approve it again", QUICK_SECONDS)
    if result is None or result.is_about(hook.uid):
        return None if result is None else result.view
    # Its name is in use until it is deleted.
    return Verdict("Waiting", "the result of an earlier Cluster is being deleted", QUICK_SECONDS)


async def _create_results(engine: Engine, hook: Occurrence, undecided: Named) -> None:
    """Create the results for which the reconciler starts work.

    Those of smaller orders come first. Work that does not find them would not wait for them.
    """
    missing = [entry for entry in undecided if engine.store.result(entry[1]) is None]
    orders = [policy.spec.order for policy, _ in missing if policy.spec.action.name in RUNNERS]
    last = max(orders, default=None)
    for order, group in groupby(missing, key=lambda entry: entry[0].spec.order):
        results = [
            new_result(policy, key.name, hook, engine.now())
            for policy, key in group
            if last is not None and (order < last or policy.spec.action.name in RUNNERS)
        ]
        await asyncio.gather(*(engine.create(result) for result in results))


async def _decide(
    engine: Engine, hook: Occurrence, named: Named, verdicts: Verdicts, cluster: KnownCluster
) -> None:
    """Add the verdicts that need no work, in the order of the policies."""
    earlier: str | None = None
    now = engine.now()

    async def add_verdict(policy: KnownPolicy, key: ObjectKey) -> None:
        result = engine.store.result(key)
        called = (result.called if result else None) or now
        facts = Facts(called=called, result_id=result.id if result else "", earlier=earlier)
        try:
            verdicts[key] = await engine.judge.verdict(policy, cluster, hook, facts=facts, now=now)
        except (ClientError, ExpressionError) as error:
            log.info("The reconciler decides on policy %s: %s", policy.name, error)

    for _, group in groupby(named, key=lambda entry: entry[0].spec.order):
        usable = [entry for entry in group if entry[0].problem is None]
        await asyncio.gather(
            *(add_verdict(*entry) for entry in usable if verdicts[entry[1]] is None)
        )
        waits = [policy.name for policy, key in usable if not lets_pass(policy, verdicts[key])]
        earlier = earlier or next(iter(waits), None)


def _create_results_soon(
    engine: Engine, hook: Occurrence, undecided: Named, verdicts: Verdicts
) -> None:
    """Have the other results created behind the answer, which does not need them."""
    for policy, key in undecided:
        if policy.spec.action.name not in RUNNERS and engine.store.result(key) is None:
            verdict = verdicts[key]
            done = verdict.message if verdict is not None and verdict.phase == "Done" else None
            engine.pending.add(PendingResult(policy, key.name, hook, engine.now(), done))


async def _live_cluster(engine: Engine, requested: Occurrence, version: str) -> KnownCluster:
    """The Cluster that a request names, as it is.

    Raises:
        Failure: it does not exist.
        ClientError: it cannot be read.
    """
    cluster = await engine.live_cluster(requested, version)
    if cluster is None:
        raise Failure(f"there is no {_name_of(requested)} with uid {requested.uid!r}")
    return cluster


def _name_of(occurrence: Occurrence) -> str:
    return f"Cluster {occurrence.namespace}/{occurrence.cluster}"


def _without_policies(engine: Engine, occurrence: Occurrence, *, blocks: bool) -> Answer:
    """Hold up the Clusters that a policy was for when policies were last known, or else all."""
    problem, name = engine.store.problem, occurrence.hook
    if engine.is_blind:
        return _unknown(name, f"the policies are unknown: {problem}", blocks=blocks)
    namespaces = engine.store.namespaces
    concerned = [
        policy
        for policy in engine.policies
        if policy.blocks == blocks
        and (
            needs_namespace(policy, occurrence, namespaces)
            or matches(policy, occurrence, namespaces.get(occurrence.namespace))
        )
    ]
    if not concerned:
        return Answer()
    names = ", ".join(policy.name for policy in sorted(concerned, key=lambda it: it.sort_key))
    return _unknown(name, f"policy {names}: {problem}", blocks=blocks)
