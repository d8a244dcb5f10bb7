"""Taking out of an API server what an environment put into it, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.api.views.core import ConfigMap, Secret
from capelin.client import Client, NotFound, NotServed, Unavailable
from capelin.embedded.management.existing import DEFINITIONS, WEBHOOKS
from capelin.embedded.management.manifests import MARK

_POLL_SECONDS: Final = 0.2
# No environment makes one, and API servers complain when they are asked for any.
_OUTMODED: Final = frozenset({"Endpoints"})


async def remove_marked(client: Client, mark: str) -> None:
    """Remove everything that carries an environment's label, and what it made of it.

    Whoever acted on these objects is gone, so nothing waits for a finalizer of theirs. Namespaces
    take their time, and nobody waits for them.
    """
    # First whoever is asked before anything changes, for nobody answers any more.
    for resource in WEBHOOKS:
        await _delete(client, resource, mark)
    definitions = (await client.list(DEFINITIONS, labels={MARK: mark})).items
    await _delete_owned(client, {each["spec"]["group"] for each in definitions})
    await _delete(client, DEFINITIONS, mark)
    while left := (await client.list(DEFINITIONS, labels={MARK: mark})).items:
        await asyncio.gather(*(_let_go(client, each) for each in left))
        await asyncio.sleep(_POLL_SECONDS)
    async for resource in _deletable(client):
        await _delete(client, resource, mark)


def owned(objects: Iterable[Any], groups: set[str]) -> list[Any]:
    """Those of the objects that belong to nothing but objects of kinds in these API groups."""
    return [
        each
        for each in objects
        if (owners := each.metadata.owner_references)
        and all(owner.api_version.partition("/")[0] in groups for owner in owners)
    ]


async def _delete(client: Client, resource: Resource, mark: str) -> None:
    for each in (await client.list(resource, labels={MARK: mark})).items:
        metadata = each["metadata"]
        await client.delete(resource, metadata["name"], metadata.get("namespace"))


async def _delete_owned(client: Client, groups: set[str]) -> None:
    """Credentials of workload clusters: a garbage collector passes over owners without a kind."""
    for kind in (Secret, ConfigMap):
        for each in owned((await client.list(kind)).items, groups):
            await client.delete(kind, each.name, each.namespace, uid=each.uid)


async def _let_go(client: Client, definition: Unstructured) -> None:
    """Free the objects of a kind from whatever was to be done before they go."""
    spec = definition["spec"]
    stored = next(each["name"] for each in spec["versions"] if each["storage"])
    names = spec["names"]
    resource = Resource(
        spec["group"],
        stored,
        names["kind"],
        names["plural"],
        namespaced=spec["scope"] == "Namespaced",
    )
    try:
        objects = (await client.list(resource)).items
    except NotServed:
        return
    for each in objects:
        metadata = each["metadata"]
        if not metadata.get("finalizers"):
            continue
        free = {"metadata": {"finalizers": None}}
        try:
            await client.patch(resource, metadata["name"], metadata.get("namespace"), free)
        except NotFound:
            continue


async def _deletable(client: Client) -> AsyncGenerator[Resource]:
    """Every kind whose objects can be listed and deleted, in one version."""
    groups = (await client.request("GET", "/apis"))["groups"]
    versions = ["v1", *(each["preferredVersion"]["groupVersion"] for each in groups)]
    for group_version in versions:
        group, _, version = group_version.rpartition("/")
        try:
            said = await client.request("GET", f"/apis/{group_version}" if group else "/api/v1")
        except (NotServed, Unavailable):
            # A kind that was just removed, or an API that somebody else serves and that is down.
            continue
        for each in said["resources"]:
            whole = "/" not in each["name"] and each["kind"] not in _OUTMODED
            if whole and {"list", "delete"} <= set(each["verbs"]):
                yield Resource(group, version, each["kind"], each["name"], each["namespaced"])
