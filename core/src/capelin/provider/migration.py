"""Storage migration: the API server writes all objects of a kind in the stored version of its CRD.

It keeps an object in the version of its last write, and rejects a CRD without a version in which
objects may be stored. So an old version can go only after a migration.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.api.core import CustomResourceDefinition
from capelin.client import (
    ApiError,
    Client,
    ClientError,
    Conflict,
    NotFound,
    TooManyRequests,
    Unavailable,
    Unreachable,
)
from capelin.errors import BusyError

_CRDS: Final = CustomResourceDefinition.resource
_AT_A_TIME: Final = 8
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.5

Progress = Callable[[int, int], None]
"""Called with the number of objects that are done, and of all."""


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """A CRD whose objects may be stored in several versions."""

    name: str
    stored: str
    """The version in which the API server stores objects now."""
    old: tuple[str, ...]
    """Other versions in which objects may still be stored."""
    resource: Resource
    """The kind in a version that the API server serves."""
    generation: int


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of a migration."""

    plan: StoragePlan
    objects: int
    failures: tuple[str, ...] = ()
    """Objects that the API server did not write, with the reason. Old versions remain if any."""


def storage_plan(definition: Unstructured) -> StoragePlan:
    """Which versions of a CRD have to go, and how to reach its objects."""
    spec: Unstructured = definition["spec"]
    status: Unstructured = definition.get("status") or {}
    stored = next(version["name"] for version in spec["versions"] if version["storage"])
    served = [version["name"] for version in spec["versions"] if version["served"]]
    names = spec["names"]
    return StoragePlan(
        definition["metadata"]["name"],
        stored,
        tuple(name for name in status.get("storedVersions") or () if name != stored),
        Resource(
            spec["group"],
            stored if stored in served or not served else served[0],
            names["kind"],
            names["plural"],
            spec["scope"] == "Namespaced",
        ),
        definition["metadata"]["generation"],
    )


async def migrate_storage(
    client: Client,
    crd: str,
    *,
    dry_run: bool = False,
    progress: Progress = lambda done, total: None,  # noqa: ARG005
) -> Migration:
    """Write all objects of a CRD in its stored version, and drop the others from its status.

    Run it again after an interruption: objects that are already in that version do not change.

    Args:
        client: A client of an administrator.
        crd: The name of the CRD, such as `fishes.infrastructure.cluster.x-k8s.io`.
        dry_run: Only count the objects.
        progress: Called after each object.

    Raises:
        NotFound: The CRD does not exist.
        BusyError: The CRD changed meanwhile.
    """
    plan = storage_plan(await client.get(_CRDS, crd))
    if not plan.old:
        return Migration(plan, 0)
    places = [place async for place in _places(client, plan.resource)]
    if dry_run:
        return Migration(plan, len(places))
    slots = asyncio.Semaphore(_AT_A_TIME)
    done = 0

    async def rewrite(namespace: str | None, name: str) -> str | None:
        nonlocal done
        async with slots:
            failure = await _rewrite(client, plan.resource, namespace, name)
        done += 1
        progress(done, len(places))
        return failure

    results = await asyncio.gather(*(rewrite(*place) for place in places))
    failures = tuple(filter(None, results))
    if not failures:
        await _prune(client, plan)
    return Migration(plan, len(places), failures)


async def _places(client: Client, resource: Resource) -> AsyncGenerator[tuple[str | None, str]]:
    """The namespaces and names of all objects. An unreadable one is an error, not skipped."""
    parameters = {"limit": "500"}
    while True:
        page = await client.request("GET", resource.path(), parameters=parameters)
        for item in page["items"]:
            yield item["metadata"].get("namespace"), item["metadata"]["name"]
        if not (token := page["metadata"].get("continue")):
            return
        parameters = {**parameters, "continue": token}


async def _rewrite(
    client: Client, resource: Resource, namespace: str | None, name: str
) -> str | None:
    """Write an object unchanged. Returns the reason if the API server does not."""
    where = f"{namespace}/{name}" if namespace else name
    error: ClientError | None = None
    for attempt in range(_ATTEMPTS):
        await asyncio.sleep(attempt * _PAUSE_SECONDS)
        try:
            # The API server writes it only if its stored form changes.
            await client.patch(resource, name, namespace, {})
        except NotFound:
            return None
        except (Conflict, TooManyRequests, Unavailable, Unreachable) as caught:
            error = caught
        except ApiError as caught:
            return f"{where}: {caught}"
        else:
            return None
    return f"{where}: {error}"


async def _prune(client: Client, plan: StoragePlan) -> None:
    """Drop the old versions, unless the CRD changed since its objects were read."""
    for _ in range(_ATTEMPTS):
        current = await client.get(_CRDS, plan.name)
        now = storage_plan(current)
        if (now.generation, now.stored) != (plan.generation, plan.stored):
            break
        patch = {
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "status": {"storedVersions": [plan.stored]},
        }
        try:
            await client.patch(_CRDS, plan.name, None, patch, subresource="status")
        except Conflict:
            continue
        return
    raise BusyError(
        f"{plan.name} changed during the migration.",
        reason="Objects may have been written in another version meanwhile.",
        hint="Run the same command again.",
    )
