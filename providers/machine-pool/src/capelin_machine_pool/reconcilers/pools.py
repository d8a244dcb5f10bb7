"""Reconciles CapelinMachinePools: creates machines, and has core delete them."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.client import Client, Forbidden
from capelin.contract import (
    CLUSTER_NAME_LABEL,
    DELETING,
    ConditionSpec,
    find_owner,
    is_asleep,
    is_miscounted,
    machine_counts,
    named_by,
    reference_to,
    served_resource,
)
from capelin.controller import (
    After,
    Context,
    Done,
    ObjectKey,
    Owns,
    Permission,
    Result,
    Watches,
)
from capelin.provider import (
    Blocked,
    Change,
    InfraMachinePoolContext,
    InfraMachinePoolReconciler,
    delete_pool_machine,
    has_pool_labels,
    is_pool_member,
    new_machine_name,
    request_recount,
)

from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool, MachinePoolStatus
from capelin_machine_pool.desired import (
    FINALIZER,
    REVISION_LABEL,
    DesiredPool,
    desired_pool,
    pool_machine,
)
from capelin_machine_pool.members import MachineInfo
from capelin_machine_pool.patches import replacing
from capelin_machine_pool.plan import (
    SOON,
    ObservedPool,
    PoolStep,
    is_counted,
    is_in_pool,
    is_settled,
    machine_info,
    misses_pause,
    misses_sleep,
    needs_metadata,
    needs_owner,
    next_pool_step,
    step_events,
)
from capelin_machine_pool.reasons import Reason
from capelin_machine_pool.status import (
    asleep_pool,
    pool_conditions,
    pool_status,
    provider_ids,
)

ItemT = TypeVar("ItemT")

_CONCURRENCY = 20
"""Requests in flight when machines are created or deleted."""


def awaited_fields(cluster: Cluster) -> tuple[bool | None, ...]:
    """The fields of a cluster that concern its pools."""
    milestones = cluster.status.initialization
    return (
        cluster.spec.paused,
        milestones.infrastructure_provisioned,
        milestones.control_plane_initialized,
        is_asleep(cluster),
    )


async def pools_of_cluster(ctx: Context, cluster: Cluster) -> list[ObjectKey]:
    """The pools that waited for a cluster's control plane, or do not report its pause or sleep."""
    initialized = cluster.status.initialization.control_plane_initialized
    labels = {CLUSTER_NAME_LABEL: cluster.name}
    return [
        ObjectKey(pool.namespace or "", pool.name)
        async for pool in ctx.client.iterate(CapelinMachinePool, cluster.namespace, labels=labels)
        if (initialized and not (pool.status and pool.status.initialization.provisioned))
        or misses_pause(pool, cluster)
        or misses_sleep(pool, cluster)
    ]


async def pools_of_machine(ctx: Context, machine: CapelinMachine) -> list[ObjectKey]:
    """The pool of a machine that has lost its reference to the pool."""
    cluster = machine.metadata.labels.get(CLUSTER_NAME_LABEL)
    resource = CapelinMachinePool.resource
    owner = find_owner(machine.metadata.owner_references, resource.group, resource.kind)
    if owner is not None or cluster is None or not is_in_pool(machine):
        return []
    labels = {CLUSTER_NAME_LABEL: cluster}
    return [
        ObjectKey(pool.namespace or "", pool.name)
        async for pool in ctx.client.iterate(CapelinMachinePool, machine.namespace, labels=labels)
        if has_pool_labels(machine, pool)
    ]


class MachinePoolReconciler(InfraMachinePoolReconciler[CapelinMachinePool]):
    finalizer = FINALIZER
    # It creates and deletes machines, and lists them each time anyway.
    cached_reads = False
    watches = (
        Owns(CapelinMachine, deletes=True),
        Watches(CapelinMachine, to=pools_of_machine, metadata_only=True),
        Watches(Cluster, to=pools_of_cluster, when_changed=awaited_fields),
    )
    permissions = (
        Permission("cluster.x-k8s.io", ("machines",), ("list", "delete")),
        # An administrator grants those of other bootstrap providers.
        Permission("bootstrap.cluster.x-k8s.io", ("kubeadmconfigs",), ("get",)),
    )

    def __init__(self) -> None:
        self._rate_limit = RateLimit()

    def base_status(self, obj: CapelinMachinePool) -> MachinePoolStatus:
        """Names the kind before machines exist. Otherwise core expects a pool without Machines."""
        kind = CapelinMachine.resource.kind
        status = obj.status or MachinePoolStatus()
        return status.model_copy(update={"infrastructure_machine_kind": kind})

    def is_reported(self, obj: CapelinMachinePool, change: Change) -> bool:  # noqa: ARG002
        """A pool that is not ready has new machines, or machines that report their problems."""
        return change.type == "Normal"

    async def reconcile(self, ctx: Context, obj: CapelinMachinePool) -> Result:
        """Reconcile a pool, or wait: every change of each of its machines triggers this."""
        key = ObjectKey(obj.namespace or "", obj.name)
        generation = obj.metadata.generation or 0
        if delay := self._rate_limit.delay(key, generation):
            return After(delay)
        with self._rate_limit.measure(key, generation):
            return await super().reconcile(ctx, obj)

    async def reconcile_normal(
        self, ctx: InfraMachinePoolContext, obj: CapelinMachinePool
    ) -> Result:
        """Create and delete machines, as far as the limits of a rollout allow."""
        if needs_owner(obj.metadata.owner_references, ctx.cluster):
            # For `clusterctl move`. Core does this for the pools of topologies only.
            await ctx.apply_metadata(obj, owner_references=[reference_to(ctx.cluster)])
        bootstrap_spec = await _bootstrap_spec(ctx.client, ctx.owner)
        desired = desired_pool(obj, ctx.owner, ctx.cluster, bootstrap_spec)
        observed = await _observe(ctx.client, obj, desired)
        key = ObjectKey(obj.namespace or "", obj.name)
        self._rate_limit.set_size(key, len(observed.machines))
        for machine in observed.machines:
            if needs_metadata(machine, obj, desired.machine_labels):
                await ctx.apply_metadata(
                    machine,
                    labels=desired.machine_labels,
                    owner_references=[reference_to(obj)],
                )
        ctx.set_provider_ids(provider_ids(observed.machines))
        ctx.set_status(pool_status(obj, observed.machines))
        ctx.set_conditions(*pool_conditions(desired, observed.machines))
        step = next_pool_step(desired, observed, ctx.now())
        if is_asleep(ctx.cluster):
            ctx.set_conditions(asleep_pool(len(step.create), len(step.delete)))
            return Done()
        if step.delete or step.create or step.update:
            await ctx.send_status()
            await _apply(ctx.client, obj, desired, step)
            await _begin_updates(ctx.client, obj, desired, observed, step)
            for reason, message in step_events(desired, observed, step):
                ctx.event(obj, "Normal", reason, message)
        elif observed.miscounted:
            await request_recount(ctx, obj, len(observed.machines))
        return After(step.requeue_after)

    async def reconcile_delete(
        self, ctx: InfraMachinePoolContext, obj: CapelinMachinePool
    ) -> Result:
        """Delete every machine through its Machine."""
        machines = [
            _without_managed_fields(machine)
            async for machine in ctx.client.iterate(CapelinMachine, obj.namespace)
            if is_pool_member(machine, obj)
        ]
        if not machines:
            return Done()
        ctx.set_provider_ids(provider_ids(machines))
        names = [
            machine.name for machine in machines if machine.metadata.deletion_timestamp is None
        ]
        client, namespace = ctx.client, obj.namespace
        await _for_each(
            names, lambda name: delete_pool_machine(client, CapelinMachine, name, namespace)
        )
        message = f"{len(machines)} machines are being deleted"
        ctx.set_conditions(ConditionSpec(DELETING, "True", DELETING, message))
        return After(SOON)


class RateLimit:
    """Reconciles a large pool less often: each reconcile is followed by a pause.

    Every change of each of its machines triggers a reconcile, and each reconcile reads all of them.
    A busy API server makes reconciles long, so the pause of a small pool is short nevertheless, and
    a change of the pool itself does not wait.
    """

    _FACTOR = 4.0
    """Length of the pause, in multiples of the reconcile's duration."""
    _SECONDS_OF_MACHINE = 0.01
    """The longest pause for each machine of the pool."""
    _MAX_DELAY = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses: dict[ObjectKey, tuple[int, float]] = {}
        """The generation that was reconciled, and the end of the pause."""
        self._sizes: dict[ObjectKey, int] = {}

    def set_size(self, key: ObjectKey, machines: int) -> None:
        """Set the number of machines that the present reconcile reads."""
        self._sizes[key] = machines

    def delay(self, key: ObjectKey, generation: int) -> float:
        """The remaining seconds of an object's pause. Zero for another generation."""
        reconciled, end = self._pauses.get(key, (generation, 0.0))
        return max(0.0, end - self._clock()) if reconciled == generation else 0.0

    @contextmanager
    def measure(self, key: ObjectKey, generation: int) -> Generator[None]:
        """Measure a reconcile. One that fails has no pause: the queue has a backoff for it."""
        start = self._clock()
        yield
        now = self._clock()
        longest = min(self._SECONDS_OF_MACHINE * self._sizes.pop(key, 0), self._MAX_DELAY)
        self._pauses = {key: pause for key, pause in self._pauses.items() if pause[1] > now}
        self._pauses[key] = generation, now + min(self._FACTOR * (now - start), longest)


async def _observe(client: Client, pool: CapelinMachinePool, desired: DesiredPool) -> ObservedPool:
    """Read the machines of a pool, and their Machines if something has to change."""
    labels = desired.machine_labels
    machines = [
        _without_managed_fields(machine)
        async for machine in client.iterate(CapelinMachine, pool.namespace, labels=labels)
    ]
    if is_settled(desired, machines) and is_counted(desired, machines):
        return ObservedPool(machines, {})
    infos: dict[str, MachineInfo] = {}
    counts = Counter[str]()
    async for owner in client.iterate(Machine, pool.namespace, labels=labels):
        name = named_by(owner.spec.infrastructure_ref, CapelinMachine) or ""
        infos[name] = machine_info(owner)
        counts.update(machine_counts(desired.machine_pool, owner))
    # A machine that has lost its labels still has its Machine.
    for name in infos.keys() - {"", *(machine.name for machine in machines)}:
        machine = await client.find(CapelinMachine, name, pool.namespace)
        if machine is not None:
            machines.append(_without_managed_fields(machine))
    return ObservedPool(machines, infos, is_miscounted(desired.machine_pool, counts))


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
            name=new_machine_name(pool.name),
            revision=desired.revision or "",
            failure_domain=domain,
        )
        for domain in step.create
    ]
    await _for_each(created, client.create)


async def _begin_updates(
    client: Client,
    pool: CapelinMachinePool,
    desired: DesiredPool,
    observed: ObservedPool,
    step: PoolStep,
) -> None:
    """Give machines the version of their pool. Their backend then updates them in place."""
    for machine in observed.machines:
        if machine.name in step.update:
            patch = {
                "metadata": {
                    "resourceVersion": machine.metadata.resource_version,
                    "labels": {REVISION_LABEL: desired.revision},
                },
                "spec": {
                    "version": desired.machine_pool.spec.template.spec.version,
                    "hosts": replacing(pool.spec.hosts) if pool.spec.hosts else None,
                },
            }
            await client.patch(CapelinMachine, machine.name, machine.namespace, patch)


async def _bootstrap_spec(client: Client, machine_pool: MachinePool) -> Mapping[str, Any] | Blocked:
    """The spec of the pool's bootstrap config, empty if none is named, or why it is unknown."""
    reference = machine_pool.spec.template.spec.bootstrap.config_ref
    if reference is None or not (reference.kind and reference.name and reference.api_group):
        return {}
    what = f"{reference.kind} {reference.name}, the bootstrap config of its MachinePool,"
    consequence = "so no machine is created or replaced"
    try:
        resource = await served_resource(client, reference.api_group, reference.kind)
        config = resource and await client.find(resource, reference.name, machine_pool.namespace)
    except Forbidden:
        message = f"the provider may not read {what} {consequence}"
        hint = (
            f"bind a ClusterRole to its service account that allows it to get this kind in the"
            f" group {reference.api_group}"
        )
        return Blocked(Reason.BOOTSTRAP_CONFIG_FORBIDDEN, message, hint)
    if config is None:
        hint = "create it again, or name another one in spec.template.spec.bootstrap.configRef"
        message = f"{what} does not exist, {consequence}"
        return Blocked(Reason.WAITING_FOR_BOOTSTRAP_CONFIG, message, hint)
    return config.get("spec") or {}


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
