"""Reads from a management cluster the objects that a plan needs. It only reads."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, ClusterClass, ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL

from capelin_infra.explain.class_rules import class_of
from capelin_infra.explain.facts import Subject, at, reference_of, references_in, text_at, typed
from capelin_infra.explain.model import Reference
from capelin_infra.plan.kinds import Kinds, read_definitions, read_kinds
from capelin_infra.plan.snapshot import Snapshot

_READ_BY_NAME: Final = ("ClusterClass", "Cluster")


@dataclass(frozen=True)
class Source:
    """The objects of the Clusters that a change may concern, and their kinds."""

    kinds: Kinds
    objects: Snapshot
    definitions: list[Unstructured] = field(default_factory=list[Unstructured])
    """The CRDs of providers."""
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """The labels of each namespace."""
    extensions: list[ExtensionConfig] = field(default_factory=list[ExtensionConfig])

    def resource_of(self, obj: Unstructured) -> Resource:
        """The resource of an object that was read."""
        key = reference_of(obj)
        if key.kind == ExtensionConfig.resource.kind:
            return ExtensionConfig.resource
        resource = self.kinds.find(key.group, key.kind)
        if resource is None:
            raise LookupError(f"{key} has an unknown kind")
        return resource


async def read_source(client: Client, manifests: Sequence[Unstructured]) -> Source:
    """The Clusters that changed objects belong to, with everything that belongs to them."""
    kinds = await read_kinds(client)
    reading = _Reading(client, kinds)
    changed = [reference_of(manifest) for manifest in manifests]
    clusters = await reading.concerned(changed)
    await asyncio.gather(*(reading.add_cluster(cluster) for cluster in clusters))
    await asyncio.gather(*map(reading.read, changed), *map(reading.add_class, manifests))
    await reading.follow(manifests)
    touched = [*reading.objects, *changed]
    names = {key.namespace for key in touched if key.namespace}
    namespaces = await asyncio.gather(*(client.find(Namespace, name) for name in sorted(names)))
    return Source(
        kinds=kinds,
        objects=Snapshot(reading.objects),
        definitions=await read_definitions(client, _used_kinds(kinds, touched)),
        namespaces={each.name: each.metadata.labels for each in namespaces if each is not None},
        extensions=(await client.list(ExtensionConfig)).items,
    )


def _used_kinds(kinds: Kinds, objects: Iterable[Reference]) -> list[Resource]:
    """The providers' kinds of these objects, each with its template or its instances."""
    words = {(key.group, key.kind.removesuffix("Template")) for key in objects}
    return sorted(
        (
            resource
            for resource in kinds.of_providers
            if (resource.group, resource.kind.removesuffix("Template")) in words
        ),
        key=lambda each: (each.group, each.plural),
    )


@dataclass
class _Reading:
    """The objects so far."""

    client: Client
    kinds: Kinds
    objects: dict[Reference, Unstructured] = field(default_factory=dict[Reference, Unstructured])

    def add(self, raw: Unstructured, resource: Resource) -> None:
        obj = typed(resource, raw)
        self.objects[reference_of(obj)] = obj

    async def concerned(self, changed: list[Reference]) -> list[Unstructured]:
        """The existing Clusters that changed objects belong to."""
        clusters = (await self.client.list(Cluster.resource)).items
        classes = (await self.client.list(ClusterClass.resource)).items
        found: dict[str, Unstructured] = {}
        for reference in changed:
            owners = await self._owners(reference)
            for cluster in clusters:
                if _concerns(reference, cluster, classes, owners):
                    found[text_at(cluster, "metadata", "uid")] = cluster
        return list(found.values())

    async def _owners(self, changed: Reference) -> set[str]:
        """The names of the Clusters that an object belongs to, or whose objects refer to it."""
        resource = self.kinds.find(changed.group, changed.kind)
        if resource is None or not changed.namespace or changed.kind in _READ_BY_NAME:
            return set()
        raw = await self.client.find(resource, changed.name, changed.namespace)
        name = text_at(raw, "metadata", "labels", CLUSTER_NAME_LABEL) if raw else ""
        if name:
            return {name}
        found: set[str] = set()
        for kind in ("MachineDeployment", "MachinePool", "MachineSet"):
            workers = self.kinds.find(Cluster.resource.group, kind)
            if workers is None:
                continue
            for each in (await self.client.list(workers, changed.namespace)).items:
                if refers_to(each, changed):
                    found.add(text_at(each, "spec", "clusterName"))
        return found

    async def add_cluster(self, cluster: Unstructured) -> None:
        """Read all objects with the label of a Cluster."""
        self.add(cluster, Cluster.resource)
        name, namespace = (text_at(cluster, "metadata", key) for key in ("name", "namespace"))
        await asyncio.gather(
            *(
                self._list(resource, namespace, name)
                for resource in self.kinds.by_kind.values()
                if resource.namespaced and resource.kind not in _READ_BY_NAME
            )
        )
        await self.add_class(cluster)

    async def add_class(self, cluster: Unstructured) -> None:
        """Read the class of a Cluster."""
        key = _class_of(cluster)
        raw = None if key is None else await self.client.find(ClusterClass.resource, *key)
        if raw is not None:
            self.add(raw, ClusterClass.resource)

    async def _list(self, resource: Resource, namespace: str, cluster: str) -> None:
        labels = {CLUSTER_NAME_LABEL: cluster}
        for raw in (await self.client.list(resource, namespace, labels=labels)).items:
            self.add(raw, resource)

    async def follow(self, manifests: Sequence[Unstructured]) -> None:
        """Read the objects that the specs of others refer to, until no other is missing."""
        tried: set[Reference] = set()
        while True:
            missing = {
                reference
                for obj in [*self.objects.values(), *manifests]
                for _, reference in references_in(obj)
                if reference not in self.objects and reference not in tried
            }
            if not missing:
                return
            tried |= missing
            await asyncio.gather(*map(self.read, missing))

    async def read(self, reference: Reference) -> None:
        """Read an object, if it exists and follows a contract."""
        resource = self.kinds.find(reference.group, reference.kind)
        if resource is None:
            return
        raw = await self.client.find(resource, reference.name, reference.namespace)
        if raw is not None:
            self.add(raw, resource)


def _concerns(
    changed: Reference, cluster: Unstructured, classes: list[Unstructured], owners: set[str]
) -> bool:
    """Whether a Cluster uses a changed object. `owners` are Clusters of its namespace that do."""
    name, namespace = (text_at(cluster, "metadata", key) for key in ("name", "namespace"))
    if changed.kind == Cluster.resource.kind:
        return (changed.name, changed.namespace) == (name, namespace)
    class_key = _class_of(cluster)
    if changed.kind == ClusterClass.resource.kind:
        return class_key == (changed.name, changed.namespace)
    of_class = [each for each in classes if _key(each) == class_key]
    if any(refers_to(each, changed) for each in of_class):
        return True
    if changed.kind == ExtensionConfig.resource.kind:
        return any(f".{changed.name}" in str(at(each, "spec")) for each in of_class)
    return changed.namespace == namespace and name in owners


def refers_to(obj: Unstructured, reference: Reference) -> bool:
    """Whether the spec of an object refers to another."""
    return any(named == reference for _, named in references_in(obj))


def _class_of(cluster: Unstructured) -> tuple[str, str | None] | None:
    found = class_of(Subject(typed(Cluster.resource, cluster)))
    return None if found is None else (found.name, found.namespace)


def _key(obj: Unstructured) -> tuple[str, str]:
    return text_at(obj, "metadata", "name"), text_at(obj, "metadata", "namespace")
