"""The provider dies again and again, each time between two writes."""

from random import Random
from typing import Any

import pytest
from capelin.api.capi import MachinePool
from capelin.client import Client, Config, Request, Response
from capelin_machine_pool.api import CapelinMachinePool
from capelin_machine_pool.desired import MANAGER

from .fake_core import NAME, NEW, OLD, World

MACHINES, SURGE, UNAVAILABLE = 4, 1, 1
PATIENCE = 400


class CrashError(BaseException):
    """The provider died."""


class Mortal:
    """A client whose provider dies at a chosen write, before or after the write arrives."""

    def __init__(self, client: Client, writes: int, *, last_arrives: bool) -> None:
        self._send = client._transport.send  # pyright: ignore[reportPrivateUsage] - counts the requests that are sent
        self._left = writes
        self._last_arrives = last_arrives
        client._transport.send = self.send  # pyright: ignore[reportPrivateUsage] - as above

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            return await self._send(request)
        self._left -= 1
        if self._left < 0 and not self._last_arrives:
            raise CrashError
        reply = await self._send(request)
        if self._left < 0:
            raise CrashError
        return reply


class Life:
    """A world whose provider dies often, and the bounds that hold at any time."""

    def __init__(self, world: World, config: Config, random: Random) -> None:
        self._world = world
        self._config = config
        self._random = random
        self.least = 0
        self.most = 0
        self.crashes = 0

    async def until(self, replicas: int, version: str) -> None:
        """Reconcile until the pool has these machines and is quiet."""
        await self._reconcile_until(lambda: self._is(replicas, version))

    async def until_some(self, version: str) -> None:
        """Reconcile until a machine of this version exists."""

        async def some() -> bool:
            return version in self._world.cloud.instances.values()

        await self._reconcile_until(some)

    async def until_gone(self) -> None:
        """Reconcile until the machines of the pool are deleted."""

        async def gone() -> bool:
            left = [*await self._world.instances(), *await self._world.machines()]
            return not left and await self._world.pool() is None

        await self._reconcile_until(gone)
        assert self._world.cloud.instances == {}

    async def _reconcile_until(self, done: Any) -> None:
        for _ in range(PATIENCE):
            if await done():
                return
            await self._live()
            await self._check()
            await self._world.core_step()
        pytest.fail(f"it does not come to an end: {self._world.cloud.instances}")

    async def _live(self) -> None:
        async with Client(self._config, manager=MANAGER) as client:
            Mortal(
                client, self._random.randrange(3), last_arrives=self._random.choice([True, False])
            )
            try:
                await self._world.provider_steps(client)
            except CrashError:
                self.crashes += 1
            except BaseExceptionGroup as group:
                if not group.subgroup(CrashError):
                    raise
                self.crashes += 1

    async def _check(self) -> None:
        going = {
            one.name for one in await self._world.machines() if one.metadata.deletion_timestamp
        }
        alive = {one.name for one in await self._world.instances()} - going
        assert len(self._world.cloud.instances) >= self.least
        assert not self.most or len(alive) <= self.most

    async def _is(self, replicas: int, version: str) -> bool:
        pool = await self._world.pool()
        names = {one.name for one in await self._world.instances()}
        return (
            pool is not None
            and pool.status is not None
            and names == {one.name for one in await self._world.machines()}
            and self._world.cloud.instances == dict.fromkeys(names, version)
            and len(names) == len(pool.spec.provider_id_list) == pool.status.replicas == replicas
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.integration) for seed in (1, 2, 3))]
)
async def test_the_next_provider_continues_after_any_crash(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
    client: Client,
    namespace: str,
    seed: int,
) -> None:
    world = World(client, namespace)
    await world.begin({"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}, MACHINES)
    life = Life(world, client.config, Random(seed))  # noqa: S311 - what failed has to fail again
    await life.until(MACHINES, OLD)
    life.least, life.most = MACHINES - UNAVAILABLE, MACHINES + SURGE
    await world.change({"template": {"spec": {"version": NEW}}})
    await life.until_some(NEW)
    await world.change({"template": {"spec": {"version": OLD}}})
    await life.until(MACHINES, OLD)
    await world.change({"template": {"spec": {"version": NEW}}})
    await life.until(MACHINES, NEW)
    life.least = 2 - UNAVAILABLE
    await world.change({"replicas": 2})
    await life.until(2, NEW)
    life.least = 0
    await client.delete(CapelinMachinePool, NAME, namespace)
    await life.until_gone()
    await client.delete(MachinePool, NAME, namespace)
    assert life.crashes > 20
