"""Moves pools towards their specs: makes machines, and has core remove them."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from capelin.api.views.capi import Cluster, Machine, MachinePool
from capelin.client import Client
from capelin.contract import failure_domains
from capelin.contract.clusters import cluster_of, named_by, owner_of
from capelin.contract.conditions import READY, ConditionSpec
from capelin.contract.metadata import pool_machine_labels
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

from capelin_machine_pool import status as say
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool, PoolStatus
from capelin_machine_pool.desired import FINALIZER, is_of, machine_name, pool_machine, revision_of
from capelin_machine_pool.observe import Owner, is_going, leaving, member, owner
from capelin_machine_pool.plan import limits, next_changes
from capelin_machine_pool.reconcilers.machines import MANAGER
from capelin_machine_pool.reconcilers.pace import Pace

ItemT = TypeVar("ItemT")

_SOON = 2.0
_LATER = 15.0
_LOOK_AGAIN = 60.0
"""When to look again at a pool as wanted: nobody says when its bootstrap config changes."""
_AT_ONCE = 20
"""How many machines are made, or removed, at the same time."""
_LEAVING_AT_ONCE = 50
"""How many Machines begin to go at the same time: of hundreds, core gets rid far more slowly."""


def its_pool(machine_pool: MachinePool) -> Iterable[ObjectKey]:
    """The pool that a MachinePool's events concern."""
    reference = machine_pool.spec.template.spec.infrastructure_ref
    name = named_by(reference, CapelinMachinePool)
    return [] if name is None else [ObjectKey(machine_pool.namespace or "", name)]


class Pools(Reconciler[CapelinMachinePool]):
    """Moves a pool of machines one step towards its spec."""

    watches = (
        For(CapelinMachinePool),
        Owns(CapelinMachine),
        Watches(MachinePool, to=its_pool),
    )
    permissions = (
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
        Permission("cluster.x-k8s.io", ("machines",), ("list", "delete")),
        Permission("bootstrap.cluster.x-k8s.io", ("*",), ("get",)),
    )

    def __init__(self) -> None:
        self._pace = Pace()

    async def reconcile(self, ctx: Context, pool: CapelinMachinePool) -> Result:
        """Take one step; every machine's change asks for one, so after a long one comes a rest."""
        key = ObjectKey(pool.namespace or "", pool.name)
        if rest := self._pace.rest(key):
            return After(rest)
        with self._pace.look(key):
            return await self._step(pool, ctx)

    async def _step(self, pool: CapelinMachinePool, ctx: Context) -> Result:
        cluster = await cluster_of(ctx.client, pool)
        pause = paused(pool, cluster)
        if pause.status == "True":
            await self._say(pool, ctx, pause)
            return After(_LATER)
        machine_pool = await owner_of(ctx.client, pool, MachinePool)
        if pool.metadata.deletion_timestamp is not None:
            return await self._remove(pool, pause, ctx)
        if cluster is None or machine_pool is None:
            message = "no MachinePool owns it yet; name it in a MachinePool's infrastructureRef"
            await self._say(
                pool, ctx, pause, ConditionSpec(READY, "False", say.WAITING_FOR_OWNER, message)
            )
            return Done()
        await ctx.add_finalizer(pool, FINALIZER)
        await self._own(pool, cluster, ctx)
        missing = _waits_for(cluster, machine_pool)
        if missing is not None:
            await self._say(pool, ctx, pause, missing)
            return After(_SOON)
        return await self._keep(pool, machine_pool, cluster, pause, ctx)

    async def _keep(
        self,
        pool: CapelinMachinePool,
        machine_pool: MachinePool,
        cluster: Cluster,
        pause: ConditionSpec,
        ctx: Context,
    ) -> Result:
        labels = pool_machine_labels(cluster=cluster.name, pool=machine_pool.name)
        found = ctx.client.iterate(CapelinMachine, pool.namespace, labels=labels)
        machines = [_without_history(machine) async for machine in found]
        bootstrap = await _bootstrap_spec(ctx.client, machine_pool)
        revision = None if bootstrap is None else revision_of(pool, machine_pool, bootstrap)
        replicas = 1 if machine_pool.spec.replicas is None else machine_pool.spec.replicas
        up_to_date = None if revision is None else sum(is_of(one, revision) for one in machines)
        await ctx.patch_status(
            pool,
            say.pool_status(
                pool,
                machines,
                replicas=replicas,
                up_to_date=up_to_date,
                paused=pause,
                now=ctx.now(),
            ),
        )
        await self._list_machines(pool, machines, ctx)
        if revision is None:
            # What is made anew is mostly as it was, and then no machine is to be replaced.
            return After(_LATER)
        rolling = pool.spec.rolling_update
        wanted = limits(replicas, rolling.max_surge, rolling.max_unavailable, rolling.delete_policy)
        if up_to_date == len(machines) == replicas and not any(map(is_going, machines)):
            return After(_LOOK_AGAIN)
        owners = await _owners_of(ctx.client, pool, labels)
        members = [member(machine, owners, revision, ctx.now()) for machine in machines]
        may_leave = max(0, _LEAVING_AT_ONCE - leaving(owners.values(), ctx.now()))
        changes = next_changes(members, wanted, may_leave=may_leave)
        # First, so that whoever dies in between has not made too many.
        await _each(changes.remove, partial(_delete_machine, ctx.client, pool))
        domains = _domains(machine_pool, cluster, machines)
        made = [
            pool_machine(
                pool,
                machine_pool,
                cluster.name,
                name=machine_name(pool.name, uuid.uuid4().hex[:6]),
                revision=revision,
                failure_domain=domain,
            )
            for domain in domains(changes.create)
        ]
        await _each(made, ctx.client.create)
        # Whether its Machine is there, its Node ready, or it is marked, only a look can tell.
        return After(_SOON)

    async def _remove(self, pool: CapelinMachinePool, pause: ConditionSpec, ctx: Context) -> Result:
        """Have every machine removed through its Machine, and go when none is left."""
        left = [
            _without_history(machine)
            async for machine in ctx.client.iterate(CapelinMachine, pool.namespace)
            if any(owner.uid == pool.uid for owner in machine.metadata.owner_references)
        ]
        if not left:
            await ctx.remove_finalizer(pool, FINALIZER)
            return Done()
        await self._list_machines(pool, left, ctx)
        waiting = [one.name for one in left if one.metadata.deletion_timestamp is None]
        await _each(waiting, partial(_delete_everything, ctx.client, pool))
        await self._say(pool, ctx, pause, say.deleting(f"{len(left)} machines are being removed"))
        return After(_SOON)

    async def _list_machines(
        self, pool: CapelinMachinePool, machines: Sequence[CapelinMachine], ctx: Context
    ) -> None:
        listed = say.provider_ids(machines)
        if listed == pool.spec.provider_id_list:
            return
        resource = CapelinMachinePool.resource
        await ctx.client.apply(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": pool.name, "namespace": pool.namespace, "uid": pool.uid},
                "spec": {"providerIDList": listed},
            },
            resource=resource,
            manager=f"{MANAGER}-provider-id-list",
        )

    async def _own(self, pool: CapelinMachinePool, cluster: Cluster, ctx: Context) -> None:
        """Name the Cluster as an owner too: core does it for topologies only, and move needs it."""
        present = pool.metadata.owner_references
        if ensure(present, reference_to(cluster)) != present:
            await ctx.apply_metadata(pool, owner_references=[reference_to(cluster)])

    async def _say(self, pool: CapelinMachinePool, ctx: Context, *aspects: ConditionSpec) -> None:
        before = pool.status or PoolStatus()
        changed = {
            "conditions": say.said(pool, *aspects, now=ctx.now()),
            # Said before there are machines, so that core never takes them for its own.
            "infrastructure_machine_kind": CapelinMachine.resource.kind,
        }
        await ctx.patch_status(pool, before.model_copy(update=changed))


def _waits_for(cluster: Cluster, machine_pool: MachinePool) -> ConditionSpec | None:
    if not cluster.status.initialization.infrastructure_provisioned:
        message = "the Cluster's infrastructure is not provisioned yet"
        return ConditionSpec(READY, "False", say.WAITING_FOR_INFRASTRUCTURE, message)
    if machine_pool.spec.template.spec.bootstrap.data_secret_name is None:
        message = "its MachinePool has no bootstrap data yet"
        return ConditionSpec(READY, "False", say.WAITING_FOR_BOOTSTRAP_DATA, message)
    if not cluster.status.initialization.control_plane_initialized:
        message = "the control plane has not answered yet"
        return ConditionSpec(READY, "False", say.WAITING_FOR_CONTROL_PLANE, message)
    return None


def _without_history(machine: CapelinMachine) -> CapelinMachine:
    """A machine without who wrote what, which takes as much memory as the rest."""
    machine.metadata.managed_fields = None
    return machine


async def _owners_of(
    client: Client, pool: CapelinMachinePool, labels: Mapping[str, str]
) -> dict[str, Owner]:
    """The Machines of a pool by the names of what they stand for."""
    return {
        named_by(machine.spec.infrastructure_ref, CapelinMachine) or "": owner(machine)
        async for machine in client.iterate(Machine, pool.namespace, labels=labels)
    }


async def _bootstrap_spec(client: Client, machine_pool: MachinePool) -> Mapping[str, Any] | None:
    """What a pool's bootstrap config says, if one is named; None while that one is not there."""
    reference = machine_pool.spec.template.spec.bootstrap.config_ref
    if reference is None or not (reference.kind and reference.name and reference.api_group):
        return {}
    resource = await served(client, reference.api_group, reference.kind)
    if resource is None:
        return None
    found = await client.find(resource, reference.name, machine_pool.namespace)
    return None if found is None else found.get("spec") or {}


def _domains(
    machine_pool: MachinePool, cluster: Cluster, machines: Sequence[CapelinMachine]
) -> Callable[[int], list[str | None]]:
    """Where the next machines go, by how many there are to be."""
    names = machine_pool.spec.failure_domains or [
        domain.name for domain in cluster.status.failure_domains
    ]
    placed = [machine.spec.failure_domain for machine in machines]

    def choose(count: int) -> list[str | None]:
        chosen: list[str | None] = []
        for _ in range(count):
            domain = failure_domains.fewest(names, [*placed, *chosen], seed=machine_pool.uid)
            chosen.append(domain)
        return chosen

    return choose


async def _delete_machine(client: Client, pool: CapelinMachinePool, name: str) -> None:
    """Have core drain and remove a machine."""
    await client.delete(Machine, name, pool.namespace)


async def _delete_everything(client: Client, pool: CapelinMachinePool, name: str) -> None:
    """Remove a machine of a pool that goes, by its Machine if it has one."""
    if not await client.delete(Machine, name, pool.namespace):
        await client.delete(CapelinMachine, name, pool.namespace)


async def _each(items: Iterable[ItemT], do: Callable[[ItemT], Awaitable[object]]) -> None:
    """Do something for each, a few at a time."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(item: ItemT) -> None:
        async with limit:
            await do(item)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(one(item))
