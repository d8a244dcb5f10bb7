"""Manifests in an API server: which are there, and sending them, kinds before their objects."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import groupby
from typing import Any, Final

from capelin.api import Unstructured
from capelin.client import ApiError, Client, NotServed
from capelin.embedded.management.manifests import rank

_AT_A_TIME: Final = 8
_POLL_SECONDS: Final = 0.05


async def install(client: Client, manifests: Iterable[Unstructured]) -> None:
    """Apply manifests in the order of their kinds, and wait until new kinds can be used.

    Raises:
        ApiError: if the API server refuses one; the message says which.
    """
    ordered = sorted(manifests, key=rank)
    for _, group in groupby(ordered, key=rank):
        slots = asyncio.Semaphore(_AT_A_TIME)
        await _all(_apply(client, each, slots) for each in group)
    await _established(client, [each for each in ordered if _is_definition(each)])


async def live(client: Client, manifests: Iterable[Unstructured]) -> list[Unstructured]:
    """Those of the objects that are there already, as they are."""
    slots = asyncio.Semaphore(_AT_A_TIME)
    found = await asyncio.gather(*(_live(client, each, slots) for each in manifests))
    return [each for each in found if each is not None]


async def _live(
    client: Client, manifest: Unstructured, slots: asyncio.Semaphore
) -> Unstructured | None:
    metadata = manifest["metadata"]
    async with slots:
        try:
            resource = await client.resource_of(manifest)
            return await client.find(resource, metadata["name"], metadata.get("namespace"))
        except NotServed:
            return None


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once; the first thing that goes wrong is raised, and the rest not done."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in work:
                tasks.create_task(each)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _apply(client: Client, manifest: Unstructured, slots: asyncio.Semaphore) -> None:
    async with slots:
        try:
            await client.apply(manifest)
        except ApiError as error:
            error.add_note(f"This was about {manifest['kind']} {manifest['metadata']['name']}.")
            raise


async def _established(client: Client, definitions: Iterable[Unstructured]) -> None:
    """Wait until the API server serves the kinds of these definitions."""
    missing = {
        (each["spec"]["group"], version["name"], each["spec"]["names"]["plural"])
        for each in definitions
        for version in each["spec"]["versions"]
        if version["served"]
    }
    while missing:
        for group, version in sorted({(group, version) for group, version, _ in missing}):
            served = await _served(client, f"{group}/{version}")
            missing -= {(group, version, plural) for plural in served}
        if missing:
            await asyncio.sleep(_POLL_SECONDS)


async def _served(client: Client, group_version: str) -> set[str]:
    try:
        return {resource.plural for resource in await client.resources(group_version)}
    except NotServed:
        return set()


def _is_definition(manifest: Unstructured) -> bool:
    return manifest["kind"] == "CustomResourceDefinition"
