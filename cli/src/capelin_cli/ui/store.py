"""The observed objects by cluster, and a number that grows with each change."""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, ContractReference, MachineDeployment, MachinePool
from capelin.api.capi import Machine as MachineKind
from capelin_lifecycle.api import LifecycleResult
from pydantic import ValidationError

from capelin_cli.explain.facts import text_at
from capelin_cli.explain.model import Explanation
from capelin_cli.status.condition_messages import blocking_responses
from capelin_cli.ui.observed import (
    Key,
    Machine,
    Part,
    cluster_key,
    machine_phase,
    read_machine,
    read_part,
)
from capelin_cli.ui.timeline import Phase, Timeline

_WORKERS: Final = frozenset({MachinePool.resource.kind, MachineDeployment.resource.kind})
_MOST_REMOVED: Final = 1000
_RECENT_SECONDS: Final = 3600.0
"""Machines that are younger have a lane in the timeline from the beginning."""

Reference = tuple[str, str, str, str]
"""Group, kind, namespace and name."""


@dataclass(slots=True)
class Entry:
    """One cluster."""

    key: Key
    cluster: Cluster | None = None
    """None until the Cluster itself was read."""
    workers: dict[str, Part] = field(default_factory=dict[str, Part])
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    results: dict[str, LifecycleResult] = field(default_factory=dict[str, LifecycleResult])
    timeline: Timeline = field(default_factory=Timeline)
    explanation: Explanation | None = None
    changed: int = 0
    """The store's number at the last change."""

    @property
    def existing(self) -> Cluster:
        """Its Cluster.

        Raises:
            LookupError: Only other objects of the cluster were read.
        """
        if self.cluster is None:
            raise LookupError(f"Cluster {self.key} was not read")
        return self.cluster

    def references(self) -> Iterator[Reference]:
        """Its infrastructure and its control plane."""
        spec = self.cluster.spec if self.cluster else None
        for part in (spec.infrastructure_ref, spec.control_plane_ref) if spec else ():
            if (reference := _reference(part, self.key[0])) is not None:
                yield reference

    @property
    def class_key(self) -> Key | None:
        """Namespace and name of its ClusterClass."""
        topology = self.cluster.spec.topology if self.cluster else None
        if topology is None or not topology.class_ref.name:
            return None
        return (topology.class_ref.namespace or self.key[0], topology.class_ref.name)


def _reference(part: ContractReference | None, namespace: str) -> Reference | None:
    if part is None or not (part.api_group and part.kind and part.name):
        return None
    return (part.api_group, part.kind, namespace, part.name)


class Store:
    """All observed objects. `changed_after` waits for changes."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.number = 0
        self.entries: dict[Key, Entry] = {}
        self.removed: dict[Key, int] = {}
        """The clusters that no longer exist, with the number of their removal."""
        self.parts: dict[Reference, Part] = {}
        self.unreadable: set[Reference] = set()
        self.loading = True
        self.trouble = ""
        self._keys: dict[Reference, Key] = {}
        """The cluster of each object, since a deleted one may be incomplete."""
        self._users: dict[Reference, set[Key]] = {}
        """The clusters that refer to an object."""
        self._changes = asyncio.Condition()

    # Reading

    def shown(self) -> list[Entry]:
        """The clusters that exist, by namespace and name."""
        return [entry for _, entry in sorted(self.entries.items()) if entry.cluster is not None]

    def part(self, entry: Entry, reference: ContractReference | None) -> Part | None:
        """The object that a Cluster refers to. None if it was not read."""
        key = _reference(reference, entry.key[0])
        return self.parts.get(key) if key else None

    def kinds(self) -> set[tuple[str, str]]:
        """Group and kind of all infrastructure and control planes."""
        return {(group, kind) for group, kind, _, _ in self._users}

    async def changed_after(self, number: int) -> None:
        """Wait until something has changed since `number`."""
        async with self._changes:
            await self._changes.wait_for(lambda: self.number > number)

    # Changing

    def apply(self, resource: Resource, raw: Unstructured, *, deleted: bool = False) -> None:
        """Take over an event of a watch."""
        reference = _raw_reference(resource, raw)
        try:
            self._apply(reference, raw, deleted=deleted)
            self.unreadable.discard(reference)
        except ValidationError:
            # Its last readable state stays.
            self.unreadable.add(reference)

    def sweep(self, resource: Resource, names: Collection[Key], namespace: str | None) -> None:
        """Forget the objects of a kind that a complete list does not contain."""
        known = {*self._keys, *self.parts}
        for reference in known:
            group, kind, where, name = reference
            if (group, kind) != (resource.group, resource.kind) or (where, name) in names:
                continue
            if namespace is None or where == namespace:
                metadata = {"namespace": where, "name": name}
                self._apply(reference, {"metadata": metadata}, deleted=True)

    def explain(self, key: Key, explanation: Explanation | None) -> None:
        """Set why a cluster waits."""
        entry = self.entries.get(key)
        if entry is not None and entry.explanation != explanation:
            entry.explanation = explanation
            self._touch(entry)

    def report(self, *, loading: bool | None = None, trouble: str | None = None) -> None:
        """Set whether the data is complete, and why it may be old."""
        before = (self.loading, self.trouble)
        self.loading = self.loading if loading is None else loading
        self.trouble = self.trouble if trouble is None else trouble
        if before != (self.loading, self.trouble):
            self.number += 1

    async def announce(self) -> None:
        """Wake all that wait for changes."""
        async with self._changes:
            self._changes.notify_all()

    def _apply(self, reference: Reference, raw: Unstructured, *, deleted: bool) -> None:
        _, kind, namespace, name = reference
        if kind == Cluster.resource.kind:
            self._apply_cluster((namespace, name), reference, raw, deleted=deleted)
        elif kind in {MachineKind.resource.kind, LifecycleResult.resource.kind, *_WORKERS}:
            key = self._keys.get(reference) or cluster_key(raw)
            if key is None:
                return
            entry = self._entry(key)
            self._apply_object(entry, kind, name, raw, deleted=deleted)
            self._touch(entry)
            if deleted:
                self._keys.pop(reference, None)
                self._drop_if_empty(entry)
            else:
                self._keys[reference] = entry.key
        else:
            self._apply_part(reference, raw, deleted=deleted)

    def _apply_cluster(
        self, key: Key, reference: Reference, raw: Unstructured, *, deleted: bool
    ) -> None:
        entry = self._entry(key)
        for used in entry.references():
            self._users.get(used, set[Key]()).discard(key)
        if deleted:
            entry.cluster = entry.explanation = None
            entry.timeline = Timeline()
            self._keys.pop(reference, None)
            self._touch(entry)
            self.removed[key] = self.number
            if len(self.removed) > _MOST_REMOVED:
                del self.removed[next(iter(self.removed))]
            self._drop_if_empty(entry)
            return
        cluster, phase = Cluster.read(raw), read_part(raw).phase
        entry.cluster = cluster
        self._keys[reference] = key
        self.removed.pop(key, None)
        for used in entry.references():
            self._users.setdefault(used, set()).add(key)
            if (part := self.parts.get(used)) is not None:
                self._observe_part(entry, used, part.phase)
        now = self.now()
        entry.timeline.observe("Cluster", "Cluster", phase, now)
        self._observe_hooks(entry, cluster, now)
        self._touch(entry)

    def _observe_hooks(self, entry: Entry, cluster: Cluster, now: datetime) -> None:
        """Record the hooks that block. Those of policies have results with more detail."""
        of_policies = {result.spec.hook for result in entry.results.values()}
        responses = {
            hook: text
            for hook, text in blocking_responses(cluster).items()
            if hook not in of_policies
        }
        for hook, response in responses.items():
            entry.timeline.observe("Hook", hook, Phase("waiting", response or "blocks"), now)
        ended = [hook for hook in entry.timeline.open_hooks() if hook not in responses]
        for hook in ended:
            entry.timeline.observe("Hook", hook, None, now)

    def _apply_object(
        self, entry: Entry, kind: str, name: str, raw: Unstructured, *, deleted: bool
    ) -> None:
        now = self.now()
        if kind == MachineKind.resource.kind:
            self._apply_machine(entry, name, None if deleted else read_machine(raw), now)
        elif kind in _WORKERS:
            title = f"{kind}/{name}"
            part = None if deleted else read_part(raw)
            if part is None:
                entry.workers.pop(title, None)
            else:
                entry.workers[title] = part
            entry.timeline.observe("Workers", title, part.phase if part else None, now)
        elif deleted:
            if (last := entry.results.pop(name, None)) is not None:
                entry.timeline.observe_result(last, now, exists=False)
        else:
            entry.results[name] = LifecycleResult.read(raw)
            entry.timeline.observe_result(entry.results[name], now, exists=True)

    def _apply_machine(
        self, entry: Entry, name: str, machine: Machine | None, now: datetime
    ) -> None:
        before = entry.machines.pop(name, None)
        if machine is None:
            if before is not None:
                entry.timeline.observe("Machine", name, machine_phase(before, None), now)
            entry.timeline.observe("Machine", name, None, now)
            return
        entry.machines[name] = machine
        created = datetime.fromtimestamp(machine.since, now.tzinfo)
        is_recent = (now - created).total_seconds() < _RECENT_SECONDS
        changed = before is not None and (before.phase, before.version, before.state) != (
            machine.phase,
            machine.version,
            machine.state,
        )
        if changed and before is not None and not entry.timeline.has_lane("Machine", name):
            entry.timeline.observe("Machine", name, machine_phase(before, created), now)
        if changed or (before is None and is_recent):
            since = created if before is None else now
            entry.timeline.observe("Machine", name, machine_phase(machine, since), now)

    def _apply_part(self, reference: Reference, raw: Unstructured, *, deleted: bool) -> None:
        part = None if deleted else read_part(raw)
        if part is None:
            self.parts.pop(reference, None)
        else:
            self.parts[reference] = part
        for key in self._users.get(reference, ()):
            entry = self._entry(key)
            self._observe_part(entry, reference, part.phase if part else None)
            self._touch(entry)

    def _observe_part(self, entry: Entry, reference: Reference, phase: Phase | None) -> None:
        control_plane = entry.cluster.spec.control_plane_ref if entry.cluster else None
        if _reference(control_plane, entry.key[0]) == reference:
            title = f"{reference[1]}/{reference[3]}"
            entry.timeline.observe("ControlPlane", title, phase, self.now())

    def _entry(self, key: Key) -> Entry:
        return self.entries.setdefault(key, Entry(key))

    def _touch(self, entry: Entry) -> None:
        self.number += 1
        entry.changed = self.number

    def _drop_if_empty(self, entry: Entry) -> None:
        if entry.cluster is None and not (entry.workers or entry.machines or entry.results):
            self.entries.pop(entry.key, None)


def _raw_reference(resource: Resource, raw: Unstructured) -> Reference:
    namespace = sys.intern(text_at(raw, "metadata", "namespace"))
    return (resource.group, resource.kind, namespace, text_at(raw, "metadata", "name"))
