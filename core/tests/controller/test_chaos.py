"""A manager with an API server that fails by a seed: no change is missed.

`CAPELIN_CHAOS_SEEDS=FIRST:COUNT` plays other seeds.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from capelin.api import BaseObject, Object, OwnerReference, kind
from capelin.api.core import ConfigMap, Lease, Secret, Service
from capelin.client import Client, ClientOptions, Config, Server, User
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

FIRST, COUNT = map(int, os.environ.get("CAPELIN_CHAOS_SEEDS", "0:12").split(":"))
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


class Buoys(Reconciler[Buoy]):
    """Records the view of each buoy at its last reconcile."""

    watches = (
        For(Buoy, labels={"kept": None}),
        Owns(ConfigMap),
        Watches(Secret, by_label),
        Watches(Service, by_request, metadata_only=True),
        Watches(Gull, by_label, optional=True),
    )
    cached_reads = True

    def __init__(self, has_gulls: Callable[[], bool]) -> None:
        self.views: dict[str, View] = {}
        self.reconciles = 0
        self._has_gulls = has_gulls

    async def reconcile(self, ctx: Context, buoy: Buoy, /) -> Result:
        self.reconciles += 1
        self.views[buoy.name] = (
            version_of(buoy),
            *await dependents(ctx.client, buoy.name, has_gulls=self._has_gulls()),
        )
        return Done()

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        self.reconciles += 1
        self.views[key.name] = GONE


async def dependents(client: Client, name: str, *, has_gulls: bool) -> Iterable[Any]:
    found: list[Any] = []
    for kind_ in DEPENDENTS[: None if has_gulls else -1]:
        listed = (await client.list(kind_, "sea")).items
        found += [version_of(obj) for obj in listed if concerns(obj, name)]
    return sorted(found)


class World:
    """The objects in the API server, and the changes that a seed makes."""

    def __init__(self) -> None:
        self.server = WatchedServer(Clock())
        self.client = FakeClient(Buoy, server=self.server)
        self.chaos = Chaos(self.server)
        self.buoys = Buoys(lambda: self.server.serves(Gull.resource))

    async def expected(self) -> dict[str, View]:
        expected: dict[str, View] = {}
        for name in NAMES:
            buoy = await self.client.find(Buoy, name, "sea")
            if buoy is not None and "kept" in buoy.metadata.labels:
                has_gulls = self.server.serves(Gull.resource)
                related = await dependents(self.client, name, has_gulls=has_gulls)
                expected[name] = (version_of(buoy), *related)
            elif name in self.buoys.views:
                expected[name] = GONE
        return expected

    async def is_current(self) -> bool:
        expected = await self.expected()
        return all(self.buoys.views.get(name) == view for name, view in expected.items())

    async def is_quiet(self) -> bool:
        before = self.buoys.reconciles
        # Longer than all pauses: what is still busy reconciles in this time.
        await asyncio.sleep(0.15)
        return self.buoys.reconciles == before and await self.is_current()

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

    async def play(self, seed: int) -> None:
        """Change objects while the API server fails, until both stop."""
        random = self.chaos.random = Random(seed)  # noqa: S311 - chooses changes
        self.chaos.is_wild = True
        restore = self.server.save()
        for _ in range(random.randrange(5, 25)):
            await self.change(random)
            if random.random() < 0.1:
                self.server.compact()
            if random.random() < 0.1:
                self.chaos.close_streams()
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0, 0.03))
            if random.random() < 0.01:
                self.server.install(Gull)
        if random.random() < 0.1:
            restore()
        self.chaos.close_streams()
        self.chaos.is_wild = False


@asynccontextmanager
async def managed(world: World, **fields: Any) -> AsyncGenerator[asyncio.Task[None]]:
    given: dict[str, Any] = {
        "metrics_address": None,
        "health_address": None,
        "leader_elect": False,
        "namespace": "sea",
        "grace_period": 1,
    }
    options = Options(**(given | fields))
    config = Config(Server(world.chaos.address), User())
    manager = Manager("chaos", [world.buoys], options, config)
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


async def test_manager_renews_its_lease_while_other_requests_wait() -> None:
    world = World()
    for number in range(150):
        buoy = Buoy.of(f"b{number}", "sea", spec={})
        buoy.metadata.labels = {"kept": "yes"}
        await world.client.create(buoy)
    times: dict[str, Any] = {
        "leader_elect": True,
        "leader_elect_retry_period": 0.1,
        "concurrency": 150,
        "sync_period": 1.0,
    }
    async with world.chaos.serving(), managed(world, **times) as task:
        await until(lambda: world.buoys.reconciles >= 150)
        world.chaos.calm.clear()
        # As many as one client sends at once.
        await until(lambda: world.chaos.waiting >= ClientOptions().connections)
        renewals: set[object] = set()

        async def is_renewed() -> bool:
            lease = await world.client.get(Lease, "chaos", "default")
            renewals.add(lease.spec.renew_time)
            return len(renewals) > 10 or task.done()

        await until(is_renewed)
        world.chaos.calm.set()
        assert not task.done(), task.exception()


@pytest.mark.usefixtures("fast")
@pytest.mark.timeout(3600)
async def test_no_change_is_missed() -> None:
    world, failures = World(), dict[int, str]()
    # No state of a real API server has the version 0, also not one that is restored.
    await world.client.create(ConfigMap.of("first", "other"))
    seeds = iter(range(FIRST, FIRST + COUNT))
    async with world.chaos.serving():
        while (seed := next(seeds, None)) is not None:
            async with managed(world) as task:
                await until(world.is_quiet, within=30)
                while seed is not None and not task.done():
                    await world.play(seed)
                    if not await holds(world.is_quiet, 10):
                        failures[seed] = f"{world.buoys.views} is not {await world.expected()}"
                        break
                    seed = next(seeds, None)
                if task.done() and seed is not None:
                    failures[seed] = f"the manager ended: {task.exception()!r}"
    assert not failures, f"{len(failures)} of {COUNT} seeds: {failures}"
