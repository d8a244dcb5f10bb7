"""Behaviour during `clusterctl move`, which the checks simulate in one management cluster."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.api.core import CustomResourceDefinition
from capelin.client import NotFound, NotServed
from capelin.contract import CLUSTERCTL_LABEL

from capelin_conformance.providers.bench import SECRET, STUBS, Bench
from capelin_conformance.providers.fields import items_at, value_at
from capelin_conformance.providers.lifecycle import COMMON_CONTRACTS, BehaviourCheck
from capelin_conformance.providers.rules import Rule, rule

_DELETED_FOR_MOVE: Final = "clusterctl.cluster.x-k8s.io/delete-for-move"
_MOVED_METADATA: Final = ("name", "namespace", "labels", "annotations", "finalizers")
_DIRECTIONS: Final = ("there", "back")


@rule(*COMMON_CONTRACTS)
async def move(bench: Bench) -> AsyncIterator[str]:
    """A moved object, with a new UID and without its status, becomes ready with its identity.

    Source: clusterctl#move
    Fix: identify infrastructure by names that move with the object, and not by UIDs.
    """
    before = value_at(await bench.provision(), bench.identity)

    async def is_ready() -> bool:
        return await bench.reached() and await bench.core_agrees()

    async def has_identity() -> bool:
        return value_at(await bench.get(), bench.identity) == before

    for direction in _DIRECTIONS:
        await bench.becomes(is_ready)
        await bench.pause_cluster(paused=True)
        await bench.hold()
        objects = await _objects(bench)
        for resource, obj in reversed(objects):
            await _delete(bench, resource, obj)
        uids: dict[str, str] = {}
        for resource, obj in objects:
            await _create(bench, resource, obj, uids)
        await bench.pause_cluster(paused=False)
        if not await bench.becomes(is_ready):
            yield f"{bench.milestone} is not true after the move {direction}"
            return
        if not await bench.becomes(has_identity, bench.timing.hold):
            after = value_at(await bench.get(), bench.identity)
            yield f"{bench.identity} changed from {before!r} to {after!r} in the move {direction}"
            return


async def _objects(bench: Bench) -> list[tuple[Resource, Unstructured]]:
    """The objects that clusterctl moves, owners first."""
    definitions: Resource = CustomResourceDefinition.resource
    found = await bench.client.list(definitions, labels=CLUSTERCTL_LABEL)
    kinds = filter(lambda kind: kind.namespaced, map(_resource_of, found.items))
    left: list[tuple[Resource, Unstructured]] = []
    for resource in dict.fromkeys((*kinds, *STUBS, SECRET)):
        try:
            found = await bench.client.list(resource, bench.namespace)
        except NotServed:
            continue
        left += [(resource, obj) for obj in found.items]
    ordered: list[tuple[Resource, Unstructured]] = []
    while left:
        uids = {obj["metadata"]["uid"] for _, obj in left}
        ready = [item for item in left if uids.isdisjoint(_owners(item[1]))]
        ordered += ready or left
        left = [item for item in left if ready and item not in ready]
    return ordered


def _resource_of(definition: Unstructured) -> Resource:
    spec = definition["spec"]
    (version,) = (version["name"] for version in spec["versions"] if version["storage"])
    names = spec["names"]
    is_namespaced = spec["scope"] == "Namespaced"
    return Resource(spec["group"], version, names["kind"], names["plural"], is_namespaced)


def _owners(obj: Unstructured) -> list[str]:
    return [owner["uid"] for owner in items_at(obj, "metadata.ownerReferences")]


async def _delete(bench: Bench, resource: Resource, obj: Unstructured) -> None:
    """Delete an object of the source, without the work of its finalizers.

    Like clusterctl, it removes them after the deletion, when controllers cannot add them again.
    """
    where = (resource, obj["metadata"]["name"], bench.namespace)
    await bench.client.patch(*where, {"metadata": {"annotations": {_DELETED_FOR_MOVE: ""}}})
    await bench.client.delete(*where)

    async def is_gone() -> bool:
        with suppress(NotFound):
            await bench.client.patch(*where, {"metadata": {"finalizers": None}})
        return await bench.client.find(*where) is None

    await bench.becomes(is_gone)


async def _create(
    bench: Bench, resource: Resource, obj: Unstructured, uids: dict[str, str]
) -> None:
    """Create the copy of an object in the target, with the new UIDs of its owners."""
    metadata: dict[str, Any] = {
        key: obj["metadata"][key] for key in _MOVED_METADATA if key in obj["metadata"]
    }
    owners = cast("list[dict[str, Any]]", items_at(obj, "metadata.ownerReferences"))
    metadata["ownerReferences"] = [
        {**owner, "uid": uids[owner["uid"]]} for owner in owners if owner["uid"] in uids
    ]
    content = {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
    created = await bench.client.create({**content, "metadata": metadata}, resource=resource)
    uids[obj["metadata"]["uid"]] = created["metadata"]["uid"]
    if resource in STUBS and "status" in obj:
        # The other providers rebuild their statuses.
        await bench.set_status(resource, obj["status"])


MOVE_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (move,)
