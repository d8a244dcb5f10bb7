"""Helpers of actions that create objects: names, targets, and removal."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from capelin.api import Resource, Unstructured
from capelin.client import AlreadyExists, Client, NotServed, WorkloadClients

from capelin_lifecycle.actions.action import Cleanup, Run
from capelin_lifecycle.api.results import CreatedObject

_LONGEST = 52


@asynccontextmanager
async def workload_client(run: Run | Cleanup) -> AsyncGenerator[Client]:
    """A client of the workload cluster.

    Raises:
        NotFound: it has no kubeconfig yet.
    """
    workloads: WorkloadClients = run.workloads
    async with workloads.client(run.cluster.name, run.cluster.namespace or "") as client:
        yield client


def new_manifest(
    run: Run, resource: Resource, namespace: str | None, prefix: str, spec: Unstructured, *more: str
) -> Unstructured:
    """An object that the action creates once for each attempt, or for each of `more`."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": unique_name(prefix, *run.result.attempt_id, *more),
            "namespace": namespace,
            "labels": run.labels,
        },
        "spec": spec,
    }


async def find_or_create(
    client: Client, resource: Resource, manifest: Unstructured
) -> Unstructured:
    """The object of the manifest's name, as it is."""
    metadata = manifest["metadata"]
    live = await client.find(resource, metadata["name"], metadata["namespace"])
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


async def delete_all(client: Client, objects: Sequence[CreatedObject]) -> None:
    """Delete objects in reverse order of creation. Skips missing objects and missing kinds."""
    for entry in reversed(objects):
        try:
            resource = await client.resource_of(
                {"apiVersion": entry.api_version, "kind": entry.kind}
            )
        except NotServed:
            continue
        await client.delete(resource, entry.name, entry.namespace)
