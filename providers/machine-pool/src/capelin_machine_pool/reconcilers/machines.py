"""Moves one machine through its life."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

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
from capelin.contract import secrets
from capelin.contract.clusters import cluster_name_of, cluster_of, named_by, owner_of
from capelin.contract.conditions import READY, ConditionSpec
from capelin.contract.labels import CLUSTER_NAME_LABEL, POOL_NAME_LABEL
from capelin.contract.pausing import paused
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

from capelin_machine_pool import status as say
from capelin_machine_pool.api import CapelinMachine, MachineStatus
from capelin_machine_pool.backends import Backend
from capelin_machine_pool.desired import FINALIZER, WantedMachine, fraction_of, wanted_machine
from capelin_machine_pool.observe import has_lost_its_node, is_given_up
from capelin_machine_pool.reconcilers.recent import Recent

MANAGER = "capelin-machine-pool"

_SOON = 2.0
_LATER = 15.0
_LOOK_AGAIN = 60.0
_LOOK_SELDOM = 300.0
"""When to look at a pool's machine again: core notices first, and changes its Machine."""


def its_machine(machine: Machine) -> Iterable[ObjectKey]:
    """The machine that a Machine's events concern: in a pool, only if it is in trouble.

    A pool says all that its machines need, and each Machine changes ten times on its way.
    """
    name = named_by(machine.spec.infrastructure_ref, CapelinMachine)
    in_pool = POOL_NAME_LABEL in machine.metadata.labels
    in_trouble = has_lost_its_node(machine) or is_given_up(machine)
    return (
        []
        if name is None or (in_pool and not in_trouble)
        else [ObjectKey(machine.namespace or "", name)]
    )


class Machines(Reconciler[CapelinMachine]):
    """Moves a machine one step through its life."""

    watches = (For(CapelinMachine), Watches(Machine, to=its_machine))
    permissions = (
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
        Permission("", ("secrets",), ("get",)),
    )

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workloads: WorkloadClients | None = None
        self._recent: Recent | None = None
        self._leaving = asyncio.Lock()
        self._removed: set[ObjectKey] = set()

    async def reconcile(self, ctx: Context, machine: CapelinMachine) -> Result:
        """Take one step."""
        going = machine.metadata.deletion_timestamp is not None
        # A pause counts at once for what cannot be undone.
        cluster = await cluster_of(ctx.client if going else self._recently(ctx.client), machine)
        pause = paused(machine, cluster)
        if pause.status == "True":
            await self._say(machine, ctx, pause)
            return After(_LATER)
        if going:
            return await self._remove(machine, cluster, pause, ctx)
        if cluster is None:
            await self._wait(machine, ctx, pause, say.WAITING_FOR_OWNER, "no Cluster owns it yet")
            return After(_SOON)
        if not cluster.status.initialization.infrastructure_provisioned:
            reason, what = say.WAITING_FOR_INFRASTRUCTURE, "the Cluster's infrastructure"
            await self._wait(machine, ctx, pause, reason, f"{what} is not provisioned yet")
            return After(_SOON)
        in_pool = POOL_NAME_LABEL in machine.metadata.labels
        # A pool says what there is to know of its machines, until they have a history.
        known = in_pool and not say.is_provisioned(machine)
        owner = None if known else await owner_of(ctx.client, machine, Machine)
        if in_pool and owner is not None and is_given_up(owner):
            await ctx.client.delete(Machine, owner.name, owner.namespace, uid=owner.uid)
        wanted = wanted_machine(machine, owner, cluster.name)
        if wanted is None or not (in_pool or _is_bootstrapped(owner)):
            await self._say(machine, ctx, pause, _lack(versioned=wanted is not None))
            # The Machine's next event says when.
            return After(_LATER)
        await ctx.add_finalizer(machine, FINALIZER)
        return await self._keep(machine, wanted, pause, ctx)

    async def on_missing(self, ctx: Context, key: ObjectKey) -> None:
        """Stop what machines shared here when the last one went without us: in a move."""
        if key in self._removed:
            self._removed.remove(key)
            return
        async with self._leaving:
            for cluster in self._backend.clusters(key.namespace):
                if not await _uids(ctx.client, cluster):
                    await self._forget(cluster, ctx.client)

    async def _keep(
        self, machine: CapelinMachine, wanted: WantedMachine, pause: ConditionSpec, ctx: Context
    ) -> Result:
        namespace = wanted.key.namespace
        name = secrets.secret_name(wanted.cluster, "kubeconfig")
        secret = await self._recently(ctx.client).find(Secret, name, namespace)
        if secret is None:
            message = "there is no kubeconfig for the cluster yet"
            await self._wait(machine, ctx, pause, say.WAITING_FOR_CONTROL_PLANE, message)
            return After(_SOON)
        clients = self._clients(ctx.client)
        async with clients.client(wanted.cluster, namespace, secret=secret) as workload:
            try:
                instance = await self._backend.ensure(
                    wanted,
                    workload,
                    kubeconfig=secret.data.get(secrets.KUBECONFIG, b""),
                    was_running=say.is_provisioned(machine),
                    now=ctx.now(),
                )
            except Invalid as error:
                message = f"the cluster refuses such a Node; correct spec.simulated: {error}"
                await self._wait(machine, ctx, pause, say.REFUSED, message)
                return After(_LATER)
        if machine.spec.provider_id is None:
            await self._write_provider_id(machine, wanted.provider_id, ctx.client)
        status = say.machine_status(
            machine, instance, failure_domain=wanted.failure_domain, paused=pause, now=ctx.now()
        )
        await ctx.patch_status(machine, status)
        if instance.look_again_at is not None:
            return After(max(0.01, (instance.look_again_at - ctx.now()).total_seconds()))
        if POOL_NAME_LABEL not in machine.metadata.labels:
            return After(_LOOK_AGAIN)
        return After(_LOOK_SELDOM * (1 + fraction_of("look", machine.name)))

    async def _remove(
        self, machine: CapelinMachine, cluster: Cluster | None, pause: ConditionSpec, ctx: Context
    ) -> Result:
        if FINALIZER in machine.metadata.finalizers:
            try:
                await self._remove_instance(machine, cluster, ctx)
            except ClientError as error:
                # A cluster that goes takes its nodes along, even if it never came up, and whatever
                # of it has broken already.
                if cluster is not None and cluster.metadata.deletion_timestamp is None:
                    if isinstance(error, NotFound | Unreachable):
                        message = (
                            "its Node cannot be removed while the cluster's API does not answer"
                        )
                        await self._say(machine, ctx, pause, say.deleting(message))
                    raise
            # One after the other, so that the last one knows that it is.
            async with self._leaving:
                await self._forget_if_last(machine, ctx.client)
                self._removed.add(ObjectKey(machine.namespace or "", machine.name))
                await ctx.remove_finalizer(machine, FINALIZER)
        return Done()

    async def _remove_instance(
        self, machine: CapelinMachine, cluster: Cluster | None, ctx: Context
    ) -> None:
        key = ObjectKey(machine.namespace or "", machine.name)
        async with AsyncExitStack() as stack:
            workload: Client | None = None
            if cluster is not None:
                clients = self._clients(ctx.client)
                workload = await stack.enter_async_context(
                    clients.client(cluster.name, key.namespace)
                )
            await self._backend.remove(key, workload)

    async def _forget_if_last(self, machine: CapelinMachine, client: Client) -> None:
        """Remove what a cluster's machines share, before the last of them lets go."""
        name = cluster_name_of(machine)
        if name is None:
            return
        cluster = ObjectKey(machine.namespace or "", name)
        if all(uid == machine.uid for uid in await _uids(client, cluster)):
            await self._forget(cluster, client)

    async def _forget(self, cluster: ObjectKey, client: Client) -> None:
        await self._backend.forget(cluster)
        await self._clients(client).drop(cluster.name, cluster.namespace)

    async def _write_provider_id(
        self, machine: CapelinMachine, provider_id: str, client: Client
    ) -> None:
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

    async def _wait(
        self, machine: CapelinMachine, ctx: Context, pause: ConditionSpec, reason: str, message: str
    ) -> None:
        await self._say(machine, ctx, pause, ConditionSpec(READY, "False", reason, message))

    async def _say(self, machine: CapelinMachine, ctx: Context, *aspects: ConditionSpec) -> None:
        before = machine.status or MachineStatus()
        changed = {"conditions": say.said(machine, *aspects, now=ctx.now())}
        await ctx.patch_status(machine, before.model_copy(update=changed))

    def _recently(self, client: Client) -> Recent:
        if self._recent is None:
            self._recent = Recent(client)
        return self._recent

    def _clients(self, client: Client) -> WorkloadClients:
        if self._workloads is None:
            self._workloads = WorkloadClients(client)
        return self._workloads


def _is_bootstrapped(owner: Machine | None) -> bool:
    return owner is not None and owner.spec.bootstrap.data_secret_name is not None


def _lack(*, versioned: bool) -> ConditionSpec:
    """What a machine cannot be made without."""
    if versioned:
        message = "its Machine has no bootstrap data yet"
        return ConditionSpec(READY, "False", say.WAITING_FOR_BOOTSTRAP_DATA, message)
    message = (
        "nobody says its Kubernetes version; say it in spec.template.spec.version of its"
        " MachinePool or MachineDeployment"
    )
    return ConditionSpec(READY, "False", say.WAITING_FOR_VERSION, message)


async def _uids(client: Client, cluster: ObjectKey) -> list[str]:
    """The uids of a cluster's machines, or of two of them: enough to know, of a thousand."""
    found: dict[str, Any] = await client.request(
        "GET",
        path_of(CapelinMachine.resource, cluster.namespace),
        parameters={"labelSelector": f"{CLUSTER_NAME_LABEL}={cluster.name}", "limit": "2"},
    )
    return [one["metadata"]["uid"] for one in found["items"]]
