"""A manager whose clusters come and go for days: nothing accumulates in it.

Time is a value: an hour has the events of an hour without the pauses between them.
`CAPELIN_DAYS=3:200` plays three days of 200 clusters.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from capelin.api import Object, kind
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.contract import CLUSTER_NAME_LABEL, reference_to
from capelin.controller import Done, Result
from capelin.provider import (
    INFRA_CLUSTER,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
)
from capelin.testing.fake_client import Clock, FakeClient, cluster
from capelin.testing.waiting import until

from core.tests.controller.chaos import Chaos, WatchedServer
from core.tests.controller.chaos_world import managed
from tests.support.kernel import memory
from tests.support.web import api_server, kubeconfig_secret, not_found

DAYS, CLUSTERS = map(float, os.environ.get("CAPELIN_DAYS", "0.25:120").split(":"))
ENDED_WATCHES_AN_HOUR = 8


@kind(group="infrastructure.cluster.x-k8s.io", version="v1alpha1", definition=INFRA_CLUSTER)
class Harbor(Object[InfraClusterSpec, InfraClusterStatus]):
    """An infrastructure cluster."""


class Harbors(InfraClusterReconciler[Harbor]):
    """Looks into each workload cluster."""

    async def reconcile_normal(self, ctx: InfraClusterContext, harbor: Harbor) -> Result:
        async with ctx.workload() as client:
            await client.find(ConfigMap, harbor.name, "kube-system")
        ctx.set_provisioned()
        return Done()


class Fleet:
    """The clusters in an API server."""

    def __init__(self, workload: str) -> None:
        self.server = WatchedServer(Clock())
        self.client = FakeClient(Harbor, server=self.server)
        self.chaos = Chaos(self.server)
        self.workload = workload
        self.names: list[str] = []
        self.numbers = count()

    async def come(self) -> None:
        number = next(self.numbers)
        name = f"c{number}"
        self.names.append(name)
        owner = await self.client.create(cluster(name, "sea"))
        # The API server of a tenth of the clusters does not answer.
        is_silent = number % 10 == 0
        address = "http://127.0.0.1:1" if is_silent else self.workload
        await self.client.create(kubeconfig_secret(name, "sea", address))
        harbor = Harbor.of(name, "sea", spec=InfraClusterSpec())
        harbor.metadata.labels = {CLUSTER_NAME_LABEL: name}
        harbor.metadata.owner_references = [reference_to(owner, controller=True)]
        await self.client.create(harbor)

    async def go(self) -> None:
        name = self.names.pop(0)
        await self.client.delete(Harbor, name, "sea")
        await until(lambda: self.is_gone(name))
        await self.client.delete(Secret, f"{name}-kubeconfig", "sea")
        await self.client.delete(Cluster, name, "sea")

    async def is_gone(self, name: str) -> bool:
        return await self.client.find(Harbor, name, "sea") is None

    async def is_settled(self) -> bool:
        harbors = (await self.client.list(Harbor, "sea")).items
        return len(harbors) == len(self.names) and all(
            harbor.status is not None
            and harbor.status.conditions
            and all(
                it.observed_generation in (None, harbor.metadata.generation)
                for it in harbor.status.conditions
            )
            for harbor in harbors
        )

    async def hour(self) -> None:
        """The events of an hour, if each cluster exists for a day."""
        for _ in range(max(1, round(CLUSTERS / 24))):
            await self.go()
            await self.come()
        for number in range(ENDED_WATCHES_AN_HOUR):
            for name in self.names[number::ENDED_WATCHES_AN_HOUR]:
                patch = {"metadata": {"annotations": {"n": str(next(self.numbers))}}}
                await self.client.patch(Cluster, name, "sea", patch)
            self.chaos.close_streams()
        self.server.compact()
        await until(self.is_settled)
        self.client.requests.clear()
        self.server.forget_changes()


def held() -> dict[str, int]:
    """The counts that a leak would increase."""
    gc.collect()
    objects = gc.get_objects()
    return {
        "tasks": len(asyncio.all_tasks()),
        "sessions": sum(isinstance(it, aiohttp.ClientSession) for it in objects),
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "objects": len(objects),
        "memory": memory("self"),
    }


@pytest.mark.usefixtures("fast")
@pytest.mark.timeout(3600)
async def test_nothing_accumulates_in_days(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    monkeypatch.setattr("capelin.client.workload_clients._IDLE_SECONDS", 0.0)
    hours = int(24 * DAYS)
    async with api_server(not_found) as workload:
        fleet = Fleet(workload)
        async with fleet.chaos.serving(), managed(fleet.chaos.address, Harbors()):
            for _ in range(int(CLUSTERS)):
                await fleet.come()
            seen: list[dict[str, int]] = []
            for hour in range(hours):
                await fleet.hour()
                if hour * 4 // hours != (hour + 1) * 4 // hours:
                    seen.append(held())
    record_property("held after each quarter", seen)
    for name in ("tasks", "sessions", "threads", "descriptors"):
        assert seen[3][name] <= seen[1][name] + 10, seen
    assert seen[3]["objects"] < 1.05 * seen[1]["objects"], seen
