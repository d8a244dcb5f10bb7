"""Reconciles CapelinMachines and their templates."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from capelin.api import BaseObject
from capelin.api.views.capi import Cluster, Machine
from capelin.api.views.core import Secret
from capelin.client import (
    Client,
    ClientError,
    Invalid,
    NotFound,
    Unreachable,
    WorkloadClients,
    path_of,
)
from capelin.contract.clusters import cluster_name_of, cluster_of, named_by, owner_of
from capelin.contract.conditions import WAITING_FOR_CONTROL_PLANE, ConditionSpec
from capelin.contract.labels import CLUSTER_NAME_LABEL
from capelin.contract.pausing import paused
from capelin.contract.secrets import KUBECONFIG, secret_name
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Permission,
    Reconciler,
    Result,
    Watches,
)
from capelin.provider import Blocked

from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachineTemplate,
    MachineStatus,
    MachineTemplateStatus,
)
from capelin_machine_pool.backends import Backend, Workload
from capelin_machine_pool.desired import (
    FINALIZER,
    MANAGER,
    Instance,
    desired_instance,
    stable_fraction,
)
from capelin_machine_pool.plan import (
    LATER,
    SOON,
    is_in_pool,
    machine_waits_for,
    needs_remediation,
    node_was_deleted,
)
from capelin_machine_pool.status import (
    INVALID_CONFIGURATION,
    blocked,
    deleting,
    is_provisioned,
    machine_status,
    merge_conditions,
)

ObjectT = TypeVar("ObjectT", bound=BaseObject)

_RESYNC = 60.0
_POOL_RESYNC = 300.0
"""Seconds after which to look again at a pool's machine. Core notices a deleted Node earlier and
changes the Machine, which is watched."""


def machine_of(machine: Machine) -> Iterable[ObjectKey]:
    """The CapelinMachine of a Machine. In a pool, only if the Machine is unhealthy.

    The pool says all that its machines need, and each Machine changes ten times until it is ready.
    """
    name = named_by(machine.spec.infrastructure_ref, CapelinMachine)
    unhealthy = node_was_deleted(machine) or needs_remediation(machine)
    if name is None or (is_in_pool(machine) and not unhealthy):
        return []
    return [ObjectKey(machine.namespace or "", name)]


class MachineReconciler(Reconciler[CapelinMachine]):
    """Reconciles CapelinMachines."""

    watches = (For(CapelinMachine), Watches(Machine, to=machine_of))
    permissions = (
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
        Permission("", ("secrets",), ("get",)),
    )

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workload_clients: WorkloadClients | None = None
        self._cache: TTLCache | None = None
        self._release_lock = asyncio.Lock()
        self._deleted: set[ObjectKey] = set()

    async def reconcile(self, ctx: Context, machine: CapelinMachine) -> Result:
        is_deleting = machine.metadata.deletion_timestamp is not None
        # A deletion cannot be undone: do not miss a pause of the last second.
        reader = ctx.client if is_deleting else self._cached(ctx.client)
        cluster = await cluster_of(reader, machine)
        pause = paused(machine, cluster)
        if pause.status == "True":
            await self._set_conditions(machine, ctx, pause)
            return After(LATER)
        if is_deleting:
            return await self._reconcile_delete(machine, cluster, pause, ctx)
        try:
            return await self._reconcile_normal(machine, cluster, pause, ctx)
        except Blocked as reason:
            await self._set_conditions(machine, ctx, pause, blocked(reason))
            return After(SOON)

    async def on_missing(self, ctx: Context, key: ObjectKey) -> None:
        """Release what machines shared if the last one went without us, as in a move."""
        if key in self._deleted:
            self._deleted.remove(key)
            return
        async with self._release_lock:
            for cluster in self._backend.clusters(key.namespace):
                if not await _first_uids(ctx.client, cluster):
                    await self._release(cluster, ctx.client)

    async def _reconcile_normal(
        self, machine: CapelinMachine, cluster: Cluster | None, pause: ConditionSpec, ctx: Context
    ) -> Result:
        # Until it is provisioned, a pool's machine does not depend on its Machine.
        is_new = is_in_pool(machine) and not is_provisioned(machine)
        owner = None if is_new else await owner_of(ctx.client, machine, Machine)
        if is_in_pool(machine) and owner is not None and needs_remediation(owner):
            await ctx.client.delete(Machine, owner.name, owner.namespace, uid=owner.uid)
        if waiting := machine_waits_for(machine, cluster, owner):
            raise waiting
        instance = desired_instance(machine, owner)
        await ctx.add_finalizer(machine, FINALIZER)
        name = secret_name(instance.cluster, "kubeconfig")
        secret = await self._cached(ctx.client).find(Secret, name, instance.key.namespace)
        if secret is None:
            raise Blocked(WAITING_FOR_CONTROL_PLANE, "the cluster has no kubeconfig secret yet")
        try:
            return await self._reconcile_instance(machine, instance, secret, pause, ctx)
        except Invalid as error:
            message = f"the cluster rejects the Node: {error}"
            raise Blocked(INVALID_CONFIGURATION, message, "correct spec.simulated") from error

    async def _reconcile_instance(
        self,
        machine: CapelinMachine,
        instance: Instance,
        secret: Secret,
        pause: ConditionSpec,
        ctx: Context,
    ) -> Result:
        provider_id = await self._backend.allocate(instance)
        clients, kubeconfig = self._clients(ctx.client), secret.data.get(KUBECONFIG, b"")
        async with clients.client(
            instance.cluster, instance.key.namespace, secret=secret
        ) as client:
            workload = Workload(client=client, kubeconfig=kubeconfig)
            observed = await self._backend.observe(instance, workload)
            observed = await self._backend.apply(instance, observed, workload, ctx.now())
        if machine.spec.provider_id is None:
            await _write_provider_id(machine, provider_id, ctx.client)
        status = machine_status(
            machine, observed, failure_domain=instance.failure_domain, paused=pause, now=ctx.now()
        )
        await ctx.patch_status(machine, status)
        if observed.changes_at is not None:
            return After(max(0.01, (observed.changes_at - ctx.now()).total_seconds()))
        if not is_in_pool(machine):
            return After(_RESYNC)
        return After(_POOL_RESYNC * (1 + stable_fraction("look", machine.name)))

    async def _reconcile_delete(
        self, machine: CapelinMachine, cluster: Cluster | None, pause: ConditionSpec, ctx: Context
    ) -> Result:
        if FINALIZER not in machine.metadata.finalizers:
            return Done()
        try:
            await self._delete_instance(machine, cluster, ctx)
        except ClientError as error:
            # The Nodes go with their cluster, even if it was never initialized or is broken.
            if cluster is not None and cluster.metadata.deletion_timestamp is None:
                if isinstance(error, NotFound | Unreachable):
                    message = "its Node cannot be deleted while the cluster's API does not answer"
                    await self._set_conditions(machine, ctx, pause, deleting(message))
                raise
        # One at a time, so that the last machine of a cluster notices that it is the last.
        async with self._release_lock:
            await self._release_if_last(machine, ctx.client)
            self._deleted.add(ObjectKey(machine.namespace or "", machine.name))
            await ctx.remove_finalizer(machine, FINALIZER)
        return Done()

    async def _delete_instance(
        self, machine: CapelinMachine, cluster: Cluster | None, ctx: Context
    ) -> None:
        key = ObjectKey(machine.namespace or "", machine.name)
        if cluster is None:
            await self._backend.delete(key, None)
            return
        clients = self._clients(ctx.client)
        async with clients.client(cluster.name, key.namespace) as workload:
            await self._backend.delete(key, workload)

    async def _release_if_last(self, machine: CapelinMachine, client: Client) -> None:
        name = cluster_name_of(machine)
        if name is None:
            return
        cluster = ObjectKey(machine.namespace or "", name)
        if all(uid == machine.uid for uid in await _first_uids(client, cluster)):
            await self._release(cluster, client)

    async def _release(self, cluster: ObjectKey, client: Client) -> None:
        await self._backend.release(cluster)
        await self._clients(client).drop(cluster.name, cluster.namespace)

    async def _set_conditions(
        self, machine: CapelinMachine, ctx: Context, *changed: ConditionSpec
    ) -> None:
        status = machine.status or MachineStatus()
        conditions = merge_conditions(machine, *changed, now=ctx.now())
        await ctx.patch_status(machine, status.model_copy(update={"conditions": conditions}))

    def _cached(self, client: Client) -> "TTLCache":
        if self._cache is None:
            self._cache = TTLCache(client)
        return self._cache

    def _clients(self, client: Client) -> WorkloadClients:
        if self._workload_clients is None:
            self._workload_clients = WorkloadClients(client)
        return self._workload_clients


class MachineTemplateReconciler(Reconciler[CapelinMachineTemplate]):
    """Writes the capacity of machines that do not exist yet, for the cluster autoscaler."""

    watches = (For(CapelinMachineTemplate),)

    async def reconcile(self, ctx: Context, template: CapelinMachineTemplate) -> Result:
        status = MachineTemplateStatus(capacity=template.spec.template.spec.simulated.capacity)
        desired = template.model_copy(update={"status": status})
        await ctx.client.apply_status(desired, live=template)
        return Done()


class TTLCache:
    """Reads an object at most once a second, however many machines of a cluster ask for it."""

    _TTL = 1.0

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._entries: dict[tuple[type[BaseObject], str | None, str], tuple[float, object]] = {}

    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = None
    ) -> ObjectT | None:
        """The object as it was within the last second, or None if it did not exist."""
        key = (kind, namespace, name)
        now = self._clock()
        self._entries = {
            key: entry for key, entry in self._entries.items() if now - entry[0] < self._TTL
        }
        if key in self._entries:
            _, obj = self._entries[key]
            return obj if isinstance(obj, kind) else None
        obj = await self._client.find(kind, name, namespace)
        self._entries[key] = now, obj
        return obj


async def _write_provider_id(machine: CapelinMachine, provider_id: str, client: Client) -> None:
    resource = CapelinMachine.resource
    await client.apply(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": machine.name,
                "namespace": machine.namespace,
                "uid": machine.uid,
            },
            "spec": {"providerID": provider_id},
        },
        resource=resource,
        manager=f"{MANAGER}-provider-id",
    )


async def _first_uids(client: Client, cluster: ObjectKey) -> list[str]:
    """The uids of a cluster's machines, two at most: enough to tell whether one is the last."""
    listed: dict[str, Any] = await client.request(
        "GET",
        path_of(CapelinMachine.resource, cluster.namespace),
        parameters={"labelSelector": f"{CLUSTER_NAME_LABEL}={cluster.name}", "limit": "2"},
    )
    return [item["metadata"]["uid"] for item in listed["items"]]
