"""Reconciles CapelinMachines and their templates."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
)
from datetime import datetime
from functools import partial
from typing import Any

from capelin.api import BaseObject
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Secret
from capelin.client import CircuitOpen, Client, ClientError, NotFound, Unreachable, path_of
from capelin.contract import (
    CLUSTER_NAME_LABEL,
    DELETING,
    KUBECONFIG_KEY,
    READY,
    ConditionSpec,
    cluster_name_of,
    find_condition,
    is_asleep,
    named_by,
    secret_name,
)
from capelin.controller import After, Context, Done, For, ObjectKey, Reconciler, Result, Watches
from capelin.provider import Blocked, Change, InfraMachineContext, InfraMachineReconciler

from capelin_machine_pool.api import (
    BackendName,
    CapelinMachine,
    CapelinMachineTemplate,
    MachineTemplateStatus,
)
from capelin_machine_pool.backends import Backend, InstanceStatus, Workload
from capelin_machine_pool.desired import (
    FINALIZER,
    Instance,
    desired_instance,
    node_info,
    stable_fraction,
)
from capelin_machine_pool.hosts.api import CapelinHost
from capelin_machine_pool.hosts.claims import machine_of_host
from capelin_machine_pool.plan import (
    LATER,
    SOON,
    is_in_pool,
    machine_waits_for,
    misses_pause,
    must_delete_instance,
    needs_remediation,
    node_was_deleted,
    starts_control_plane,
)
from capelin_machine_pool.reasons import Reason
from capelin_machine_pool.status import is_provisioned, machine_conditions

Refresh = Callable[[Callable[[ObjectKey], Awaitable[bytes | None]]], Awaitable[None]]
"""Reads the kubeconfigs of clusters again, with a function that returns one."""
REFRESH_SECONDS = 30.0
_LONGEST_WAIT = 15.0
_RESYNC = 60.0
_POOL_RESYNC = 300.0
"""Seconds after which to look again at a pool's machine. Core notices a deleted Node earlier and
changes the Machine, which is watched."""


def machine_of(machine: Machine) -> Iterable[ObjectKey]:
    """The CapelinMachine of a Machine. In a pool, only if the Machine is unhealthy.

    The pool has all settings of its machines, and each Machine changes ten times until it is ready.
    """
    name = named_by(machine.spec.infrastructure_ref, CapelinMachine)
    unhealthy = node_was_deleted(machine) or needs_remediation(machine)
    if name is None or (is_in_pool(machine) and not unhealthy):
        return []
    return [ObjectKey(machine.namespace or "", name)]


def awaited_states(cluster: Cluster) -> tuple[bool, bool]:
    """Whether a cluster is paused or sleeps. Its other fields do not concern its machines."""
    return cluster.spec.paused is True, is_asleep(cluster)


async def machines_of_cluster(ctx: Context, cluster: Cluster) -> list[ObjectKey]:
    """The machines that do not report their Cluster's pause or sleep yet, or its end.

    Machines that run do not report a sleep. One of them stops the process that
    they share, or starts it again.
    """
    labels = {CLUSTER_NAME_LABEL: cluster.name}
    keys: list[ObjectKey] = []
    has_running = False
    async for machine in ctx.client.iterate(CapelinMachine, cluster.namespace, labels=labels):
        runs = is_provisioned(machine)
        is_first = runs and not has_running
        has_running = has_running or runs
        if misses_pause(machine, cluster) or is_first or not runs:
            keys.append(ObjectKey(machine.namespace or "", machine.name))
    return keys


class MachineReconciler(InfraMachineReconciler[CapelinMachine]):
    finalizer = FINALIZER
    watches = (
        Watches(Machine, to=machine_of),
        Watches(Cluster, to=machines_of_cluster, when_changed=awaited_states),
        Watches(CapelinHost, to=machine_of_host),
    )

    def __init__(
        self, backends: Mapping[BackendName, Backend], refresh: Refresh | None = None
    ) -> None:
        self._backends = backends
        self._refresh = refresh
        self._kubeconfigs = KubeconfigSecrets()
        self._release_lock = asyncio.Lock()
        self._deleted: set[ObjectKey] = set()

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[object]:
        refresh = partial(self._refresh_kubeconfigs, ctx.client)
        async with super().lifespan(ctx), ctx.background.running(kubeconfigs=refresh):
            yield

    async def find_owner(
        self, client: Client, obj: CapelinMachine, cluster: Cluster | None
    ) -> BaseObject | None:
        """The Machine. Until it is provisioned, a pool's machine does not depend on it."""
        if is_in_pool(obj) and not is_provisioned(obj):
            return None
        return await super().find_owner(client, obj, cluster)

    def waiting_for(
        self, obj: CapelinMachine, cluster: Cluster | None, owner: Machine | None
    ) -> Blocked | None:
        """The cluster's infrastructure, a version and, outside a pool, bootstrap data."""
        return machine_waits_for(obj, cluster, owner)

    def is_reported(self, obj: CapelinMachine, change: Change) -> bool:
        """The pool reports the success of its machines."""
        return change.type == "Warning" or not is_in_pool(obj)

    async def reconcile_normal(self, ctx: InfraMachineContext, obj: CapelinMachine) -> Result:
        owner = ctx.owner_or_none
        if is_asleep(ctx.cluster):
            return await self._sleep(ctx, obj)
        if is_in_pool(obj) and owner is not None and needs_remediation(owner):
            # A deletion cannot be undone: decide with the Machine as it is now.
            live = await ctx.client.find(Machine, owner.name, owner.namespace)
            if live is not None and needs_remediation(live):
                await ctx.client.delete(Machine, live.name, live.namespace, uid=live.uid)
        instance = desired_instance(obj, owner)
        observed = await self._apply(ctx, obj, instance)
        ctx.set_conditions(*machine_conditions(observed))
        if observed.running:
            addresses = obj.status.addresses if obj.status else []
            ctx.set_provisioned(
                instance.provider_id,
                addresses=observed.addresses or addresses,
                failure_domain=instance.failure_domain,
            )
        if observed.changes_at is not None:
            return After(seconds_until(observed.changes_at, ctx.now()))
        if not observed.running and obj.spec.backend == "Hosts":
            return After(LATER)
        if not is_in_pool(obj):
            return After(_RESYNC)
        return After(_POOL_RESYNC * (1 + stable_fraction("look", obj.name)))

    async def _sleep(self, ctx: InfraMachineContext, obj: CapelinMachine) -> Result:
        """Stop the process that the machines of a sleeping cluster share."""
        async with self._release_lock:
            await self._release(ObjectKey(obj.namespace or "", ctx.cluster.name))
        ready = find_condition(obj.status.conditions if obj.status else [], READY)
        if ready is None or not is_provisioned(obj):
            message = "it begins when the control plane of its Cluster wakes"
            raise Blocked(Reason.ASLEEP, message, retry_seconds=None)
        # Nothing about the machine has changed.
        ctx.set_conditions(ConditionSpec.kept(ready))
        return Done()

    async def reconcile_delete(self, ctx: InfraMachineContext, obj: CapelinMachine) -> Result:
        """Delete the machine's instance. The last one releases what a cluster's machines share."""
        await self._delete_instance(ctx, obj)
        # One at a time, so that the last machine of a cluster notices that it is the last.
        async with self._release_lock:
            await self._release_if_last(obj, ctx.client)
            self._deleted.add(ObjectKey(obj.namespace or "", obj.name))
            await ctx.remove_finalizer(obj, FINALIZER)
        return Done()

    def health(self) -> str | None:
        """The problem of the backend, if any. /healthz reports it."""
        problems = [backend.health() for backend in self._backends.values()]
        return "; ".join(filter(None, problems)) or None

    async def on_missing(self, ctx: Context, key: ObjectKey) -> None:
        """Release shared resources if the last machine went without a reconcile, after a move."""
        if key in self._deleted:
            self._deleted.remove(key)
            return
        async with self._release_lock:
            for backend in self._backends.values():
                for cluster in backend.clusters(key.namespace):
                    if not await _first_uids(ctx.client, cluster):
                        await self._release(cluster)

    async def _refresh_kubeconfigs(self, client: Client) -> None:
        """Machines at rest are reconciled too seldom to notice a new kubeconfig."""

        async def read(cluster: ObjectKey) -> bytes | None:
            secret = await self._kubeconfigs.find(client, cluster)
            return secret and secret.data.get(KUBECONFIG_KEY)

        while self._refresh is not None:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._refresh(read)

    async def _apply(
        self, ctx: InfraMachineContext, obj: CapelinMachine, instance: Instance
    ) -> InstanceStatus:
        cluster = ObjectKey(instance.key.namespace, instance.cluster)
        secret = await self._kubeconfigs.find(ctx.client, cluster)
        if secret is None:
            message = "the cluster has no kubeconfig secret yet"
            raise Blocked(Reason.WAITING_FOR_CONTROL_PLANE, message, retry_seconds=SOON)
        try:
            async with AsyncExitStack() as stack:
                client: Client | None = None
                if not starts_control_plane(obj, ctx.cluster):
                    client = await stack.enter_async_context(ctx.workload(secret=secret))
                workload = Workload(client=client, kubeconfig=secret.data.get(KUBECONFIG_KEY, b""))
                backend = self._backends[instance.backend]
                provider_id = await backend.allocate(instance, ctx.client)
                ctx.set_provider_id(provider_id)
                observed = await backend.observe(instance, workload, ctx.client)
                return await backend.apply(instance, observed, workload, ctx.client, ctx.now())
        except (Blocked, ClientError):
            self._kubeconfigs.doubt(cluster)
            raise

    async def _delete_instance(self, ctx: InfraMachineContext, machine: CapelinMachine) -> None:
        backend, cluster = self._backends[machine.spec.backend], ctx.cluster_or_none
        if cluster is None or not backend.deletes_nodes:
            # An error of the management cluster does not prove that the instance is gone.
            await backend.delete(machine, None, ctx.client, ctx.now())
            return
        try:
            access = ctx.workloads.client(cluster.name, machine.namespace or "")
            async with access as workload:
                await backend.delete(machine, workload, ctx.client, ctx.now())
        except ClientError as error:
            # The workload cluster has no API. Its Node need not go if the cluster goes as well.
            has_kubeconfig = not isinstance(error, NotFound)
            if not must_delete_instance(machine, cluster, has_kubeconfig=has_kubeconfig):
                return
            if has_kubeconfig and not isinstance(error, Unreachable):
                raise
            message = "its Node cannot be deleted while the cluster's API does not answer"
            retry = error.retry_seconds if isinstance(error, CircuitOpen) else SOON
            raise Blocked(DELETING, message, retry_seconds=max(retry, SOON)) from error

    async def _release_if_last(self, machine: CapelinMachine, client: Client) -> None:
        name = cluster_name_of(machine)
        if name is None:
            return
        cluster = ObjectKey(machine.namespace or "", name)
        if all(uid == machine.uid for uid in await _first_uids(client, cluster)):
            await self._release(cluster)

    async def _release(self, cluster: ObjectKey) -> None:
        for backend in self._backends.values():
            await backend.release(cluster)
        self._kubeconfigs.doubt(cluster)
        if self._workloads is not None:
            await self._workloads.drop(cluster.name, cluster.namespace)


class MachineTemplateReconciler(Reconciler[CapelinMachineTemplate]):
    """Reports the properties of future machines, for the cluster autoscaler."""

    watches = (For(CapelinMachineTemplate, status_only=True),)

    async def reconcile(self, ctx: Context, template: CapelinMachineTemplate) -> Result:
        spec = template.spec.template.spec
        status = MachineTemplateStatus()
        if spec.backend == "Simulated":
            status = MachineTemplateStatus(
                capacity=spec.simulated.capacity, node_info=node_info(spec.simulated)
            )
        desired = template.model_copy(update={"status": status})
        await ctx.client.apply_status(desired, live=template)
        return Done()


class KubeconfigSecrets:
    """The kubeconfig Secrets of clusters. The provider may get Secrets, but not watch them.

    All machines of a cluster together read its Secret twice a minute. If the Secret did not exist,
    or did not work, they read it again after a second: a new one may exist.
    """

    _TRUSTED, _DOUBTED = 30.0, 1.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: dict[ObjectKey, tuple[float, Secret | None]] = {}
        """The end of each Secret's use, and the Secret."""

    async def find(self, client: Client, cluster: ObjectKey) -> Secret | None:
        """The Secret, or None if it did not exist within the last second."""
        now = self._clock()
        self._read = {key: read for key, read in self._read.items() if now < read[0]}
        if cluster not in self._read:
            name = secret_name(cluster.name, "kubeconfig")
            secret = await client.find(Secret, name, cluster.namespace)
            seconds = self._DOUBTED if secret is None else self._TRUSTED
            self._read[cluster] = now + seconds, secret
        return self._read[cluster][1]

    def doubt(self, cluster: ObjectKey) -> None:
        """Read the Secret again after a second, because it did not work."""
        if cluster in self._read:
            until, secret = self._read[cluster]
            self._read[cluster] = min(until, self._clock() + self._DOUBTED), secret


async def _first_uids(client: Client, cluster: ObjectKey) -> list[str]:
    """The uids of a cluster's machines, two at most: enough to tell whether one is the last."""
    listed: dict[str, Any] = await client.request(
        "GET",
        path_of(CapelinMachine.resource, cluster.namespace),
        parameters={"labelSelector": f"{CLUSTER_NAME_LABEL}={cluster.name}", "limit": "2"},
    )
    return [item["metadata"]["uid"] for item in listed["items"]]


def seconds_until(moment: datetime, now: datetime) -> float:
    """How long to wait for a moment. Limited, because a wrong clock may be corrected meanwhile."""
    return min(max(0.01, (moment - now).total_seconds()), _LONGEST_WAIT)
