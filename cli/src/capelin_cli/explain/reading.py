"""Reads from a management cluster the objects that explain one Cluster."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import (
    Cluster,
    ExtensionConfig,
    Machine,
    MachineDeployment,
    MachineHealthCheck,
    MachinePool,
    MachineSet,
)
from capelin.api.core import CustomResourceDefinition, Deployment, Event
from capelin.client import Client, ClientError, NotServed
from capelin.contract import CLUSTER_NAME_LABEL, PROVIDER_LABEL, served_resource
from capelin_embedded.management import Environment, Status, current_status
from capelin_embedded.processes import Phase
from capelin_lifecycle.api import LifecycleResult
from pydantic import ValidationError

from capelin_cli.explain.cluster_rules import class_of, templates_of
from capelin_cli.explain.facts import Controller, Facts, Subject, Warned, text_at, typed
from capelin_cli.explain.model import Reference
from capelin_cli.status.cluster_tree import ClusterGraph, ClusterObject
from capelin_cli.status.condition_messages import blocking_responses, hook_reasons
from capelin_cli.status.policies import read_results
from capelin_cli.status.readiness import not_ready_reason

_MOST_REFERENCES: Final = 40
"""Unsettled Machines and their owners whose parts are read. More of them repeat the same causes."""
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_WORKERS: Final = (MachinePool.resource.kind, MachineDeployment.resource.kind)
_LISTED: Final = (MachineDeployment, MachineSet, MachinePool, Machine)


async def read_facts(
    client: Client, name: str, namespace: str, environment: Environment | None
) -> Facts | None:
    """The facts about a Cluster. None if it does not exist."""
    found = await client.find(Cluster.resource, name, namespace)
    if found is None:
        return None
    reading = _Reading(client, namespace)
    cluster, typed = reading.add(found, Cluster.resource), Cluster.read(found)
    blocked = frozenset(blocking_responses(typed))
    is_hooked = blocked or cluster.is_deleting
    results = await read_results(client, namespace) if is_hooked else ()
    await asyncio.gather(
        *(reading.list(kind.resource, {CLUSTER_NAME_LABEL: name}) for kind in _LISTED),
        reading.list(MachineHealthCheck.resource, {CLUSTER_NAME_LABEL: name}),
        reading.list(ExtensionConfig.resource, {}),
    )
    await reading.follow(cluster)
    await reading.read_warnings()
    controllers = await _controllers(client, environment)
    return Facts(
        cluster=cluster,
        waits=not_ready_reason(reading.graph(cluster, typed, results)),
        objects=reading.objects,
        missing=frozenset(reading.missing),
        unserved=frozenset(reading.unserved),
        controllers=controllers,
        labels=reading.labels,
        hooks=hook_reasons(typed, results),
        blocked=blocked,
        warnings=reading.warnings,
    )


@dataclass
class _Reading:
    """The objects so far."""

    client: Client
    namespace: str
    objects: dict[Reference, Subject] = field(default_factory=dict[Reference, Subject])
    missing: set[Reference] = field(default_factory=set[Reference])
    unserved: set[Reference] = field(default_factory=set[Reference])
    labels: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    warnings: dict[Reference, Warned] = field(default_factory=dict[Reference, Warned])
    _resources: dict[tuple[str, str], Resource | None] = field(
        default_factory=dict[tuple[str, str], Resource | None]
    )

    def add(self, raw: Unstructured, resource: Resource) -> Subject:
        subject = Subject(typed(resource, raw))
        self.objects[subject.reference] = subject
        return subject

    def graph(
        self, cluster: Subject, typed: Cluster, results: Sequence[LifecycleResult]
    ) -> ClusterGraph:
        """The objects that decide whether the Cluster is ready, as far as they are readable."""
        control_plane = cluster.refers_to("spec", "controlPlaneRef")
        parts: dict[Reference, ClusterObject] = {}
        for reference, subject in self.objects.items():
            if reference.kind in _WORKERS or reference == control_plane:
                with suppress(ValidationError):
                    parts[reference] = ClusterObject.read(subject.raw)
        return ClusterGraph(
            typed,
            control_plane=parts.pop(control_plane, None) if control_plane else None,
            # The pools first.
            workers=sorted(parts.values(), key=lambda obj: obj.kind, reverse=True),
            results=results,
        )

    async def list(self, resource: Resource, labels: dict[str, str]) -> None:
        namespace = self.namespace if resource.namespaced else None
        try:
            found = await self.client.list(resource, namespace, labels=labels)
        except NotServed:
            return
        for raw in found.items:
            self.add(raw, resource)

    async def follow(self, cluster: Subject) -> None:
        """Read the objects that others refer to, and the controllers' names of all kinds."""
        references = [
            cluster.refers_to("spec", "infrastructureRef"),
            cluster.refers_to("spec", "controlPlaneRef"),
            class_of(cluster),
        ]
        owners = [
            (subject, _PARTS[subject.reference.kind])
            for subject in self.objects.values()
            if not subject.is_settled and subject.reference.kind in _PARTS
        ]
        references += [
            subject.refers_to(*path, *part)
            for subject, path in owners[:_MOST_REFERENCES]
            for part in (("infrastructureRef",), ("bootstrap", "configRef"))
        ]
        await asyncio.gather(*map(self._read, {each for each in references if each}))
        classes = [each for each in self.objects.values() if each.reference.kind == "ClusterClass"]
        templates = {
            reference
            for each in classes
            if not each.is_observed
            for _, reference in templates_of(each)
        }
        await asyncio.gather(*map(self._read, templates))
        kinds = {(each.group, each.kind) for each in self.objects}
        await asyncio.gather(*(self._label(group, kind) for group, kind in kinds))

    async def _read(self, reference: Reference) -> None:
        resource = await self._resource(reference.group, reference.kind)
        if resource is None:
            self.unserved.add(reference)
            return
        found = await self.client.find(resource, reference.name, reference.namespace)
        if found is None:
            self.missing.add(reference)
        else:
            self.add(found, resource)

    async def _resource(self, group: str, kind: str) -> Resource | None:
        key = (group, kind)
        if key not in self._resources:
            self._resources[key] = await served_resource(self.client, group, kind)
        return self._resources[key]

    async def _label(self, group: str, kind: str) -> None:
        """Read which provider installed a kind."""
        resource = await self._resource(group, kind)
        if resource is None:
            return
        try:
            path = CustomResourceDefinition.resource.path(name=f"{resource.plural}.{group}")
            crd = await self.client.request("GET", path, accept=_METADATA)
        except ClientError:
            # Users of one namespace may not read CRDs.
            return
        if label := text_at(crd, "metadata", "labels", PROVIDER_LABEL):
            self.labels[group, kind] = label

    async def read_warnings(self) -> None:
        """Read the newest event of type Warning of each object."""
        try:
            events = (await self.client.list(Event, self.namespace)).items
        except ClientError:
            return
        known = {(key.kind, key.name): key for key in self.objects}
        for event in sorted(events, key=_moment):
            about = event.regarding
            key = known.get((about.kind or "", about.name or "")) if about else None
            if key is not None and event.type == "Warning" and event.note:
                text = f"{event.reason}: {event.note}" if event.reason else event.note
                self.warnings[key] = Warned(text, _time_of(event))


_PARTS: Final[dict[str, Sequence[str]]] = {
    "MachineDeployment": ("spec", "template", "spec"),
    "MachineSet": ("spec", "template", "spec"),
    "MachinePool": ("spec", "template", "spec"),
    "Machine": ("spec",),
}


def _time_of(event: Event) -> datetime | None:
    series = event.series.last_observed_time if event.series else None
    return series or event.event_time or event.deprecated_last_timestamp


def _moment(event: Event) -> float:
    found = _time_of(event)
    return found.timestamp() if found else 0.0


async def _controllers(client: Client, environment: Environment | None) -> list[Controller]:
    """The controllers that run as Deployments, and those that run as processes."""
    status = current_status(environment) if environment else None
    processes = _processes(environment, status) if environment and status else []
    try:
        deployments = (await client.list(Deployment, labels=PROVIDER_LABEL)).items
    except ClientError:
        deployments = []
    labels = {each.label for each in processes}
    return [
        *processes,
        *(
            controller
            for controller in map(_deployed, deployments)
            if controller.label not in labels
        ),
    ]


def _deployed(deployment: Deployment) -> Controller:
    namespace = deployment.namespace or "default"
    reference = Reference(
        group="apps", kind="Deployment", name=deployment.name, namespace=namespace
    )
    available = deployment.status.available_replicas or 0
    wanted = deployment.spec.replicas
    text = f"{available} of {1 if wanted is None else wanted} pods of its Deployment are available"
    return Controller(
        label=deployment.metadata.labels[PROVIDER_LABEL],
        reference=reference,
        runs=available > 0,
        text=text,
        command=f"kubectl get pods -n {namespace}",
    )


def _processes(environment: Environment, status: Status) -> list[Controller]:
    return [
        Controller(
            label=process.name,
            reference=Reference(kind="Process", name=process.name),
            runs=process.phase is Phase.RUNNING,
            text=process.message or f"its process is {process.phase}",
            command=f"capelin logs {process.name} -e {environment.name}",
        )
        for process in status.processes
    ]
