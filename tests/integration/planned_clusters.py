"""Clusters as they are before and after a change."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import ApiError, Client
from capelin.testing.waiting import until
from capelin_cli.explain.model import Explanation, Reference
from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_cli.plan.comparison import CONTROL_PLANE, compare
from capelin_cli.plan.kinds import read_kinds
from capelin_cli.plan.model import ClusterPlan, MachineChanges
from capelin_cli.plan.settling import unsettled
from capelin_cli.plan.snapshot import Snapshot, uid_of
from capelin_cli.plan.source import read_objects
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.management import Environment

from .planned_scenes import cluster_of

_SECONDS = 600
_QUIET = 2.0


async def explanation(
    client: Client, name: str, environment: Environment | None = None
) -> Explanation:
    """The output of `capelin explain` about a Cluster in a namespace of the same name."""
    facts = await read_facts(client, name, name, environment)
    assert facts is not None
    return explain(facts)


@dataclass
class Healthy:
    """Explains ready Clusters as `capelin explain` does. Each should have no cause."""

    environment: Environment
    states: set[frozenset[tuple[str, int]]] = field(default_factory=set[frozenset[tuple[str, int]]])
    """The explained states. One without a new or changed object of core is not counted again."""
    false: list[str] = field(default_factory=list[str])
    """The explanations with a cause."""

    async def explain(self, client: Client, name: str, objects: Snapshot) -> None:
        found = await explanation(client, name, self.environment)
        if found.state != "Ready" or found.chains:
            self.false.append(found.model_dump_json(indent=1))
        self.states.add(
            frozenset(
                (uid_of(obj), obj["metadata"]["generation"])
                for key, obj in objects.objects.items()
                if key.group == Cluster.resource.group
            )
        )


@dataclass(frozen=True)
class Planned:
    """A Cluster in a namespace of the same name."""

    client: Client
    name: str
    healthy: Healthy | None = None

    @property
    def reference(self) -> Reference:
        resource = Cluster.resource
        return Reference(
            group=resource.group, kind=resource.kind, name=self.name, namespace=self.name
        )

    async def create(self, manifests: Sequence[Unstructured], topology: dict[str, Any]) -> None:
        """Create the class and the Cluster, and wait until it is ready."""
        await self.client.apply(Namespace.of(self.name))
        for manifest in manifests:
            manifest["metadata"]["namespace"] = self.name
            await self.client.apply(manifest)
        cluster = cluster_of(self.name, topology)

        async def problem() -> str:
            try:
                await self.client.create(cluster)
            except ApiError as error:
                # Core must reconcile the ClusterClass first.
                return str(error)
            return ""

        await until(problem, lambda text: not text)
        await self.settles()

    async def live(self) -> Unstructured:
        """The Cluster as it is."""
        found = await self.client.get(Cluster.resource, self.name, self.name)
        return {**found, "apiVersion": Cluster.resource.api_version, "kind": "Cluster"}

    async def objects(self) -> Snapshot:
        """All objects of the Cluster."""
        return await read_objects(self.client, await read_kinds(self.client), [await self.live()])

    async def settles(self) -> Snapshot:
        """Wait until the Cluster is ready and its objects no longer change."""
        messages: list[str] = []
        last: dict[str, str] = {}
        since = time.monotonic()
        kinds = await read_kinds(self.client)
        async with asyncio.timeout(_SECONDS):
            while True:
                await wait_until_ready(self.client, self.name, self.name, _SECONDS, messages.append)
                found = await read_objects(self.client, kinds, [await self.live()])
                versions = {
                    uid_of(obj): obj["metadata"]["resourceVersion"]
                    for obj in found.objects.values()
                }
                if versions != last or unsettled(found):
                    last, since = versions, time.monotonic()
                elif time.monotonic() - since > _QUIET:
                    break
                await asyncio.sleep(0.5)
        if self.healthy is not None:
            await self.healthy.explain(self.client, self.name, found)
        return found

    async def change(self, manifests: Sequence[Unstructured]) -> tuple[ClusterPlan, Snapshot]:
        """Make a change for real. Returns its effect."""
        before = await self.objects()
        control_plane = before.roles(self.reference)[CONTROL_PLANE]
        resource = await self.client.resource_of(control_plane)
        versions: list[str] = []
        following = asyncio.create_task(self._follow_version(resource, versions))
        for manifest in manifests:
            await self._apply(manifest)
        try:
            after = await self.settles()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        effect = real_effect(before, after, self.reference)
        return effect.model_copy(update={"versions": versions}), after

    async def _apply(self, manifest: Unstructured) -> None:
        resource = await self.client.resource_of(manifest)
        name = manifest["metadata"]["name"]
        live = await self.client.find(resource, name, self.name)
        if live is None:
            await self.client.create(manifest)
            return
        body = {**live, "spec": manifest["spec"]}
        await self.client.request("PUT", resource.path(self.name, name), body=body)

    async def _follow_version(self, resource: Resource, versions: list[str]) -> None:
        """Record the versions of the control plane, in their order."""
        async with aclosing(self.client.watch(resource, self.name)) as events:
            async for event in events:
                version = event.object["spec"]["version"]
                if versions[-1:] != [version]:
                    versions.append(version)

    async def remove(self) -> None:
        """Delete the Cluster and its namespace."""
        await self.client.delete(Cluster, self.name, self.name)

        async def is_gone() -> bool:
            return await self.client.find(Cluster, self.name, self.name) is None

        await until(is_gone, within=_SECONDS)
        await self.client.delete(Namespace, self.name)

        async def is_empty() -> bool:
            return await self.client.find(Namespace, self.name) is None

        await until(is_empty, within=_SECONDS)


def real_effect(before: Snapshot, after: Snapshot, cluster: Reference) -> ClusterPlan:
    """The real effect of a change. Machines whose provider decides are counted, not predicted."""
    plan = compare(before, after, cluster)
    old, new = before.machines(cluster), after.machines(cluster)
    machines = [
        counted(each, old.get(each.owner, []), new.get(each.owner, []))
        if each.owner.startswith("MachinePool ")
        or (each.owner == CONTROL_PLANE and not each.unknown)
        else each
        for each in plan.machines
    ]
    return plan.model_copy(update={"machines": machines})


def counted(
    predicted: MachineChanges, before: Sequence[Unstructured], after: Sequence[Unstructured]
) -> MachineChanges:
    """The machines that were replaced, by their UIDs."""
    old, new = set(map(uid_of, before)), set(map(uid_of, after))
    removed, added = len(old - new), len(new - old)
    replaced = min(removed, added)
    counts = {
        "before": len(old),
        "after": len(new),
        "kept": len(old & new) - predicted.updated,
        "replaced": replaced,
        "created": added - replaced,
        "deleted": removed - replaced,
    }
    return predicted.model_copy(update=counts)
