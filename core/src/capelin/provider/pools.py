"""Machines of a pool, each with an object of its own and a Machine that core creates for it."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from capelin.api import BaseObject, Model, Object, ObjectMeta
from capelin.api.capi import Machine, MachinePool
from capelin.client import Client
from capelin.contract import (
    DELETING,
    ConditionSpec,
    cluster_name_of,
    find_owner,
    is_condition_true,
    is_miscounted,
    is_to_go_first,
    machine_counts,
    pool_machine_labels,
    reference_to,
)
from capelin.controller import After, Done, Permission, Result
from capelin.provider.context import InfraMachinePoolContext

MachineT = TypeVar("MachineT", bound=Object[Any, Any])

POOL_MACHINES = Permission("cluster.x-k8s.io", ("machines",), ("list", "delete"))
"""The permission of a reconciler that scales a pool."""

RECOUNT_ANNOTATION = "capelin.cluster.x-k8s.io/recount-requested-at"
"""The time at which a provider last changed a pool, so that core counts its Machines again."""

_SOON, _SETTLED = 2.0, 60.0
_LONGEST_RECOUNT = timedelta(seconds=15)
_MAX_NAME_LENGTH = 63
"""Core limits the names of Machines, and Kubernetes the host name label of Nodes."""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """The part of a pool's machine that matters for choosing which one to delete."""

    name: str
    created: datetime
    ready: bool
    deleting: bool
    has_machine: bool
    """Whether core has created its Machine. A machine is only deleted through that."""
    delete_first: bool = False


def next_pool_changes(members: Sequence[PoolMember], replicas: int) -> tuple[int, list[str]]:
    """How many machines to create, and which to delete.

    Marked machines go first, then those that are not ready, then the oldest.
    """
    remaining = [member for member in members if not member.deleting]
    surplus = len(remaining) - replicas
    candidates = sorted(
        (member for member in remaining if member.has_machine),
        key=lambda member: (not member.delete_first, member.ready, member.created, member.name),
    )
    return max(0, -surplus), [member.name for member in candidates[: max(0, surplus)]]


def new_machine_name(pool: str) -> str:
    """A name that no machine had before, short enough for its Machine and its Node's labels."""
    suffix = uuid.uuid4().hex[:8]
    return f"{pool[: _MAX_NAME_LENGTH - len(suffix) - 1].rstrip('-.')}-{suffix}"


def is_pool_member(machine: Object[Any, Any], pool: Object[Any, Any]) -> bool:
    """Whether a machine is part of a pool: by its owner, its labels, or the pool's provider IDs.

    Any of them may have been removed, and a pool must not go before its machines.
    """
    return (
        any(owner.uid == pool.uid for owner in machine.metadata.owner_references)
        or machine.spec.provider_id in pool.spec.provider_id_list
        or has_pool_labels(machine, pool)
    )


def has_pool_labels(machine: BaseObject, pool: BaseObject) -> bool:
    """Whether a machine has the labels of a pool's machines. The pool must have its owner."""
    resource, cluster = MachinePool.resource, cluster_name_of(pool)
    owner = find_owner(pool.metadata.owner_references, resource.group, resource.kind)
    if cluster is None or owner is None:
        return False
    labels = pool_machine_labels(cluster=cluster, pool=owner.name)
    return labels.items() <= machine.metadata.labels.items()


async def delete_pool_machine(
    client: Client, kind: type[BaseObject], name: str, namespace: str | None
) -> None:
    """Delete a pool's machine through its Machine, or itself if it has none."""
    if not await client.delete(Machine, name, namespace):
        await client.delete(kind, name, namespace)


def is_recount_due(pool: BaseObject, machines: int, now: datetime) -> bool:
    """Whether core has had enough time since the last request to count a pool's Machines."""
    interval = min(timedelta(seconds=2 + machines / 75), _LONGEST_RECOUNT)
    try:
        requested = datetime.fromisoformat(pool.metadata.annotations[RECOUNT_ANNOTATION])
        return not timedelta() <= now - requested < interval
    except (KeyError, ValueError, TypeError):
        return True


async def request_recount(
    ctx: InfraMachinePoolContext, pool: Object[Any, Any], machines: int
) -> None:
    """Make core count the Machines of a pool again, if `is_miscounted`.

    Core reconciles a MachinePool after any change of its pool, such as that of the status, which
    this sends first.
    """
    if await ctx.send_status() or not is_recount_due(pool, machines, ctx.now()):
        return
    requested = {RECOUNT_ANNOTATION: ctx.now().isoformat(timespec="seconds")}
    change = {"metadata": {"annotations": requested}}
    await ctx.client.patch(type(pool), pool.name, pool.namespace, change)


async def scale_pool(
    ctx: InfraMachinePoolContext,
    pool: Object[Any, Any],
    kind: type[MachineT],
    spec: Model | None = None,
) -> Result:
    """Give a pool as many machines of a kind as its MachinePool wants, and report them.

    It creates missing machines under new names, adopts those that lost their labels or their owner,
    and deletes surplus ones through their Machines. The reconciler needs `Owns(kind, deletes=True)`
    and the permission `POOL_MACHINES`.

    Args:
        ctx: The context of the reconcile.
        pool: The pool.
        kind: The kind of its machines.
        spec: The spec of new machines; by default an empty one.
    """
    client, owner = ctx.client, ctx.owner
    labels = pool_machine_labels(cluster=ctx.cluster.name, pool=owner.name)
    objects = await _members(client, pool, kind)
    for obj in objects:
        if obj.metadata.deletion_timestamp is None:
            owners = [reference_to(pool)]
            await ctx.apply_metadata(obj, labels=labels, owner_references=owners)
    machines = {
        machine.name: machine
        async for machine in client.iterate(Machine, pool.namespace, labels=labels)
    }
    members = [_member(obj, machines.get(obj.name), ctx.now()) for obj in objects]
    replicas = 1 if owner.spec.replicas is None else owner.spec.replicas
    create, delete = next_pool_changes(members, replicas)
    ids = [obj.spec.provider_id for obj in objects if obj.spec.provider_id]
    ctx.set_provider_ids(ids)
    ctx.draft.set_fields(infrastructure_machine_kind=kind.resource.kind)
    ctx.set_provisioned(replicas=sum(not member.deleting for member in members))
    if create or delete:
        # Core creates Machines for the kind that the status names.
        await ctx.send_status()
    for name in delete:
        machine = machines.get(name)
        uid = None if machine is None else machine.uid
        await client.delete(Machine, name, pool.namespace, uid=uid)
    given = spec.dump() if spec else {}
    for _ in range(create):
        metadata = ObjectMeta(
            name=new_machine_name(pool.name),
            namespace=pool.namespace,
            labels=labels,
            # The pool is not the controller: the Machine will be.
            owner_references=[reference_to(pool)],
        )
        await client.create(kind.read({"metadata": metadata.dump(), "spec": given}))
    settled = len(members) == len(machines) == replicas and not create and not delete
    counts = sum((machine_counts(owner, one) for one in machines.values()), Counter[str]())
    if not is_miscounted(owner, counts):
        return After(_SETTLED if settled else _SOON)
    await request_recount(ctx, pool, len(machines))
    return After(_SOON)


async def delete_pool(
    ctx: InfraMachinePoolContext, pool: Object[Any, Any], kind: type[MachineT]
) -> Result:
    """Delete every machine of a pool through its Machine; done when none is left."""
    objects = await _members(ctx.client, pool, kind)
    if not objects:
        return Done()
    for obj in objects:
        if obj.metadata.deletion_timestamp is None:
            await delete_pool_machine(ctx.client, kind, obj.name, pool.namespace)
    message = f"{len(objects)} machines are being deleted"
    ctx.set_conditions(ConditionSpec(DELETING, "True", DELETING, message))
    return After(_SOON)


async def _members(client: Client, pool: Object[Any, Any], kind: type[MachineT]) -> list[MachineT]:
    return [obj async for obj in client.iterate(kind, pool.namespace) if is_pool_member(obj, pool)]


def _member(obj: Object[Any, Any], machine: Machine | None, now: datetime) -> PoolMember:
    conditions = machine.status.conditions if machine else []
    deletions = (obj.metadata.deletion_timestamp, machine and machine.metadata.deletion_timestamp)
    return PoolMember(
        name=obj.name,
        created=obj.metadata.creation_timestamp or now,
        ready=is_condition_true(conditions, "NodeReady"),
        deleting=any(deletions),
        has_machine=machine is not None,
        delete_first=machine is not None and is_to_go_first(machine),
    )
