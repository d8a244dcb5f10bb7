"""Reconciles CapelinMachinePools: creates machines, and has core delete them."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from capelin.api.views.capi import Cluster, Machine, MachinePool
from capelin.client import Client
from capelin.contract.clusters import cluster_of, named_by, owner_of
from capelin.contract.conditions import ConditionSpec
from capelin.contract.owners import ensure, reference_to
from capelin.contract.pausing import paused
from capelin.contract.references import served
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Owns,
    Permission,
    Reconciler,
    Result,
    Watches,
)

from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool, MachinePoolStatus
from capelin_machine_pool.desired import (
    FINALIZER,
    MANAGER,
    DesiredPool,
    desired_pool,
    machine_name,
    pool_machine,
)
from capelin_machine_pool.plan import (
    LATER,
    SOON,
    ObservedPool,
    PoolStep,
    is_settled,
    machine_info,
    next_pool_step,
    pool_waits_for,
)
from capelin_machine_pool.status import (
    blocked,
    deleting,
    merge_conditions,
    pool_status,
    provider_ids,
)

ItemT = TypeVar("ItemT")

_CONCURRENCY = 20
"""Requests in flight when machines are created or deleted."""


def pool_of(machine_pool: MachinePool) -> Iterable[ObjectKey]:
    """The CapelinMachinePool of a MachinePool."""
    reference = machine_pool.spec.template.spec.infrastructure_ref
    name = named_by(reference, CapelinMachinePool)
    return [] if name is None else [ObjectKey(machine_pool.namespace or "", name)]


class MachinePoolReconciler(Reconciler[CapelinMachinePool]):
    """Reconciles CapelinMachinePools."""

    watches = (
        For(CapelinMachinePool),
        Owns(CapelinMachine),
        Watches(MachinePool, to=pool_of),
    )
    permissions = (
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
        Permission("cluster.x-k8s.io", ("machines",), ("list", "delete")),
        Permission("bootstrap.cluster.x-k8s.io", ("*",), ("get",)),
    )

    def __init__(self) -> None:
        self._rate_limit = RateLimit()

    async def reconcile(self, ctx: Context, pool: CapelinMachinePool) -> Result:
        key = ObjectKey(pool.namespace or "", pool.name)
        if delay := self._rate_limit.delay(key):
            return After(delay)
        with self._rate_limit.measure(key):
            return await self._reconcile(ctx, pool)

    async def _reconcile(self, ctx: Context, pool: CapelinMachinePool) -> Result:
        cluster = await cluster_of(ctx.client, pool)
        pause = paused(pool, cluster)
        if pause.status == "True":
            await self._set_conditions(pool, ctx, pause)
            return After(LATER)
        machine_pool = await owner_of(ctx.client, pool, MachinePool)
        if pool.metadata.deletion_timestamp is not None:
            return await self._reconcile_delete(pool, pause, ctx)
        if cluster is not None and machine_pool is not None:
            await ctx.add_finalizer(pool, FINALIZER)
            await self._set_cluster_owner(pool, cluster, ctx)
        waiting = pool_waits_for(cluster, machine_pool)
        if cluster is None or machine_pool is None or waiting is not None:
            if waiting is not None:
                await self._set_conditions(pool, ctx, pause, blocked(waiting))
            return After(SOON)
        return await self._reconcile_normal(pool, machine_pool, cluster, pause, ctx)

    async def _reconcile_normal(
        self,
        pool: CapelinMachinePool,
        machine_pool: MachinePool,
        cluster: Cluster,
        pause: ConditionSpec,
        ctx: Context,
    ) -> Result:
        bootstrap_spec = await _bootstrap_spec(ctx.client, machine_pool)
        desired = desired_pool(pool, machine_pool, cluster, bootstrap_spec)
        observed = await _observe(ctx.client, pool, desired)
        status = pool_status(pool, desired, observed.machines, paused=pause, now=ctx.now())
        await ctx.patch_status(pool, status)
        await self._write_provider_ids(pool, observed.machines, ctx)
        step = next_pool_step(desired, observed, ctx.now())
        await _apply(ctx.client, pool, desired, step)
        return After(step.requeue_after)

    async def _reconcile_delete(
        self, pool: CapelinMachinePool, pause: ConditionSpec, ctx: Context
    ) -> Result:
        """Delete every machine through its Machine, then remove the finalizer."""
        machines = [
            _without_managed_fields(machine)
            async for machine in ctx.client.iterate(CapelinMachine, pool.namespace)
            if any(owner.uid == pool.uid for owner in machine.metadata.owner_references)
        ]
        if not machines:
            await ctx.remove_finalizer(pool, FINALIZER)
            return Done()
        await self._write_provider_ids(pool, machines, ctx)
        names = [
            machine.name for machine in machines if machine.metadata.deletion_timestamp is None
        ]
        await _for_each(names, partial(_delete_with_machine, ctx.client, pool))
        message = f"{len(machines)} machines are being deleted"
        await self._set_conditions(pool, ctx, pause, deleting(message))
        return After(SOON)

    async def _write_provider_ids(
        self, pool: CapelinMachinePool, machines: Sequence[CapelinMachine], ctx: Context
    ) -> None:
        ids = provider_ids(machines)
        if ids == pool.spec.provider_id_list:
            return
        resource = CapelinMachinePool.resource
        await ctx.client.apply(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": pool.name, "namespace": pool.namespace, "uid": pool.uid},
                "spec": {"providerIDList": ids},
            },
            resource=resource,
            manager=f"{MANAGER}-provider-id-list",
        )

    async def _set_cluster_owner(
        self, pool: CapelinMachinePool, cluster: Cluster, ctx: Context
    ) -> None:
        """Make the Cluster an owner, for `clusterctl move`. Core does so for topologies only."""
        present = pool.metadata.owner_references
        if ensure(present, reference_to(cluster)) != present:
            await ctx.apply_metadata(pool, owner_references=[reference_to(cluster)])

    async def _set_conditions(
        self, pool: CapelinMachinePool, ctx: Context, *changed: ConditionSpec
    ) -> None:
        status = pool.status or MachinePoolStatus()
        update = {
            "conditions": merge_conditions(pool, *changed, now=ctx.now()),
            # Set before there are machines, so that core never treats the pool as one without.
            "infrastructure_machine_kind": CapelinMachine.resource.kind,
        }
        await ctx.patch_status(pool, status.model_copy(update=update))


class RateLimit:
    """Reconciles a large pool less often: each reconcile is followed by a pause.

    Every change of each of its machines asks for a reconcile, and each reconcile reads all of them.
    """

    _FACTOR = 4.0
    """The pause, as a multiple of the reconcile's duration."""
    _MAX_DELAY = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[ObjectKey, float] = {}

    def delay(self, key: ObjectKey) -> float:
        """The remaining seconds of an object's pause."""
        return max(0.0, self._ends.get(key, 0.0) - self._clock())

    @contextmanager
    def measure(self, key: ObjectKey) -> Generator[None]:
        """Measure a reconcile. One that fails has no pause: the queue has a backoff for it."""
        start = self._clock()
        yield
        now = self._clock()
        self._ends = {key: end for key, end in self._ends.items() if end > now}
        self._ends[key] = now + min(self._FACTOR * (now - start), self._MAX_DELAY)


async def _observe(client: Client, pool: CapelinMachinePool, desired: DesiredPool) -> ObservedPool:
    """Read the machines of a pool, and their Machines if something is to be done."""
    labels = desired.machine_labels
    machines = [
        _without_managed_fields(machine)
        async for machine in client.iterate(CapelinMachine, pool.namespace, labels=labels)
    ]
    if is_settled(desired, machines):
        return ObservedPool(machines, {})
    infos = {
        named_by(machine.spec.infrastructure_ref, CapelinMachine) or "": machine_info(machine)
        async for machine in client.iterate(Machine, pool.namespace, labels=labels)
    }
    return ObservedPool(machines, infos)


async def _apply(
    client: Client, pool: CapelinMachinePool, desired: DesiredPool, step: PoolStep
) -> None:
    """Delete, then create machines: a crash in between leaves too few, not too many."""
    await _for_each(step.delete, lambda name: client.delete(Machine, name, pool.namespace))
    created = [
        pool_machine(
            pool,
            desired.machine_pool,
            desired.cluster,
            name=machine_name(pool.name, uuid.uuid4().hex[:6]),
            revision=desired.revision or "",
            failure_domain=domain,
        )
        for domain in step.create
    ]
    await _for_each(created, client.create)


async def _bootstrap_spec(client: Client, machine_pool: MachinePool) -> Mapping[str, Any] | None:
    """The spec of the pool's bootstrap config: empty if none is named, None if it is missing."""
    reference = machine_pool.spec.template.spec.bootstrap.config_ref
    if reference is None or not (reference.kind and reference.name and reference.api_group):
        return {}
    resource = await served(client, reference.api_group, reference.kind)
    if resource is None:
        return None
    config = await client.find(resource, reference.name, machine_pool.namespace)
    return None if config is None else config.get("spec") or {}


async def _delete_with_machine(client: Client, pool: CapelinMachinePool, name: str) -> None:
    """Delete a machine by its Machine, or by itself if it has none."""
    if not await client.delete(Machine, name, pool.namespace):
        await client.delete(CapelinMachine, name, pool.namespace)


def _without_managed_fields(machine: CapelinMachine) -> CapelinMachine:
    """A machine without its managedFields, which take as much memory as the rest of it."""
    machine.metadata.managed_fields = None
    return machine


async def _for_each(items: Iterable[ItemT], action: Callable[[ItemT], Awaitable[object]]) -> None:
    """Run an action for each item, a limited number at a time."""
    limit = asyncio.Semaphore(_CONCURRENCY)

    async def limited(item: ItemT) -> None:
        async with limit:
            await action(item)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(limited(item))
