"""Reads from a management cluster the objects that a plan needs. It only reads."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import (
    Cluster,
    ClusterClass,
    ExtensionConfig,
    MachineDeployment,
    MachinePool,
    MachineSet,
)
from capelin.api.core import Namespace
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL

from capelin_cli.explain.cluster_rules import class_of
from capelin_cli.explain.facts import Subject, at, reference_of, references_in, text_at, typed
from capelin_cli.explain.model import Reference
from capelin_cli.plan.kinds import Kinds, read_definitions, read_kinds
from capelin_cli.plan.snapshot import Snapshot

_READ_BY_NAME: Final = ("ClusterClass", "Cluster")


@dataclass(frozen=True)
class Source:
    """The objects of the Clusters that a change may concern, and their kinds."""

    kinds: Kinds
    objects: Snapshot
    providers: list[Resource] = field(default_factory=list[Resource])
    """The providers' kinds of these objects."""
    definitions: list[Unstructured] = field(default_factory=list[Unstructured])
    """Their CRDs."""
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
    objects = await read_objects(client, kinds, manifests)
    touched = [*objects.objects, *map(reference_of, manifests)]
    names = {key.namespace for key in touched if key.namespace}
    namespaces = await asyncio.gather(*(client.find(Namespace, name) for name in sorted(names)))
    providers = _used_kinds(kinds, touched)
    return Source(
        kinds=kinds,
        objects=objects,
        providers=providers,
        definitions=await read_definitions(client, providers),
        namespaces={each.name: each.metadata.labels for each in namespaces if each is not None},
        extensions=(await client.list(ExtensionConfig)).items,
    )


async def read_objects(client: Client, kinds: Kinds, manifests: Sequence[Unstructured]) -> Snapshot:
    """The objects of the Clusters that changed objects belong to."""
    reading = _Reading(client, kinds)
    changed = [reference_of(manifest) for manifest in manifests]
    clusters = await reading.concerned(changed)
    await asyncio.gather(*map(reading.add_cluster, clusters))
    await asyncio.gather(*map(reading.read, changed))
    await reading.follow(manifests)
    return Snapshot(reading.objects)


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

    async def list(
        self, resource: Resource, namespace: str | None = None, cluster: str = ""
    ) -> list[Unstructured]:
        """The objects of a kind, optionally only those with the label of a Cluster."""
        labels = {CLUSTER_NAME_LABEL: cluster} if cluster else None
        found = await self.client.list(resource, namespace, labels=labels)
        return [typed(resource, raw) for raw in found.items]

    async def concerned(self, changed: Iterable[Reference]) -> Sequence[Unstructured]:
        """The existing Clusters that changed objects belong to."""
        clusters, classes = (
            await self.list(Cluster.resource),
            await self.list(ClusterClass.resource),
        )
        owners = {reference: await self._owners(reference) for reference in changed}
        return [
            cluster
            for cluster in clusters
            if any(_concerns(key, cluster, classes, names) for key, names in owners.items())
        ]

    async def _owners(self, changed: Reference) -> set[str]:
        """The names of the Clusters that an object belongs to, or whose objects refer to it."""
        resource = self.kinds.find(changed.group, changed.kind)
        if resource is None or not changed.namespace or changed.kind in _READ_BY_NAME:
            return set()
        raw = await self.client.find(resource, changed.name, changed.namespace)
        name = text_at(raw, "metadata", "labels", CLUSTER_NAME_LABEL) if raw else ""
        if name:
            return {name}
        return {
            text_at(each, "spec", "clusterName")
            for kind in (MachineDeployment, MachinePool, MachineSet)
            for each in await self.list(kind.resource, changed.namespace)
            if refers_to(each, changed)
        }

    async def add_cluster(self, cluster: Unstructured) -> None:
        """Read all objects with the label of a Cluster."""
        key = reference_of(cluster)
        listed = await asyncio.gather(
            *(
                self.list(resource, key.namespace, key.name)
                for resource in self.kinds.by_kind.values()
                if resource.namespaced and resource.kind not in _READ_BY_NAME
            )
        )
        found = [cluster, *(obj for objects in listed for obj in objects)]
        self.objects.update({reference_of(obj): obj for obj in found})

    async def follow(self, manifests: Sequence[Unstructured]) -> None:
        """Read the objects that others refer to, until no other is missing."""
        tried: set[Reference] = set()
        while True:
            missing = {
                reference
                for obj in [*self.objects.values(), *manifests]
                for reference in _named_by(obj)
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
            obj = typed(resource, raw)
            self.objects[reference_of(obj)] = obj


def _concerns(
    changed: Reference, cluster: Unstructured, classes: Sequence[Unstructured], owners: set[str]
) -> bool:
    """Whether a Cluster uses a changed object. `owners` are Clusters of its namespace that do."""
    key, class_key = reference_of(cluster), class_of(Subject(cluster))
    if changed.kind in _READ_BY_NAME:
        return changed in {key, class_key}
    of_class = [each for each in classes if reference_of(each) == class_key]
    if any(refers_to(each, changed) for each in of_class):
        return True
    if changed.kind == ExtensionConfig.resource.kind:
        return any(f".{changed.name}" in str(at(each, "spec")) for each in of_class)
    return changed.namespace == key.namespace and key.name in owners


def refers_to(obj: Unstructured, reference: Reference) -> bool:
    """Whether the spec of an object refers to another."""
    return any(named == reference for _, named in references_in(obj))


def _named_by(obj: Unstructured) -> Iterator[Reference]:
    """The objects that the spec of an object refers to, and the class of a Cluster."""
    yield from (named for _, named in references_in(obj))
    if (cluster_class := class_of(Subject(obj))) is not None:
        yield cluster_class
