"""Computes a plan: loads the source into a sandbox, makes the change there, and compares."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.api.capi import (
    Cluster,
    ClusterClass,
    ExtensionConfig,
    Machine,
    MachineDeployment,
    MachineHealthCheck,
    MachinePool,
    MachineSet,
)
from capelin.api.core import Secret
from capelin.client import ApiError, Client, Destinations
from capelin.contract import CLUSTER_NAME_LABEL, SECRET_TYPE
from capelin.errors import InvalidInputError, UserError
from capelin.runtime.client import ClientCertificate
from capelin_embedded.binaries import CLUSTER_API
from capelin_lifecycle.api import Policy

from capelin_cli.explain.facts import at, reference_of
from capelin_cli.explain.model import Reference
from capelin_cli.plan.budgets import blocking_budgets, drained_nodes
from capelin_cli.plan.changes import applied
from capelin_cli.plan.comparison import CONTROL_PLANE, compare
from capelin_cli.plan.differences import LEVELS, differences, is_too_deep
from capelin_cli.plan.extensions import ExtensionStandIn, Listening, RealExtensions, listening
from capelin_cli.plan.guard import digests_of, guards
from capelin_cli.plan.hook_calls import hook_calls
from capelin_cli.plan.model import ClusterPlan, ObjectChange, Plan
from capelin_cli.plan.sandbox import Sandbox, concurrent, without_delays
from capelin_cli.plan.snapshot import Snapshot
from capelin_cli.plan.source import Source, read_source
from capelin_cli.plan.world import World, following
from capelin_cli.status.policies import read_policies

CORE: Final = tuple(
    kind.resource
    for kind in (
        Cluster,
        ClusterClass,
        Machine,
        MachineDeployment,
        MachineHealthCheck,
        MachinePool,
        MachineSet,
    )
)
_LOAD_SECONDS: Final = 30.0
_BEFORE_SECONDS: Final = 120.0
_log = logging.getLogger(__name__)


class _StopWatch:
    """Logs the duration of each phase."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def log(self, phase: str) -> None:
        now = time.monotonic()
        _log.info("%s in %.1f s", phase, now - self._last)
        self._last = now


@dataclass
class Planner:
    """Computes plans about one management cluster in one sandbox."""

    source: Client
    sandbox: Sandbox
    certificate: ClientCertificate | None = None
    """The client certificate for extensions that require one."""
    destinations: Destinations = field(default_factory=Destinations.from_environ)
    """The addresses at which workload clusters may be."""
    within: float = 300.0
    """How long the change may take in the sandbox, in seconds."""
    known: Snapshot = field(default_factory=lambda: Snapshot({}))
    """The objects that the last plan read."""
    resources: list[Resource] = field(default_factory=list[Resource])
    """Their kinds, with those of core."""
    _is_clear: bool = True
    _watch: _StopWatch = field(default_factory=_StopWatch)

    async def clear(self) -> None:
        """Remove the objects of the last plan from the sandbox. Otherwise, the next plan does."""
        if not self._is_clear:
            await self.sandbox.clear(self.resources)
            self._is_clear = True

    async def plan(self, manifests: Sequence[Unstructured]) -> Plan:
        """The effect of applying these objects.

        Raises:
            UserError: The objects are not accepted, or concern no Cluster.
        """
        watch = self._watch = _StopWatch()
        source, policies, _ = await asyncio.gather(
            read_source(self.source, manifests), read_policies(self.source), self.clear()
        )
        if deep := [str(key) for key, obj in source.objects.objects.items() if is_too_deep(obj)]:
            raise UserError(
                f"{deep[0]} cannot be compared.",
                reason=f"It has more than {LEVELS} levels of fields.",
                hint="Remove the innermost fields.",
            )
        watch.log("read")
        await self.sandbox.install(source.definitions, source.namespaces)
        watch.log("installed kinds")
        configs = _configs(source, manifests)
        answers = RealExtensions(self.source, self.certificate)
        self.known, self.resources = source.objects, [*CORE, *source.providers]
        self._is_clear = False
        async with (
            listening(configs, answers, guards(policies)) as extensions,
            following(self.sandbox, self.resources, source.definitions) as world,
        ):
            return await self._plan(source, manifests, policies, extensions, world)

    async def _plan(
        self,
        source: Source,
        manifests: Sequence[Unstructured],
        policies: Sequence[Policy],
        extensions: Listening,
        world: World,
    ) -> Plan:
        watch = self._watch
        await self._load(source, manifests, extensions, world)
        watch.log("loaded")
        early = await world.settle(_BEFORE_SECONDS)
        watch.log("settled before the change")
        before = world.snapshot
        extensions.stand_in.calls.clear()
        world.versions.clear()
        change = [await self._apply(manifest, source) for manifest in manifests]
        watch.log("made the change")
        late = await world.settle(self.within)
        watch.log("settled after the change")
        after = world.snapshot
        clusters = {reference_of(each): each for each in [*before.clusters(), *after.clusters()]}
        if not clusters:
            raise InvalidInputError(
                "The change concerns no Cluster.",
                reason="No Cluster has or uses one of the objects.",
                hint="Name objects of a Cluster, its ClusterClass or their templates.",
            )
        plans = [
            await self._of_cluster(
                source, compare(before, after, cluster), (before, after), extensions, policies
            )
            for cluster in clusters
        ]
        return Plan(
            cluster_api=CLUSTER_API.versions[-1],
            change=[each for each in change if each is not None],
            clusters=[_completed(plan, world, early, late, extensions.stand_in) for plan in plans],
            notes=list(_notes(source, manifests)),
        )

    async def _load(
        self,
        source: Source,
        manifests: Sequence[Unstructured],
        extensions: Listening,
        world: World,
    ) -> None:
        client, objects = self.sandbox.client, source.objects.objects
        names = [*objects, *(reference_of(manifest) for manifest in manifests)]
        for key in {key for key in names if key.kind == Cluster.resource.kind}:
            await client.apply(kubeconfig_secret(key, self.sandbox.kubeconfig))
        if extensions.stand_in.configs:
            raw = [config.dump() for config in extensions.stand_in.configs.values()]
            await self.sandbox.load(extensions.redirect(raw), source.resource_of)
            await extensions.stand_in.discovered(_LOAD_SECONDS)
        loaded = concurrent(objects.values(), manifests)
        async with self.sandbox.loading(loaded, source.resource_of):
            await world.ready(set(objects), _LOAD_SECONDS)

    async def _apply(self, manifest: Unstructured, source: Source) -> ObjectChange | None:
        """Make one change in the sandbox, with core's own validation."""
        key = reference_of(manifest)
        if key.kind == ExtensionConfig.resource.kind:
            # Its stand-in calls the extension of the new configuration already.
            return ObjectChange(action="Changed", kind=key.kind, role=key.name)
        client = self.sandbox.client
        live = source.objects.find(key)
        wanted = without_delays(applied(live, manifest))
        try:
            resource = await client.resource_of(wanted)
            present = await client.find(resource, key.name, key.namespace)
            if present is None:
                await client.create(wanted, resource=resource)
            else:
                metadata = changed_metadata(present, live or present, wanted)
                body = {**present, "metadata": metadata, "spec": wanted.get("spec", {})}
                body |= {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"]}
                await client.request("PUT", resource.path(key.namespace, key.name), body=body)
        except ApiError as error:
            raise UserError(
                f"The change of {key} is not accepted.",
                reason=f"{error}.",
                hint="Correct the object: Cluster API would reject it too.",
            ) from None
        if live is None:
            return ObjectChange(action="Created", kind=key.kind, role=key.name)
        fields = differences(live, applied(live, manifest))
        if not fields:
            return None
        return ObjectChange(action="Changed", kind=key.kind, role=key.name, fields=fields)

    async def _of_cluster(
        self,
        source: Source,
        plan: ClusterPlan,
        snapshots: tuple[Snapshot, Snapshot],
        extensions: Listening,
        policies: Sequence[Policy],
    ) -> ClusterPlan:
        cluster = plan.cluster
        labels = source.namespaces.get(cluster.namespace or "", {})
        # The Nodes of the source: those of the sandbox have other names.
        removed = drained_nodes(source.objects, snapshots[1], plan)
        budgets, reason = await blocking_budgets(self.source, cluster, removed, self.destinations)
        return plan.model_copy(
            update={
                "hooks": hook_calls(extensions.stand_in.calls, cluster, policies, labels),
                "budgets": budgets,
                "topologies": digests_of(extensions.stand_in.guarded, cluster),
                "unknown": [*plan.unknown, *([reason] if reason else [])],
            }
        )


def kubeconfig_secret(cluster: Reference, kubeconfig: bytes) -> Secret:
    """The Secret by which core reaches the workload cluster, which is the sandbox itself."""
    secret = Secret.of(f"{cluster.name}-kubeconfig", cluster.namespace)
    secret.metadata.labels[CLUSTER_NAME_LABEL] = cluster.name
    secret.type = SECRET_TYPE
    secret.data = {"value": kubeconfig}
    return secret


def changed_metadata(
    present: Unstructured, before: Unstructured, after: Unstructured
) -> dict[str, Any]:
    """The metadata of an object in the sandbox with the changed labels and annotations."""
    metadata: dict[str, Any] = dict(present["metadata"])
    for name in ("labels", "annotations"):
        kept, known, wanted = (
            cast("dict[str, str]", at(each, "metadata", name) or {})
            for each in (present, before, after)
        )
        metadata[name] = {
            **{key: value for key, value in kept.items() if key in wanted or key not in known},
            **{key: value for key, value in wanted.items() if known.get(key) != value},
        }
    return metadata


def _configs(source: Source, manifests: Sequence[Unstructured]) -> list[ExtensionConfig]:
    """The extensions, with the changed addresses and settings of the change."""
    found = {config.name: config for config in source.extensions}
    for manifest in manifests:
        key = reference_of(manifest)
        if key.kind == ExtensionConfig.resource.kind and key.name in found:
            live = found[key.name]
            found[key.name] = ExtensionConfig.read(applied(live.dump(), manifest))
    return [config for config in found.values() if config.status.handlers]


def _completed(
    plan: ClusterPlan,
    world: World,
    early: Sequence[str],
    late: Sequence[str],
    extensions: ExtensionStandIn,
) -> ClusterPlan:
    """The plan with everything that the comparison of two moments does not show."""
    versions = plan.versions
    roles = world.snapshot.roles(plan.cluster)
    control_plane = roles.get(CONTROL_PLANE)
    if control_plane is not None and plan.versions:
        steps = world.versions.get(reference_of(control_plane), [])
        versions = list(dict.fromkeys([plan.versions[0], *steps, plan.versions[-1]]))
    unknown = [*plan.unknown, *sorted(extensions.unreachable.values())]
    if early:
        unknown.append(f"the cluster is changing already: {early[0]}")
    # A reason that exists before the change does not come from it.
    unknown += [f"not finished: {reason}" for reason in late if reason not in early]
    cluster = roles.get("Cluster")
    if cluster is not None and at(cluster, "spec", "paused"):
        unknown.append("the Cluster is paused: nothing changes until it continues")
    return plan.model_copy(update={"versions": versions, "unknown": unknown})


def _notes(source: Source, manifests: Iterable[Unstructured]) -> Iterable[str]:
    if any(
        "minReadySeconds" in str(each) for each in [*source.objects.objects.values(), *manifests]
    ):
        yield "The plan leaves minReadySeconds out, because it does not wait."
