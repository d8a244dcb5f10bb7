"""Objects of an API server that fails by a seed, and the changes that no manager may miss."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from capelin.api import BaseObject, Object, OwnerReference, kind
from capelin.api.core import ConfigMap, Secret, Service
from capelin.client import Client, Config, Server, User
from capelin.controller import (
    Context,
    Done,
    For,
    Manager,
    ObjectKey,
    Options,
    Owns,
    Reconciler,
    Result,
    Watches,
)
from capelin.testing.fake_client import Clock, FakeClient
from capelin.testing.waiting import until

from core.tests.controller.chaos import Chaos, WatchedServer

NAMES = ("a", "b", "c")
LABEL = "buoy"


@kind(group="chaos.test", version="v1")
class Buoy(Object[dict[str, Any], dict[str, Any]]):
    """The kind that is reconciled."""


@kind(group="chaos.test", version="v1")
class Gull(Object[dict[str, Any], dict[str, Any]]):
    """A kind that is installed late."""


def by_label(obj: BaseObject) -> list[ObjectKey]:
    name = obj.metadata.labels.get(LABEL)
    return [ObjectKey("sea", name)] if name else []


async def by_request(ctx: Context, obj: BaseObject) -> list[ObjectKey]:
    await ctx.client.find(ConfigMap, "any", "sea")
    return by_label(obj)


View = tuple[tuple[str, int, str], ...]
"""The objects that concern a buoy, with their versions."""
GONE: View = ()
DEPENDENTS: tuple[type[BaseObject], ...] = (ConfigMap, Secret, Service, Gull)


def concerns(obj: BaseObject, name: str) -> bool:
    owners = {owner.name for owner in obj.metadata.owner_references}
    return name in owners or obj.metadata.labels.get(LABEL) == name


def version_of(obj: BaseObject) -> tuple[str, int, str]:
    return obj.metadata.uid or "", int(obj.metadata.resource_version or 0), obj.name


class Recorded:
    """The view of each buoy at its last reconcile, by a manager in any language."""

    def __init__(self) -> None:
        self.views: dict[str, View] = {}
        self.reconciles = 0
        self.running = 0

    def add(self, name: str, view: View) -> None:
        self.reconciles += 1
        self.views[name] = view


class Buoys(Reconciler[Buoy]):
    """Records the view of each buoy."""

    watches = (
        For(Buoy, labels={"kept": None}),
        Owns(ConfigMap),
        Watches(Secret, by_label),
        Watches(Service, by_request, metadata_only=True),
        Watches(Gull, by_label, optional=True),
    )
    cached_reads = True

    def __init__(self, world: "World") -> None:
        self._world = world

    async def reconcile(self, ctx: Context, buoy: Buoy, /) -> Result:
        recorded = self._world.recorded
        recorded.running += 1
        try:
            recorded.add(buoy.name, await self._world.view(ctx.client, buoy))
        finally:
            recorded.running -= 1
        return Done()

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        self._world.recorded.add(key.name, GONE)


class World:
    """The objects in the API server, and the changes that a seed makes."""

    def __init__(self, dependents: Sequence[type[BaseObject]] = DEPENDENTS) -> None:
        self.server = WatchedServer(Clock())
        self.client = FakeClient(Buoy, server=self.server)
        self.chaos = Chaos(self.server)
        self.recorded = Recorded()
        self._dependents = dependents

    async def view(self, client: Client, buoy: Buoy) -> View:
        found: list[tuple[str, int, str]] = []
        for kind_ in self._dependents:
            if self.server.serves(kind_.resource):
                listed = (await client.list(kind_, "sea")).items
                found += [version_of(obj) for obj in listed if concerns(obj, buoy.name)]
        return (version_of(buoy), *sorted(found))

    async def expected(self) -> dict[str, View]:
        expected: dict[str, View] = {}
        for name in NAMES:
            buoy = await self.client.find(Buoy, name, "sea")
            if buoy is not None and "kept" in buoy.metadata.labels:
                expected[name] = await self.view(self.client, buoy)
            elif name in self.recorded.views:
                expected[name] = GONE
        return expected

    async def outdated(self) -> list[str]:
        """The buoys whose last reconcile was before a change, with its view."""
        views = self.recorded.views
        return [
            f"{name}: {views.get(name)} is not {view}"
            for name, view in (await self.expected()).items()
            if views.get(name) != view
        ]

    async def is_quiet(self) -> bool:
        before = self.recorded.reconciles
        # Longer than all pauses: a busy manager reconciles in this time.
        await asyncio.sleep(0.15)
        # A reconcile that runs has an earlier view: before a restore, its watch had later versions.
        is_idle = self.recorded.reconciles == before and not self.recorded.running
        return is_idle and not await self.outdated()

    async def change(self, random: Random) -> None:
        kinds: list[type[BaseObject]] = [Buoy, ConfigMap, Secret, Service]
        if self.server.serves(Gull.resource):
            kinds.append(Gull)
        kind_: Any = random.choice(kinds)
        name = random.choice(NAMES)
        obj: Any = await self.client.find(kind_, name, "sea")
        if obj is not None and random.random() < 0.3:
            await self.client.delete(kind_, name, "sea")
            return
        about = random.choice((*NAMES, None))
        metadata: dict[str, Any] = {"annotations": {"n": str(random.random())}}
        if kind_ is Buoy:
            metadata["labels"] = {"kept": None if random.random() < 0.2 else "yes"}
        elif kind_ is ConfigMap:
            owner = OwnerReference(
                api_version=Buoy.resource.api_version, kind="Buoy", name=about or "", uid="1"
            )
            metadata["ownerReferences"] = [owner.dump()] if about else []
        else:
            metadata["labels"] = {LABEL: about}
        if obj is None:
            new = {"metadata": {"name": name, "namespace": "sea"}}
            names = {"apiVersion": kind_.resource.api_version, "kind": kind_.resource.kind}
            spec: dict[str, Any] = {"spec": {}} if kind_ in {Buoy, Gull} else {}
            await self.client.create({**names, **new, **spec}, resource=kind_.resource)
        await self.client.patch(kind_, name, "sea", {"metadata": metadata})

    async def play(self, seed: int, *, pace: float = 1.0) -> bool:
        """Change objects while the API server fails, until both stop.

        The pauses between changes are `pace` times as long. Returns whether the API server has an
        earlier state again.
        """
        random = Random(seed)  # noqa: S311 - chooses changes
        self.chaos.random = Random(f"faults {seed}")  # noqa: S311 - chooses faults
        self.chaos.is_wild = True
        restore = self.server.save()
        for _ in range(random.randrange(5, 25)):
            await self.change(random)
            if random.random() < 0.1:
                self.server.compact()
            if random.random() < 0.1:
                self.chaos.close_streams()
            if random.random() < 0.5:
                await asyncio.sleep(pace * random.uniform(0, 0.03))
            if random.random() < 0.01:
                self.server.install(Gull)
        is_restored = random.random() < 0.1
        if is_restored:
            restore()
        self.chaos.close_streams()
        self.chaos.is_wild = False
        return is_restored


@asynccontextmanager
async def managed(
    address: str, reconciler: Reconciler[Any], **fields: Any
) -> AsyncGenerator[asyncio.Task[None]]:
    """A manager in this process."""
    given: dict[str, Any] = {
        "metrics_address": None,
        "health_address": None,
        "leader_elect": False,
        "namespace": "sea",
        "grace_period": 1,
    }
    options = Options(**(given | fields))
    manager = Manager("chaos", [reconciler], options, Config(Server(address), User()))
    task = asyncio.create_task(manager.run())
    try:
        yield task
    finally:
        manager.stop()
        await asyncio.gather(task, return_exceptions=True)


async def holds(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    try:
        await until(condition, within=seconds)
    except AssertionError:
        return False
    return True
