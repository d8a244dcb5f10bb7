"""Honest tenants change their objects and measure the time until managers reconcile them.

Reconciles are observed through one watch for each kind and namespace, which costs the API server
next to nothing. Parts of the times are measured too, so that the API server's own part is known.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from capelin.api import BaseObject
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import ConfigMap
from capelin.client import Client
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_machine_pool.api import CapelinMachinePool

from tests.faults.attacker import FAILURES, VERSION
from tests.faults.tenant_report import TenantReport

CANARY: Final = "canary"
"""A ConfigMap that no manager reconciles."""
_PATIENCE: Final = 60.0
_CHANGE_PAUSE: Final = 0.5
_DRAFT_PAUSE: Final = 5.0
_KINDS: Final = (
    CapelinControlPlane,
    CapelinMachinePool,
    ConfigMap,
    LifecyclePolicy,
    LifecycleResult,
)

ObjectT = TypeVar("ObjectT", bound=BaseObject)


@dataclass(slots=True)
class _Waiter:
    is_so: Callable[[Any], bool]
    arrival: asyncio.Future[float]


class Watched:
    """The newest versions of the objects of a namespace, with the times of their arrival."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._newest: dict[tuple[type[BaseObject], str], tuple[float, BaseObject]] = {}
        self._waiting: dict[type[BaseObject], list[_Waiter]] = {kind: [] for kind in _KINDS}

    async def follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for kind in _KINDS:
                tasks.create_task(self._follow(kind))

    async def _follow(self, kind: type[BaseObject]) -> None:
        async with aclosing(self._client.watch(kind, self._namespace)) as events:
            async for event in events:
                self.note(kind, event.object, time.monotonic(), is_deleted=event.type == "DELETED")

    def note(
        self, kind: type[BaseObject], obj: BaseObject, now: float, *, is_deleted: bool = False
    ) -> None:
        if is_deleted:
            self._newest.pop((kind, obj.name), None)
            return
        self._newest[kind, obj.name] = now, obj
        for waiter in self._waiting[kind]:
            if not waiter.arrival.done() and waiter.is_so(obj):
                waiter.arrival.set_result(now)

    async def until(self, kind: type[ObjectT], is_so: Callable[[ObjectT], bool]) -> float:
        """When a version of an object arrived for which a condition holds.

        Raises:
            TimeoutError: it does not arrive.
        """
        for (known, _), (arrival, obj) in self._newest.items():
            if known is kind and isinstance(obj, kind) and is_so(obj):
                return arrival
        waiter = _Waiter(is_so, asyncio.get_running_loop().create_future())
        self._waiting[kind].append(waiter)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await waiter.arrival
        finally:
            self._waiting[kind].remove(waiter)

    def name_of(self, kind: type[BaseObject], prefix: str) -> str:
        """The name of an object of a kind."""
        return next(
            name for known, name in self._newest if known is kind and name.startswith(prefix)
        )


class HonestTenant:
    """Works in a namespace and measures the reaction time of managers."""

    def __init__(self, client: Client, namespace: str, report: TenantReport) -> None:
        self._client, self._namespace, self._report = client, namespace, report
        self._watched = Watched(client, namespace)

    async def work(self, cluster: str, policy: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watched.follow())
            for kind, prefix in (
                (CapelinControlPlane, cluster),
                (CapelinMachinePool, cluster),
                (LifecyclePolicy, policy),
                (ConfigMap, CANARY),
            ):
                await self._watched.until(kind, lambda obj, p=prefix: obj.name.startswith(p))
            tasks.create_task(self._repeat(_CHANGE_PAUSE, self._change, cluster, policy))
            tasks.create_task(self._repeat(_DRAFT_PAUSE, self._draft))

    async def _repeat(self, pause: float, step: Callable[..., Any], *arguments: str) -> None:
        number = 0
        while True:
            number += 1
            try:
                await step(number, *arguments)
            except FAILURES as error:
                self._report.failures[f"requests of honest tenants: {type(error).__name__}"] += 1
            await asyncio.sleep(pause)

    async def _change(self, number: int, cluster: str, policy: str) -> None:
        """Change a control plane, a pool and a policy in turn, and an object without a manager."""
        drain = {"machineTemplate": {"spec": {"deletion": {"nodeDrainTimeoutSeconds": number}}}}
        order = {"rollingUpdate": {"deletePolicy": ("Newest", "Oldest")[number % 2]}}
        for kind, prefix, spec in (
            (CapelinControlPlane, cluster, drain),
            (CapelinMachinePool, cluster, order),
            (LifecyclePolicy, policy, {"order": number % 1000}),
        ):
            name = self._watched.name_of(kind, prefix)
            changed, accepted = await self._patch(kind, name, {"spec": spec})
            generation = changed.metadata.generation or 0

            def is_reconciled(obj: Any, name: str = name, generation: int = generation) -> bool:
                observed = 0 if obj.status is None else obj.status.observed_generation or 0
                return obj.name == name and observed >= generation

            arrival = await self._arrival(kind, is_reconciled)
            self._report.reconciled(kind.__name__, arrival - accepted)
        sent = time.monotonic()
        changed, _ = await self._patch(ConfigMap, CANARY, {"data": {"number": f"{number}"}})
        version = changed.metadata.resource_version
        arrival = await self._arrival(
            ConfigMap, lambda canary: canary.metadata.resource_version == version
        )
        self._report.took("API server: from a change to its watch event", arrival - sent)

    async def _patch(self, kind: type[ObjectT], name: str, patch: Any) -> tuple[ObjectT, float]:
        """Change an object. Also returns when the API server accepted that."""
        sent = time.monotonic()
        changed = await self._client.patch(kind, name, self._namespace, patch)
        accepted = time.monotonic()
        self._report.took("API server: answer to a change", accepted - sent)
        return changed, accepted

    async def _draft(self, number: int) -> None:
        """Create a Cluster that a policy blocks, and measure until its result shows that."""
        name = f"draft-{number}"
        await create_cluster(self._client, name, self._namespace)
        accepted = time.monotonic()
        called = await self._arrival(LifecycleResult, lambda r: r.spec.cluster.name == name)
        self._report.took("Cluster API: from a Cluster to the call of its hook", called - accepted)
        decided = called
        if called - accepted < _PATIENCE:
            decided = await self._arrival(
                LifecycleResult, lambda r: r.spec.cluster.name == name and r.status is not None
            )
            self._report.took("lifecycle: from the call of a hook to its result", decided - called)
        self._report.reconciled("Cluster, by its hook", decided - accepted)
        await self._client.delete(Cluster, name, self._namespace)

    async def _arrival(self, kind: type[ObjectT], is_so: Callable[[ObjectT], bool]) -> float:
        """When a version of an object arrived, or now if it does not arrive."""
        try:
            return await self._watched.until(kind, is_so)
        except TimeoutError:
            text = f"{self._namespace}: {kind.__name__} not reconciled in {_PATIENCE:g} s"
            self._report.problem(text)
            return time.monotonic()


async def create_cluster(client: Client, name: str, namespace: str) -> None:
    cluster_class = await client.get(ClusterClass, DEMO_CLASS, namespace)
    options = ClusterOptions(
        cluster_class=DEMO_CLASS, version=VERSION, control_plane_replicas=1, workers=1
    )
    await client.create(new_cluster(name, namespace, VERSION, options, cluster_class))
