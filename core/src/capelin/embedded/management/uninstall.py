"""Taking out of an API server what an environment put into it, and nothing else."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.api.core import ConfigMap, Secret
from capelin.client import ApiError, Client, Config, NotFound, NotServed, Unavailable
from capelin.embedded.management.attach import DEFINITIONS
from capelin.embedded.management.environment import Environment, existing_server_of
from capelin.embedded.management.manifests import ENVIRONMENT_LABEL, FIELD_MANAGER, WEBHOOKS
from capelin.embedded.processes import kill_all

_POLL_SECONDS: Final = 0.2
# A ClusterResourceSet makes itself the owner of what people wrote for it to send to clusters.
_ADOPTERS: Final = frozenset({"addons.cluster.x-k8s.io"})
# No environment makes one, and API servers complain when they are asked for any.
_OUTMODED: Final = frozenset({"Endpoints"})


async def remove_labelled(client: Client, mark: str) -> None:
    """Remove everything that an environment put there under its label, and what it made of it.

    Whoever acted on these objects is gone, so nothing waits for a finalizer of theirs. Namespaces
    take their time, and nobody waits for them. What is done already when somebody stops it need
    not be done again.
    """
    # First whoever is asked before anything changes, for nobody answers any more.
    for resource in WEBHOOKS:
        await _delete(client, resource, mark)
    definitions = await _put_there(client, DEFINITIONS, mark)
    await _delete_owned(client, {definition["spec"]["group"] for definition in definitions})
    await _delete(client, DEFINITIONS, mark)
    while left := await _put_there(client, DEFINITIONS, mark):
        await asyncio.gather(*(_let_go(client, definition) for definition in left))
        await asyncio.sleep(_POLL_SECONDS)
    others = {definition["spec"]["group"] for definition in (await client.list(DEFINITIONS)).items}
    async for resource in _deletable(client):
        try:
            await _delete(client, resource, mark)
        except NotServed:
            # One of ours that was spoken of for a moment longer than it was there.
            continue
        except ApiError:
            # Kinds of others may be broken, and have nothing to do with us then.
            if resource.group not in others:
                raise


def is_written_by_us(obj: Unstructured) -> bool:
    """Whether an object is ours: its label goes along when it is copied, who wrote it does not."""
    entries = obj["metadata"].get("managedFields", [])
    return any(entry.get("manager") == FIELD_MANAGER for entry in entries)


def owned_only_by(objects: Iterable[Any], groups: set[str]) -> list[Any]:
    """Those of the objects that were made for nothing but objects of kinds in these API groups."""
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


async def _delete_owned(client: Client, groups: set[str]) -> None:
    """Credentials of workload clusters: a garbage collector passes over owners without a kind."""
    for kind in (Secret, ConfigMap):
        for obj in owned_only_by((await client.list(kind)).items, groups):
            await client.delete(kind, obj.name, obj.namespace, uid=obj.uid)


async def _let_go(client: Client, definition: Unstructured) -> None:
    """Free the objects of a kind from whatever was to be done before they go."""
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
            # A kind that was just removed, or an API that somebody else serves and that is down.
            continue
        for resource in served["resources"]:
            whole = "/" not in resource["name"] and resource["kind"] not in _OUTMODED
            if whole and {"list", "delete"} <= set(resource["verbs"]):
                yield Resource(
                    group, version, resource["kind"], resource["name"], resource["namespaced"]
                )


async def remove_environment(environment: Environment, *, there: bool = True) -> None:
    """End every process of an environment, and leave nothing of it behind.

    Where the API server is somebody else's, what is ours is taken out of it, unless not `there`.

    Raises:
        ClientError: if that cannot be done; the environment's folder stays then.
    """
    # The supervisor first, for it would start again what ends; then the managers, for they would
    # start again what they look after. What they have is removed: nothing needs an orderly end.
    for folder in (environment.supervisor, environment.processes, environment.folder):
        await kill_all(folder)
    if there and (existing := existing_server_of(environment)) is not None:
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config, manager=FIELD_MANAGER) as client:
            await remove_labelled(client, existing.mark)
    await asyncio.to_thread(shutil.rmtree, environment.folder)
