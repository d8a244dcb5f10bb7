"""The extension: a gate and a notice for each hook of a Cluster's life.

A gate has the failure policy `Fail` and answers for policies that block; a notice has `Ignore` and
answers for the others. Discovery reports those that policies need.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from capelin.api import Model
from capelin.client import ClientError
from capelin.controller import ObjectKey
from capelin.runtime import AnyHook, Call, Extension, Failure, Response, proceed, retry_after
from capelin.runtime import v1alpha1 as hooks
from capelin.runtime.v1alpha1 import (
    DiscoverVariablesResponse,
    GeneratePatchesResponse,
    GenerateUpgradePlanResponse,
)

from capelin_lifecycle.actions import ACTIONS_AT_ONCE
from capelin_lifecycle.actions.topology import (
    check_topology,
    discovered_variables,
    generated_patches,
    upgrade_plan,
)
from capelin_lifecycle.api import HookName, PatchVersion
from capelin_lifecycle.decision import Answer, ResultView, decide
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.handlers import TOPOLOGY_HANDLERS, handler_name
from capelin_lifecycle.policies.clusters import KnownCluster
from capelin_lifecycle.policies.live import (
    TopologyRequest,
    contradiction,
    live_occurrence,
    requested_version,
    topology_cluster,
)
from capelin_lifecycle.policies.occurrence import (
    Occurrence,
    cluster_occurrence,
    occurrence_of,
    result_name,
)
from capelin_lifecycle.policies.selection import KnownPolicy, selected
from capelin_lifecycle.reconcilers.pending import PendingResult, new_result

NAME: Final = "lifecycle"
_TIMEOUT_SECONDS: Final = 10
_UNKNOWN_SECONDS: Final = 10
_SECONDS_AT_ONCE: Final = 0.08
"""How long a first call may take for what is a matter of a moment: less than 200 ms in all."""

BLOCKING: Final[dict[HookName, AnyHook]] = {
    "BeforeClusterCreate": hooks.BeforeClusterCreate,
    "BeforeClusterUpgrade": hooks.BeforeClusterUpgrade,
    "BeforeControlPlaneUpgrade": hooks.BeforeControlPlaneUpgrade,
    "AfterControlPlaneUpgrade": hooks.AfterControlPlaneUpgrade,
    "BeforeWorkersUpgrade": hooks.BeforeWorkersUpgrade,
    "AfterWorkersUpgrade": hooks.AfterWorkersUpgrade,
    "AfterClusterUpgrade": hooks.AfterClusterUpgrade,
    "BeforeClusterDelete": hooks.BeforeClusterDelete,
}
NOT_BLOCKING: Final[dict[HookName, AnyHook]] = {
    "AfterControlPlaneInitialized": hooks.AfterControlPlaneInitialized,
}


def build(engine: Engine) -> Extension:
    """The extension on an engine, which runs while it is served."""
    extension = Extension(NAME, lifespan=engine.running, is_discovered=engine.is_discovered)
    every: dict[HookName, AnyHook] = {**BLOCKING, **NOT_BLOCKING}
    for name, hook in every.items():
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
    return extension


class Settings(Model):
    """Settings of an external patch in a ClusterClass."""

    policy: str = ""
    """Name of the policy, as `NAMESPACE/NAME`; of a ClusterLifecyclePolicy without namespace."""
    version: str = ""
    """Version of its patches."""


class TopologyHandlers:
    """The handlers that ClusterClasses name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def patches(self, call: Call[hooks.GeneratePatches, Settings]) -> GeneratePatchesResponse:
        """Patch templates."""
        await self._check_namespace(call.settings.policy, call.request)
        policy = self._policy("GeneratePatches", call.settings.policy)
        return await generated_patches(policy, self._version(call.settings), call.request)

    def variables(self, call: Call[hooks.DiscoverVariables, Settings]) -> DiscoverVariablesResponse:
        """Describe the variables of patches; checks of topologies have none."""
        settings = call.settings
        self._check_known()
        try:
            return discovered_variables(self._version(settings))
        except Failure:
            if "/" not in settings.policy:
                raise
            # The request does not name its ClusterClass: do not reveal what the namespace has.
            raise Failure(
                f"policy {settings.policy!r} has no version {settings.version!r} of patches that"
                " can be used, or it does not exist; its condition Valid shows problems"
            ) from None

    async def validation(self, call: Call[hooks.ValidateTopology, Settings]) -> Response:
        """Check a topology."""
        await self._check_namespace(call.settings.policy, call.request)
        policy = self._policy("ValidateTopology", call.settings.policy)
        if not policy.spec.suspend:
            await check_topology(policy, call.request)
        return proceed()

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
            "no policy with an upgradePlan is for this Cluster; create one, or remove"
            " spec.upgrade.external from its ClusterClass"
        )

    async def _check_namespace(self, reference: str, request: TopologyRequest) -> None:
        """Check that the policy of a namespace is used there only: by Cluster and ClusterClass.

        Raises:
            Failure: it is used elsewhere, or the Cluster does not exist.
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
                " Clusters and ClusterClasses of its own namespace; share patches and rules by a"
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
            f"policy {settings.policy} has no version {settings.version!r} of patches; known:"
            f" {known}. Set it in the settings of the ClusterClass's patch"
        )

    def _policy(self, hook: HookName, reference: str) -> KnownPolicy:
        self._check_known()
        namespace, _, name = reference.rpartition("/")
        kind = "LifecyclePolicy" if namespace else "ClusterLifecyclePolicy"
        policy = self._engine.store.policy(kind, namespace or None, name)
        if policy is None or policy.spec.hook != hook:
            raise Failure(
                f"there is no {kind} {reference!r} for {hook}; the setting policy of the"
                " ClusterClass's patch names it, as NAMESPACE/NAME"
            )
        if policy.problem is not None:
            raise Failure(f"policy {reference} cannot be used: {policy.problem}")
        return policy

    def _check_known(self) -> None:
        if not self._engine.store.knows_policies:
            raise Failure(self._engine.store.problem or "the policies are not known")


def _handler(engine: Engine, name: HookName, *, blocks: bool) -> Callable[[Call[Any, Any]], Any]:
    async def answer(call: Call[Any, Any]) -> Response:
        answered = await answer_for(engine, name, call.request, blocks=blocks)
        if answered.retry_seconds == 0:
            return proceed()
        if name in NOT_BLOCKING:
            if not answered.is_known:
                # It is called until it succeeds, and only so are its policies carried out later.
                raise Failure(answered.message)
            return proceed()
        return retry_after(answered.retry_seconds, answered.message)

    return answer


async def answer_for(engine: Engine, name: HookName, request: Any, *, blocks: bool) -> Answer:
    """Start what has not started for an occurrence, and say what it waits for.

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
        text = f"{_name_of(requested)} cannot be read: {error}"
        return Answer(_UNKNOWN_SECONDS, text, is_known=False) if blocks else Answer()
    if (problem := contradiction(requested, cluster)) is not None:
        raise Failure(f"{name} is not for {_name_of(requested)} now: {problem}")
    if cluster.facts.is_paused:
        return Answer(_UNKNOWN_SECONDS, f"{_name_of(requested)} is paused", is_known=False)
    if name == "BeforeClusterCreate" and cluster.facts.is_created:
        # The caller is late: there is nothing left to decide.
        return Answer()
    return await _answer(engine, live_occurrence(requested, cluster), cluster, blocks=blocks)


async def _answer(
    engine: Engine, occurrence: Occurrence, cluster: KnownCluster, *, blocks: bool
) -> Answer:
    store = engine.store
    labels = store.namespaces.get(occurrence.namespace)
    policies = selected(store.policies(occurrence.hook), occurrence, labels)
    keys = [
        ObjectKey(occurrence.namespace, result_name(policy.key, occurrence)) for policy in policies
    ]
    usable = [
        (policy, key) for policy, key in zip(policies, keys, strict=True) if policy.problem is None
    ]
    views = {key: _view(engine, key, occurrence) for key in keys}
    undecided = [(policy, key) for policy, key in usable if views[key] is None]
    if undecided:
        await _start(engine, occurrence, undecided)
        with suppress(TimeoutError):
            # What takes longer is left to the reconciler.
            async with asyncio.timeout(_SECONDS_AT_ONCE):
                await _decide_at_once(engine, occurrence, usable, views, cluster)
        _create_soon(engine, occurrence, undecided, views)
    pairs = [
        (policy, key) for policy, key in zip(policies, keys, strict=True) if policy.blocks == blocks
    ]
    return decide([policy for policy, _ in pairs], [views[key] for _, key in pairs])


async def _live_cluster(engine: Engine, requested: Occurrence, version: str) -> KnownCluster:
    """The Cluster that a request names, as it is.

    Raises:
        Failure: there is none.
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
    problem = engine.store.problem
    if not blocks:
        return Answer()
    if engine.is_blind:
        text = f"it is not known which policies there are: {problem}"
        return Answer(_UNKNOWN_SECONDS, text, is_known=False)
    labels = engine.store.namespaces.get(occurrence.namespace)
    concerned = [
        policy for policy in selected(engine.policies, occurrence, labels) if policy.blocks
    ]
    if not concerned:
        return Answer()
    names = ", ".join(policy.name for policy in concerned)
    return Answer(_UNKNOWN_SECONDS, f"policy {names}: {problem}", is_known=False)


Named = Sequence[tuple[KnownPolicy, ObjectKey]]
"""Policies in their order, with the names of their results."""
Views = dict[ObjectKey, ResultView | None]


async def _start(engine: Engine, occurrence: Occurrence, undecided: Named) -> None:
    """Create the results that the reconciler starts work for."""
    results = [
        new_result(policy, key.name, occurrence, engine.now())
        for policy, key in undecided
        if policy.spec.action.name not in ACTIONS_AT_ONCE and engine.store.result(key) is None
    ]
    if results:
        await asyncio.gather(*(engine.create(result) for result in results))


async def _decide_at_once(
    engine: Engine,
    occurrence: Occurrence,
    policies: Named,
    views: Views,
    cluster: KnownCluster,
) -> None:
    """Add the views of what is a matter of a moment; of each order if those before are done."""

    async def add_view(policy: KnownPolicy, key: ObjectKey) -> None:
        outcome = await engine.decided_at_once(policy, occurrence, cluster)
        if outcome is not None:
            views[key] = ResultView(outcome.phase, outcome.message, outcome.retry_seconds)

    for _, group in groupby(policies, key=lambda entry: entry[0].spec.order):
        entries = list(group)
        await asyncio.gather(*(add_view(*entry) for entry in entries if views[entry[1]] is None))
        if not all(_lets_pass(policy, views[key]) for policy, key in entries):
            return


def _create_soon(engine: Engine, occurrence: Occurrence, undecided: Named, views: Views) -> None:
    """Have results created of what needs none for the answer."""
    for policy, key in undecided:
        if policy.spec.action.name in ACTIONS_AT_ONCE and engine.store.result(key) is None:
            view = views[key]
            done = view.message if view is not None and view.phase == "Done" else None
            engine.create_soon(PendingResult(policy, key.name, occurrence, engine.now(), done))


def _lets_pass(policy: KnownPolicy, view: ResultView | None) -> bool:
    """Whether policies of a greater order start."""
    if view is None:
        return False
    return view.phase == "Done" or (view.phase == "Failed" and not policy.blocks)


def _view(engine: Engine, key: ObjectKey, occurrence: Occurrence) -> ResultView | None:
    result = engine.store.result(key)
    if result is None:
        return None
    if not result.is_about(occurrence.uid):
        # Its name is taken until it is gone.
        return ResultView("Waiting", "the result of an earlier Cluster is being deleted", 5)
    return result.view
