"""Follows all objects of a sandbox, writes for the stand-ins, and waits until nothing changes."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.api.core import Node
from capelin.client import ApiError, Client, Unavailable
from capelin.errors import NotReadyError

from capelin_cli.explain.facts import reference_of, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.sandbox import Sandbox
from capelin_cli.plan.settling import unsettled
from capelin_cli.plan.snapshot import Snapshot
from capelin_cli.plan.stand_ins import Write, pruned, writes

_QUIET_SECONDS: Final = 0.3
"""Core reads a change of an object within a few milliseconds. Its metrics show that it works."""
_STUCK_SECONDS: Final = 25.0
"""Core repeats failed checks before Machines are created after 15 seconds."""
_POLL_SECONDS: Final = 0.05
_COALESCING_SECONDS: Final = 0.02
_AT_ONCE: Final = 8
_log = logging.getLogger(__name__)


@dataclass
class World:
    """The objects of a sandbox now."""

    client: Client
    is_idle: Callable[[], Awaitable[bool]]
    """Whether core works on nothing."""
    resources: Mapping[tuple[str, str], Resource]
    schemas: Mapping[tuple[str, str], Any]
    objects: dict[Reference, Unstructured] = field(default_factory=dict[Reference, Unstructured])
    versions: dict[Reference, list[str]] = field(default_factory=dict[Reference, list[str]])
    """The versions that each object of a provider had in its spec, in their order."""
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _last: float = 0.0
    _busy: float = 0.0

    @property
    def snapshot(self) -> Snapshot:
        """The objects at this moment."""
        return Snapshot(dict(self.objects))

    async def settle(self, within: float) -> list[str]:
        """Wait until nothing changes. Returns the reasons why objects are not as desired."""
        end = time.monotonic() + within
        self._last = time.monotonic()
        while True:
            await self._pause()
            now = time.monotonic()
            if now - self._last >= _QUIET_SECONDS and not await self.is_idle():
                self._busy = now
            if now - max(self._last, self._busy) < _QUIET_SECONDS and now < end:
                continue
            reasons = unsettled(self.snapshot)
            if not reasons or now - self._last > _STUCK_SECONDS or now >= end:
                return reasons

    async def ready(self, loaded: set[Reference], within: float) -> None:
        """Wait until all loaded objects are known, and the stand-ins have nothing to write."""
        end = time.monotonic() + within
        while names := [
            *map(str, loaded - self.objects.keys()),
            *(str(write.object) for write in self.pending()),
        ]:
            await self._pause()
            if time.monotonic() > end:
                raise NotReadyError(
                    "The sandbox does not become ready.",
                    reason=f"{len(names)} objects are not as desired: {', '.join(names[:5])}.",
                )

    async def _pause(self) -> None:
        """Wait for a moment. A failure of a watch or of a stand-in ends the plan."""
        await asyncio.sleep(_POLL_SECONDS)
        for task in self.tasks:
            if task.done():
                await task

    def pending(self) -> list[Write]:
        """The writes that would change something."""
        return [write for each in writes(self.snapshot) if (write := self._fitting(each))]

    def _fitting(self, write: Write) -> Write | None:
        """The write without fields that the kind does not have."""
        key = (write.object.group, write.object.kind)
        schema = self.schemas.get(key)
        if schema is None:
            return write if key in self.resources else None
        fields = {
            name: value if name == "metadata" else pruned(value, schema["properties"].get(name))
            for name, value in write.patch.items()
        }
        patch = {name: value for name, value in fields.items() if value}
        return replace(write, patch=patch) if patch else None

    async def follow(self, resource: Resource) -> None:
        """Follow the objects of one kind."""
        async with aclosing(self.client.watch(resource)) as events:
            async for event in events:
                obj = {
                    **event.object,
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                }
                self._learn(event.type, obj)

    def _learn(self, event: str, obj: Unstructured) -> None:
        key = reference_of(obj)
        before = self.objects.get(key)
        if event == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj
            version = text_at(obj, "spec", "version")
            known = self.versions.setdefault(key, [])
            if version and known[-1:] != [version]:
                known.append(version)
        if event != "MODIFIED" or before is None or _substance(before) != _substance(obj):
            self._last = time.monotonic()
            self._changed.set()

    async def stand_in(self) -> None:
        """Write for the providers whenever an object changes."""
        slots = asyncio.Semaphore(_AT_ONCE)
        while True:
            await self._changed.wait()
            self._changed.clear()
            # Several events of one step are one look at the objects.
            await asyncio.sleep(_COALESCING_SECONDS)
            await asyncio.gather(*(self._write(each, slots) for each in self.pending()))

    async def _write(self, write: Write, slots: asyncio.Semaphore) -> None:
        key, patch = write.object, write.patch
        resource = self.resources[key.group, key.kind]
        async with slots:
            try:
                if write.creates:
                    await self.client.create(dict(patch), resource=resource)
                else:
                    await self.client.patch(
                        resource, key.name, key.namespace, patch, subresource=write.subresource
                    )
            except (ApiError, Unavailable) as error:
                # The object may have changed or gone. Its next event brings another write.
                _log.debug("%s was not written: %s", key, error)


def _substance(obj: Unstructured) -> Unstructured:
    """An object without the fields that change with every write."""
    hidden = ("resourceVersion", "managedFields", "generation")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in hidden}
    return {**obj, "metadata": metadata}


@asynccontextmanager
async def following(
    sandbox: Sandbox, resources: Iterable[Resource], definitions: Sequence[Unstructured]
) -> AsyncGenerator[World]:
    """Follow these kinds and Nodes, and stand in for their providers, inside the block."""
    kinds = [*resources, Node.resource]
    world = World(
        sandbox.client,
        sandbox.is_idle,
        {(each.group, each.kind): each for each in kinds},
        {
            (crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd["spec"]["versions"][0][
                "schema"
            ]["openAPIV3Schema"]
            for crd in definitions
        },
    )
    world.tasks += [asyncio.create_task(world.follow(each)) for each in kinds]
    world.tasks.append(asyncio.create_task(world.stand_in()))
    try:
        yield world
    finally:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)
