"""Stand-ins for the providers of a sandbox: which writes make its objects ready. Pure.

They know the contracts of Cluster API, and nothing about a kind. An object that is ready stays as
it is. One that Cluster API creates is ready at once, and one that it deletes disappears at once.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from capelin.api import Unstructured
from capelin.api.capi import Machine, MachinePool
from capelin.contract import POOL_NAME_LABEL

from capelin_cli.explain.facts import at, labels_of, named_in, reference_of, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.kinds import CORE_GROUPS
from capelin_cli.plan.snapshot import Snapshot

_MACHINE_HOOKS: Final = (
    "pre-drain.delete.hook.machine.cluster.x-k8s.io",
    "pre-terminate.delete.hook.machine.cluster.x-k8s.io",
)
_GARBAGE_COLLECTION: Final = frozenset({"foregroundDeletion", "orphan"})
_ENDPOINT: Final = {"host": "workload.invalid", "port": 6443}
_READY_NODE: Final = (
    ("Ready", "True"),
    ("MemoryPressure", "False"),
    ("DiskPressure", "False"),
    ("PIDPressure", "False"),
)
NODE: Final = Reference(kind="Node", name="")


@dataclass(frozen=True)
class Write:
    """A merge patch of an object, or of its status, or a new Node."""

    object: Reference
    patch: Mapping[str, Any]
    subresource: Literal["status"] | None = None
    creates: bool = False


def writes(world: Snapshot) -> Iterator[Write]:
    """The writes that bring all providers' objects to the state in which they would end."""
    for key, obj in world.objects.items():
        if text_at(obj, "metadata", "deletionTimestamp"):
            yield from _deletion(key, obj)
    for cluster in world.clusters():
        yield from _of_cluster(world, cluster)
    for key, obj in world.objects.items():
        if key.group != Machine.resource.group:
            continue
        if key.kind == Machine.resource.kind:
            yield from _of_machine(world, obj)
        elif key.kind == MachinePool.resource.kind:
            yield from _of_pool(world, obj)


def _deletion(key: Reference, obj: Unstructured) -> Iterator[Write]:
    """Remove the finalizers of providers and of the garbage collector, and hooks of Machines."""
    finalizers = cast("list[str]", at(obj, "metadata", "finalizers") or [])
    is_of_core = key.group in CORE_GROUPS or key.kind == NODE.kind
    kept = [each for each in finalizers if is_of_core and each not in _GARBAGE_COLLECTION]
    if kept != finalizers:
        yield Write(key, {"metadata": {"finalizers": kept}})
    if key.kind == Machine.resource.kind:
        hooks = [each for each in _annotations(obj) if each.startswith(_MACHINE_HOOKS)]
        if hooks:
            yield Write(key, {"metadata": {"annotations": dict.fromkeys(hooks)}})


def _annotations(obj: Unstructured) -> Mapping[str, str]:
    return cast("dict[str, str]", at(obj, "metadata", "annotations") or {})


def _alive(world: Snapshot, reference: Reference | None) -> Unstructured | None:
    found = world.find(reference)
    return None if found is None or text_at(found, "metadata", "deletionTimestamp") else found


def _of_cluster(world: Snapshot, cluster: Unstructured) -> Iterator[Write]:
    infrastructure = _alive(world, named_in(cluster, "spec", "infrastructureRef"))
    if infrastructure is not None:
        status = {"ready": True, "initialization": {"provisioned": True}}
        yield from _status(infrastructure, status)
    control_plane = _alive(world, named_in(cluster, "spec", "controlPlaneRef"))
    if control_plane is None:
        return
    if not text_at(cluster, "spec", "controlPlaneEndpoint", "host"):
        for obj in filter(None, (infrastructure, control_plane)):
            if not text_at(obj, "spec", "controlPlaneEndpoint", "host"):
                spec = {"controlPlaneEndpoint": _ENDPOINT}
                yield Write(reference_of(obj), {"spec": spec})
    yield from _status(control_plane, _control_plane_status(control_plane))


def _control_plane_status(control_plane: Unstructured) -> dict[str, Any]:
    version = text_at(control_plane, "spec", "version")
    replicas = at(control_plane, "spec", "replicas")
    status: dict[str, Any] = {
        "ready": True,
        "initialized": True,
        "initialization": {"controlPlaneInitialized": True},
    }
    number = replicas if isinstance(replicas, int) else None
    if number is not None:
        names = ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")
        status |= dict.fromkeys((*names, "updatedReplicas"), number)
        status["unavailableReplicas"] = 0
    if version:
        entry = {"version": version} | ({"replicas": number} if number else {})
        status |= {"version": version, "versions": [entry]}
    return status


def _of_machine(world: Snapshot, machine: Unstructured) -> Iterator[Write]:
    if POOL_NAME_LABEL in labels_of(machine):
        return
    bootstrap = _alive(world, named_in(machine, "spec", "bootstrap", "configRef"))
    if bootstrap is not None:
        yield from _status(bootstrap, _bootstrap_status(bootstrap))
    infrastructure = _alive(world, named_in(machine, "spec", "infrastructureRef"))
    if infrastructure is None or not text_at(machine, "spec", "bootstrap", "dataSecretName"):
        return
    key = reference_of(infrastructure)
    provider_id = text_at(infrastructure, "spec", "providerID")
    if not provider_id:
        provider_id = f"sandbox:///{key.namespace}/{key.name}"
        yield Write(key, {"spec": {"providerID": provider_id}})
    yield from _status(infrastructure, {"ready": True, "initialization": {"provisioned": True}})
    if not text_at(machine, "metadata", "deletionTimestamp"):
        yield from _node(world, provider_id, text_at(machine, "spec", "version"))


def node_name(provider_id: str) -> str:
    """The name of a Node in a sandbox, where Clusters with Nodes of one name may meet."""
    return f"node-{hashlib.sha256(provider_id.encode()).hexdigest()[:20]}"


def _bootstrap_status(bootstrap: Unstructured) -> dict[str, Any]:
    name = text_at(bootstrap, "status", "dataSecretName") or reference_of(bootstrap).name
    return {
        "ready": True,
        "initialization": {"dataSecretCreated": True},
        "dataSecretName": name,
    }


def _of_pool(world: Snapshot, pool: Unstructured) -> Iterator[Write]:
    template = ("spec", "template", "spec")
    bootstrap = _alive(world, named_in(pool, *template, "bootstrap", "configRef"))
    if bootstrap is not None:
        yield from _status(bootstrap, _bootstrap_status(bootstrap))
    infrastructure = _alive(world, named_in(pool, *template, "infrastructureRef"))
    if infrastructure is None:
        return
    key = reference_of(infrastructure)
    replicas = at(pool, "spec", "replicas")
    number = replicas if isinstance(replicas, int) else 1
    listed = at(infrastructure, "spec", "providerIDList")
    present = cast("list[str]", listed) if isinstance(listed, list) else []
    new = (f"sandbox:///{key.namespace}/{key.name}/{index}" for index in range(number))
    ids = [*present, *(each for each in new if each not in present)][:number]
    if ids != present:
        yield Write(key, {"spec": {"providerIDList": ids}})
    status = {"ready": True, "initialization": {"provisioned": True}, "replicas": number}
    yield from _status(infrastructure, status)
    version = text_at(pool, *template, "version")
    for provider_id in ids:
        yield from _node(world, provider_id, version)


def _node(world: Snapshot, provider_id: str, version: str) -> Iterator[Write]:
    """A ready Node. All Clusters of a sandbox have its API server as their workload cluster."""
    key = Reference(kind=NODE.kind, name=node_name(provider_id))
    node = world.find(key)
    info = {"kubeletVersion": version}
    if node is not None:
        if version and text_at(node, "status", "nodeInfo", "kubeletVersion") != version:
            yield Write(key, {"status": {"nodeInfo": info}}, "status")
        return
    conditions = [{"type": name_, "status": status} for name_, status in _READY_NODE]
    yield Write(
        key,
        {
            "apiVersion": "v1",
            "kind": key.kind,
            "metadata": {"name": key.name},
            "spec": {"providerID": provider_id},
            "status": {"conditions": conditions, "nodeInfo": info},
        },
        creates=True,
    )


def _status(obj: Unstructured, wanted: Mapping[str, Any]) -> Iterator[Write]:
    """The missing part of a status. An existing condition stays as it is."""
    missing = missing_fields(wanted, at(obj, "status"))
    conditions = at(obj, "status", "conditions")
    if not conditions:
        moment = text_at(obj, "metadata", "creationTimestamp")
        missing["conditions"] = [
            {
                "type": name,
                "status": "True",
                "reason": name,
                "message": "",
                "lastTransitionTime": moment,
            }
            for name in ("Ready", "Available")
        ]
    if missing:
        yield Write(reference_of(obj), {"status": missing}, "status")


def missing_fields(wanted: Mapping[str, Any], present: object) -> dict[str, Any]:
    """The fields that differ from the present ones."""
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        old = at(present, name)
        if isinstance(value, dict):
            inner = missing_fields(cast("dict[str, Any]", value), old)
            if inner:
                found[name] = inner
        elif old != value:
            found[name] = value
    return found


def pruned(value: Any, schema: Mapping[str, Any] | None) -> Any:
    """The part of a value that a kind's schema has. None if it has no such field."""
    if schema is None:
        return None
    if isinstance(value, list):
        items = schema.get("items")
        return [pruned(item, items) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    properties = cast("dict[str, Any] | None", schema.get("properties"))
    if properties is None:
        return fields
    found = {
        name: pruned(inner, properties[name])
        for name, inner in fields.items()
        if name in properties
    }
    return {name: inner for name, inner in found.items() if inner != {} or fields[name] == {}}
