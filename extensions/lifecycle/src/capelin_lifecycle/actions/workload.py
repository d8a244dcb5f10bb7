"""Helpers of actions that create objects: names, targets, and removal."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from capelin.api import Resource, Unstructured
from capelin.client import AlreadyExists, Client, Conflict, NotServed, WorkloadClients

from capelin_lifecycle.actions.action import POLICY_LABEL, Cleanup, Run
from capelin_lifecycle.api.results import CreatedObject

_LONGEST = 52


@dataclass(frozen=True, slots=True)
class OwnObject:
    """An object that a policy created and still manages, as it was read."""

    resource: Resource
    manifest: Unstructured


@asynccontextmanager
async def workload_client(run: Run | Cleanup) -> AsyncGenerator[Client]:
    """A client of the workload cluster.

    Raises:
        NotFound: it has no kubeconfig yet.
    """
    workloads: WorkloadClients = run.workloads
    name, namespace = run.result.spec.cluster.name, run.result.namespace or ""
    async with workloads.client(name, namespace) as client:
        yield client


async def find_or_create(
    client: Client, resource: Resource, manifest: Unstructured
) -> Unstructured:
    """The object of the manifest's name, as it is."""
    metadata = manifest["metadata"]
    live = await client.find(resource, metadata["name"], metadata.get("namespace"))
    if live is not None:
        return live
    try:
        return await client.create(manifest, resource=resource)
    except AlreadyExists:
        return manifest


def unique_name(prefix: str, *identity: str) -> str:
    """A name for an object that belongs to this identity, short enough for a label."""
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:10]
    return f"{prefix[:_LONGEST].rstrip('.-')}-{digest}"


def created_object(manifest: Unstructured, target: str = "Workload") -> CreatedObject:
    """The entry of an object in a result's status."""
    metadata = manifest["metadata"]
    entry: dict[str, Any] = {
        "target": target,
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "name": metadata["name"],
    }
    if metadata.get("namespace"):
        entry["namespace"] = metadata["namespace"]
    return CreatedObject.read(entry)


async def find_own(client: Client, entry: CreatedObject, policy_label: str) -> OwnObject | None:
    """An object that a policy created, unless another policy or a person manages it by now."""
    try:
        resource = await client.resource_of({"apiVersion": entry.api_version, "kind": entry.kind})
    except NotServed:
        return None
    found = await client.find(resource, entry.name, entry.namespace)
    if found is None:
        return None
    labels = cast("dict[str, str]", found["metadata"].get("labels") or {})
    return OwnObject(resource, found) if labels.get(POLICY_LABEL) == policy_label else None


async def delete_own(client: Client, own: OwnObject) -> None:
    """Delete an object as it was read. Skips one that changed its manager since."""
    metadata = own.manifest["metadata"]
    with suppress(Conflict):
        await client.delete(
            own.resource, metadata["name"], metadata.get("namespace"), uid=metadata["uid"]
        )


async def delete_all(client: Client, objects: Sequence[CreatedObject], policy_label: str) -> None:
    """Delete the objects of a policy in reverse order of creation.

    Skips missing objects, missing kinds, and objects that are not the policy's.
    """
    for entry in reversed(objects):
        if (own := await find_own(client, entry, policy_label)) is not None:
            await delete_own(client, own)
