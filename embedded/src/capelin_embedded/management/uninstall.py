"""Removes from an API server all objects of an environment, and nothing else."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.api.core import ConfigMap, Secret
from capelin.client import ApiError, Client, Config, NotFound, NotServed, Unavailable

from capelin_embedded.management.attach import DEFINITIONS
from capelin_embedded.management.environment import Environment, existing_server_of
from capelin_embedded.management.manifests import ENVIRONMENT_LABEL, FIELD_MANAGER, WEBHOOKS
from capelin_embedded.processes import kill_all

_POLL_SECONDS: Final = 0.2
# A ClusterResourceSet becomes the owner of objects that users wrote for it to send to clusters.
_ADOPTERS: Final = frozenset({"addons.cluster.x-k8s.io"})
# No environment creates them, and API servers warn when a client lists them.
_OUTMODED: Final = frozenset({"Endpoints"})


async def remove_labelled(client: Client, mark: str) -> None:
    """Remove all labelled objects of an environment, and the objects that they own.

    The controllers of these objects have stopped, so nothing waits for their finalizers. Namespaces
    take a while, and this does not wait for them. After an interruption, another call continues.
    """
    # Webhooks first, because no process answers their calls any more.
    for resource in WEBHOOKS:
        await _delete(client, resource, mark)
    definitions = await _put_there(client, DEFINITIONS, mark)
    groups = {definition["spec"]["group"] for definition in definitions}
    # Credentials of workload clusters. Without their owner's kind, GC ignores them.
    for kind in (Secret, ConfigMap):
        for obj in owned_only_by((await client.list(kind)).items, groups):
            await client.delete(kind, obj.name, obj.namespace, uid=obj.uid)
    await _delete(client, DEFINITIONS, mark)
    while left := await _put_there(client, DEFINITIONS, mark):
        await asyncio.gather(*(_let_go(client, definition) for definition in left))
        await asyncio.sleep(_POLL_SECONDS)
    others = {definition["spec"]["group"] for definition in (await client.list(DEFINITIONS)).items}
    async for resource in _deletable(client):
        try:
            await _delete(client, resource, mark)
        except NotServed:
            # One of our kinds, which discovery still listed for a moment after its removal.
            continue
        except ApiError:
            # Kinds of other owners may be broken, which does not concern us.
            if resource.group not in others:
                raise


def is_written_by_us(obj: Unstructured) -> bool:
    """Whether we wrote an object: a copy has the same label, but another field manager."""
    entries = obj["metadata"].get("managedFields", [])
    return any(entry.get("manager") == FIELD_MANAGER for entry in entries)


def owned_only_by(objects: Iterable[Any], groups: set[str]) -> list[Any]:
    """The objects whose owners all are objects of kinds in these API groups."""
    makers = groups - _ADOPTERS
    return [
        obj
        for obj in objects
        if (owners := obj.metadata.owner_references)
        and all(owner.api_version.partition("/")[0] in makers for owner in owners)
    ]


async def _put_there(client: Client, resource: Resource, mark: str) -> list[Unstructured]:
    listing = await client.list(resource, labels={ENVIRONMENT_LABEL: mark})
    return [item for item in listing.items if is_written_by_us(item)]


async def _delete(client: Client, resource: Resource, mark: str) -> None:
    for obj in await _put_there(client, resource, mark):
        metadata = obj["metadata"]
        await client.delete(
            resource, metadata["name"], metadata.get("namespace"), uid=metadata["uid"]
        )


async def _let_go(client: Client, definition: Unstructured) -> None:
    """Remove the finalizers from the objects of a kind."""
    spec = definition["spec"]
    stored = next(version["name"] for version in spec["versions"] if version["storage"])
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
    for obj in objects:
        metadata = obj["metadata"]
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
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    for group_version in versions:
        group, _, version = group_version.rpartition("/")
        try:
            served = await client.request("GET", f"/apis/{group_version}" if group else "/api/v1")
        except (NotServed, Unavailable):
            # A kind that was just removed, or an aggregated API whose server is down.
            continue
        for resource in served["resources"]:
            whole = "/" not in resource["name"] and resource["kind"] not in _OUTMODED
            if whole and {"list", "delete"} <= set(resource["verbs"]):
                yield Resource(
                    group, version, resource["kind"], resource["name"], resource["namespaced"]
                )


async def remove_environment(environment: Environment, *, there: bool = True) -> None:
    """Stop every process of an environment, and remove all of its files.

    This also removes its objects from an existing API server, unless `there` is false.

    Raises:
        ClientError: That fails. The environment's folder stays then.
    """
    # The supervisor first, because it restarts processes. Then the managers, because they restart
    # theirs. All their data is removed, so nothing needs an orderly shutdown.
    for folder in (environment.supervisor, environment.processes, environment.folder):
        await kill_all(folder)
    if there and (existing := existing_server_of(environment)) is not None:
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config, manager=FIELD_MANAGER) as client:
            await remove_labelled(client, existing.mark)
    await asyncio.to_thread(shutil.rmtree, environment.folder)
