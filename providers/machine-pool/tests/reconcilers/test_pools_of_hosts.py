"""Pools of hosts on a real API server. The hosts have real SSH servers and a fake kubeadm."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.testing.managers import running

from .rack import HostWorld, rack, reconcilers

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("provider_crds")]


@asynccontextmanager
async def alive(world: HostWorld) -> AsyncGenerator[None]:
    """Core and kubelets work."""
    living = asyncio.create_task(world.live())
    try:
        yield
    finally:
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living


async def test_pool_of_hosts_scales_and_returns_clean_hosts(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    config = Config.from_kubeconfig(kubeconfig)
    async with rack(tmp_path, 3) as hosts:
        world = HostWorld(client, namespace, hosts)
        async with (
            alive(world),
            running(*reconcilers(client), config=config, namespace=namespace),
            # A second provider at the same time, as after a lost lease.
            running(*reconcilers(client), config=config, namespace=namespace),
        ):
            await world.start(replicas=3)
            await world.until_nodes(3)
            await world.until_phases(Ready=3)
            assert [await host.joins() for host in hosts] == [1, 1, 1]
            await world.scale(1)
            await world.until_phases(Ready=1, Free=2)
            phases = await world.phases()
            for host in hosts:
                is_fresh = await host.machine.fingerprint() == host.fresh
                assert is_fresh == (phases[host.name] == "Free")
            await world.scale(3)
            await world.until_nodes(3)
            await world.until_phases(Ready=3)
            assert sorted([await host.joins() for host in hosts]) == [1, 2, 2]
