"""Machines of a pool, each with an object of its own and a Machine that core creates for it."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from capelin.api import Model, Object, ObjectMeta
from capelin.api.capi import Machine
from capelin.contract import (
    DELETING,
    ConditionSpec,
    is_condition_true,
    is_to_go_first,
    pool_machine_labels,
    reference_to,
)
from capelin.controller import After, Done, Permission, Result
from capelin.provider.context import InfraMachinePoolContext

MachineT = TypeVar("MachineT", bound=Object[Any, Any])

POOL_MACHINES = Permission("cluster.x-k8s.io", ("machines",), ("list", "delete"))
"""The permission of a reconciler that scales a pool."""

_SOON, _SETTLED = 2.0, 60.0
_MAX_NAME_LENGTH = 63


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
    """A name that no machine had before, short enough for a label."""
    suffix = uuid.uuid4().hex[:8]
    return f"{pool[: _MAX_NAME_LENGTH - len(suffix) - 1].rstrip('-.')}-{suffix}"


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
    objects = await _objects(ctx, pool, kind)
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
        await client.delete(Machine, name, pool.namespace)
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
    settled = len(members) == replicas and not create and not delete
    return After(_SETTLED if settled else _SOON)


async def delete_pool(
    ctx: InfraMachinePoolContext, pool: Object[Any, Any], kind: type[MachineT]
) -> Result:
    """Delete every machine of a pool through its Machine; done when none is left."""
    objects = await _objects(ctx, pool, kind)
    if not objects:
        return Done()
    for obj in objects:
        if obj.metadata.deletion_timestamp is not None:
            continue
        if not await ctx.client.delete(Machine, obj.name, pool.namespace):
            await ctx.client.delete(kind, obj.name, pool.namespace)
    message = f"{len(objects)} machines are being deleted"
    ctx.set_conditions(ConditionSpec(DELETING, "True", DELETING, message))
    return After(_SOON)


async def _objects(
    ctx: InfraMachinePoolContext, pool: Object[Any, Any], kind: type[MachineT]
) -> list[MachineT]:
    """The machines of a pool: by their owner, their labels, or the pool's provider IDs."""
    cluster, owner = ctx.cluster_or_none, ctx.owner_or_none
    labels = (
        pool_machine_labels(cluster=cluster.name, pool=owner.name) if cluster and owner else None
    )
    return [
        obj
        async for obj in ctx.client.iterate(kind, pool.namespace)
        if any(reference.uid == pool.uid for reference in obj.metadata.owner_references)
        or obj.spec.provider_id in pool.spec.provider_id_list
        or (labels is not None and labels.items() <= obj.metadata.labels.items())
    ]


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
