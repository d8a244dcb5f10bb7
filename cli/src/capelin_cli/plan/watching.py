"""Waits until files or objects differ from those that a plan has read."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL

from capelin_cli.explain.facts import at, labels_of, reference_of, typed
from capelin_cli.plan.kinds import CORE_GROUPS
from capelin_cli.plan.snapshot import Snapshot

_POLL_SECONDS: Final = 0.3
_RETRY_SECONDS: Final = 5.0
Stamps = Sequence[tuple[int, int] | None]


def stamps_of(files: Sequence[Path]) -> Stamps:
    """The times and sizes of files, which change with their content. None for a missing file."""
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


async def until_changed(
    client: Client,
    resources: Sequence[Resource],
    known: Snapshot,
    files: Sequence[Path],
    stamps: Stamps,
    *,
    has_failed: bool,
) -> None:
    """Wait until a file, or an object of these kinds, differs.

    A plan that has failed may not have read the present objects. So the next one begins later.
    """
    pause = _RETRY_SECONDS if has_failed else 0
    tasks = [
        asyncio.create_task(_until_files_change(files, stamps)),
        *(asyncio.create_task(_until_changed(client, each, known, pause)) for each in resources),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_files_change(files: Sequence[Path], stamps: Stamps) -> None:
    while await asyncio.to_thread(stamps_of, files) == stamps:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)


async def _until_changed(client: Client, resource: Resource, known: Snapshot, pause: float) -> None:
    await asyncio.sleep(pause)
    async with aclosing(client.watch(resource)) as events:
        async for event in events:
            # The first events are about all existing objects.
            if is_change(known, typed(resource, event.object), deleted=event.type == "DELETED"):
                return


def is_change(known: Snapshot, obj: Unstructured, *, deleted: bool) -> bool:
    """Whether an event is about an object of a plan, or a new one of its Clusters."""
    before = known.find(reference_of(obj))
    if before is None:
        labels, namespace = labels_of(obj), obj["metadata"].get("namespace")
        clusters = [reference_of(cluster) for cluster in known.clusters()]
        owner = (labels.get(CLUSTER_NAME_LABEL), namespace)
        return not deleted and owner in [(each.name, each.namespace) for each in clusters]
    return deleted or _substance(before) != _substance(obj)


def _substance(obj: Unstructured) -> list[Any]:
    """The fields that plans depend on. Providers write into statuses of their own at any time."""
    paths = [("spec",), *(("metadata", name) for name in _METADATA)]
    if reference_of(obj).group in CORE_GROUPS:
        paths.append(("status",))
    return [at(obj, *path) for path in paths]


_METADATA: Final = ("labels", "annotations", "deletionTimestamp", "uid")
