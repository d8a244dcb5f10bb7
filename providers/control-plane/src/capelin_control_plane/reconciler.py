"""Reconciles hosted control planes: observes, decides, applies, reports."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from capelin.api import BaseObject
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import Deployment, Pod, Secret, Service, StatefulSet
from capelin.client import Client, ClientError
from capelin.contract import (
    ASLEEP,
    BLOCK_MOVE_ANNOTATION,
    CLUSTER_NAME_LABEL,
    CONTROL_PLANE_LABEL,
    DELETING,
    ConditionSpec,
    is_condition_true,
    named_by,
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
from capelin.provider import Blocked, Change, ControlPlaneContext, ControlPlaneReconciler

from capelin_control_plane import status as conditions
from capelin_control_plane.api import BackendName, CapelinControlPlane, Status
from capelin_control_plane.api.policy import DEFAULT_POLICY, Policy
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import Backend, reconcile_instances
from capelin_control_plane.backends.orphans import Orphans
from capelin_control_plane.backends.pods import MANAGED_BY, MANAGED_BY_LABEL, owner_of
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.objects import BACKED_UP
from capelin_control_plane.desired.component_files import find_audit_policy
from capelin_control_plane.desired.control_plane import (
    ADDRESS_ANNOTATION,
    ControlPlane,
    complete_spec,
    desired_state,
)
from capelin_control_plane.desired.endpoints import endpoint_conflict
from capelin_control_plane.desired.instances import Endpoint, Observed, Phase
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.encryption_keys import EncryptionKeys, find_encryption_keys
from capelin_control_plane.keys.secrets import (
    AUTHORITIES_ANNOTATION,
    ensure_authorities,
    ensure_kubeconfig,
)
from capelin_control_plane.operations.encryption import (
    ENCRYPTION_AT_REST,
)
from capelin_control_plane.operations.engine import key_of
from capelin_control_plane.operations.move import (
    Moves,
    MovingBackend,
    abandon_move,
    check_move,
)
from capelin_control_plane.operations.move_phases import is_handed_over, is_moving
from capelin_control_plane.operations.restore import complete_restore
from capelin_control_plane.operations.runner import Operations
from capelin_control_plane.operations.situation import Situation
from capelin_control_plane.operations.sleep import sleep_state, stays_asleep, waiting_requests
from capelin_control_plane.workload import RESYNC, WorkloadSync, workload_objects

FINALIZER = "controlplane.cluster.x-k8s.io/capelin"
MANAGER = "capelin-control-plane"

_ABOUT_CERTIFICATES = {Reason.CERTIFICATES_MISSING, Reason.CERTIFICATES_NOT_USABLE}
_ABOUT_ENCRYPTION = {
    Reason.ENCRYPTION_KEYS_MISSING,
    Reason.ENCRYPTION_KEY_NOT_USABLE,
    Reason.KMS_PLUGIN_NOT_LISTED,
    Reason.KMS_PLUGIN_NOT_HEALTHY,
}
_RETRY_SECONDS = 5.0
_WORKLOAD_SECONDS = 10.0
"""How long one reconcile waits for the workload cluster: meanwhile the status gets older."""


def control_plane_of(obj: BaseObject) -> Iterable[ObjectKey]:
    """The control plane that an object of the backend Pods belongs to."""
    name = owner_of(obj.metadata.labels, obj.metadata.annotations)
    return [] if name is None else [ObjectKey(obj.namespace or "", name)]


# Of the backend Pods. Label selectors keep others' pods away from the provider.
_WATCHED = tuple(
    Watches(kind, control_plane_of, {MANAGED_BY_LABEL: MANAGED_BY}, metadata_only=True)
    for kind in (Pod, Deployment, StatefulSet, Service)
)
_CHANGED = ("create", "delete", "get", "patch")


class CapelinControlPlaneReconciler(ControlPlaneReconciler[CapelinControlPlane]):
    """Reconciles hosted control planes."""

    finalizer = FINALIZER
    paused_retry_seconds = 30.0
    watches = (Owns(Secret, labels={CLUSTER_NAME_LABEL: None}), *_WATCHED)
    permissions = (
        Permission("cluster.x-k8s.io", ("machines", "machinepools"), ("list",)),
        *BACKED_UP,
        Permission("apps", ("deployments", "statefulsets"), _CHANGED),
        Permission("apps", ("controllerrevisions", "replicasets"), ("delete", "list")),
        Permission("policy", ("poddisruptionbudgets",), _CHANGED),
        Permission("networking.k8s.io", ("networkpolicies",), _CHANGED),
        Permission("", ("configmaps", "services"), _CHANGED),
        Permission("", ("pods/eviction",), ("create",)),
        # Members of etcd are replaced through it.
        Permission("", ("pods/portforward",), ("create", "get")),
        # Restores create the data of etcd members in pods.
        Permission("", ("pods",), ("create",)),
        Permission("", ("persistentvolumeclaims",), ("get", "delete")),
        Permission("", ("nodes",), ("list",)),
    )

    def __init__(
        self,
        backends: Mapping[BackendName, Backend],
        policy: Policy = DEFAULT_POLICY,
        orphan_grace: timedelta | None = None,
        stores: Stores | None = None,
    ) -> None:
        self._backends = backends
        self._policy = policy
        self._orphans = Orphans(backends.values(), orphan_grace)
        self._workload = WorkloadSync(MANAGER)
        self._stores = stores = stores or Stores()
        self._operations = Operations(stores, self.wake)
        self._moves = Moves(stores, self.wake)

    @asynccontextmanager
    async def lifespan(self, ctx: Context) -> AsyncGenerator[None]:
        """Check now and then for control planes whose object is gone."""
        async with super().lifespan(ctx):
            ctx.metrics.register(self._operations.metrics)
            try:
                async with ctx.background.running(orphans=partial(self._orphans.sweep, ctx)):
                    yield
            finally:
                ctx.metrics.unregister(self._operations.metrics)
                await self._operations.close()
                await self._moves.close()
                self._stores.close()
                for backend in self._backends.values():
                    await backend.close()

    async def find_owner(
        self, client: Client, obj: CapelinControlPlane, cluster: Cluster | None
    ) -> Cluster | None:
        """The Cluster, if its `spec.controlPlaneRef` names this control plane.

        The label is not enough: the secrets of a Cluster belong to the control plane that it names.
        """
        _ = client
        if (
            cluster is None
            or named_by(cluster.spec.control_plane_ref, CapelinControlPlane) == obj.name
        ):
            return cluster
        # The instances may belong to another control plane, which may be paused: keep them.
        await self._release(key_of(obj))
        return None

    def waiting_for(
        self,
        obj: CapelinControlPlane,  # noqa: ARG002
        cluster: Cluster | None,
        owner: Any,
    ) -> Blocked | None:
        """Why it waits: no Cluster names this control plane."""
        if owner is not None:
            return None
        if cluster is None:
            message = "no Cluster owns this control plane yet"
            hint = "name it in a Cluster's spec.controlPlaneRef"
        elif (reference := cluster.spec.control_plane_ref) is None:
            message = f"Cluster {cluster.name} has no spec.controlPlaneRef yet"
            hint = "name this control plane there"
        else:
            message = (
                f"the spec.controlPlaneRef of Cluster {cluster.name} names {reference.kind}"
                f" {reference.name}, and this control plane would be a second one"
            )
            hint = "delete it, or name it in another Cluster"
        return Blocked(Reason.WAITING_FOR_OWNER, message, hint, retry_seconds=None)

    def base_status(self, obj: CapelinControlPlane) -> Status:
        """Always true: the control plane has no Machines."""
        present = obj.status or Status()
        return present.model_copy(update={"external_managed_control_plane": True})

    async def on_paused(self, ctx: ControlPlaneContext, obj: CapelinControlPlane) -> None:
        """Stop supervising. The control plane keeps running, unless its move was requested.

        Its instances start again if they end, for example with their machine. Nothing else changes.
        """
        key, backend = key_of(obj), self._backends.get("Pods")
        self._orphans.keep(key)
        if isinstance(backend, MovingBackend) and is_moving(obj, ctx.now()):
            self._operations.forget(key)
            self._workload.forget(key)
            prepare = partial(self._prepare_move, ctx, obj)
            ctx.set_conditions(*self._moves.reconcile(ctx, obj, backend, prepare))
            return
        await self._release(key)
        address = obj.metadata.annotations.get(ADDRESS_ANNOTATION)
        own = self._backends.get(self._backend_name(obj))
        if own is not None and address is not None and not stays_asleep(obj, ctx.now()):
            ended = await own.start_again(key, address)
            if (condition := conditions.available_while_paused(obj, ended)) is not None:
                ctx.set_conditions(condition)

    async def on_missing(self, _: Context, key: ObjectKey) -> None:
        """Stop supervising a control plane whose finalizer was removed."""
        await self._release(key)

    async def reconcile_normal(self, ctx: ControlPlaneContext, obj: CapelinControlPlane) -> Result:
        """Observe the instances, take the next step, and report."""
        key, now = key_of(obj), ctx.now()
        self._orphans.keep(key)
        self._moves.forget(key)
        if is_handed_over(obj):
            await abandon_move(ctx, obj)
        backend = self._backend_of(obj)
        await complete_spec(ctx.client, obj, self._backend_name(obj))
        address = await allocated_address(ctx, obj)
        try:
            sleep = sleep_state(obj, now)
            is_new = address is None and not self.is_initialized(obj.status or Status())
            desired, authorities, keys = await self._desired(ctx, obj, is_new=is_new)
            desired = replace(desired, asleep=sleep.asleep and desired.restore is None)
            endpoint = await backend.allocate(key, desired, authorities, address)
        except Blocked as blocked:
            ctx.set_conditions(*_failed(blocked))
            if address is not None and not stays_asleep(obj, now):
                await backend.keep_running(key, address)
            raise
        # Before any instance runs there: the deletion of the control plane has to find it.
        await ctx.apply_metadata(obj, annotations=_annotations(obj, endpoint, keys, desired))
        observed = await reconcile_instances(backend, key, endpoint, desired)
        if observed.blocked is not None and not observed.statuses:
            raise observed.blocked
        if observed.answers or obj.spec.control_plane_endpoint is not None:
            # Not earlier: Cluster API connects at once, and waits 30 s after a failure.
            ctx.set_endpoint(endpoint.host, endpoint.port)
            await ensure_kubeconfig(
                ctx.client, obj, desired, endpoint=endpoint, authorities=authorities, now=now
            )
        situation = Situation(obj, desired, observed, authorities, keys, endpoint, backend)
        move = await check_move(ctx, situation)
        ctx.set_conditions(*move.conditions)
        if desired.asleep:
            return self._sleep(ctx, situation, sleep.next, move.next)
        operations = await self._operations.reconcile(
            ctx, situation, is_moving=move.accepted is not None, awake_since=sleep.since
        )
        ctx.set_status(
            conditions.running_status(
                obj,
                desired,
                observed,
                backup=operations.backup,
                space=operations.space,
                encryption=operations.encryption,
                accepted_move=move.accepted,
            )
        )
        ctx.set_conditions(*operations.conditions, endpoint_conflict(obj, ctx.cluster))
        self._forget_replaced(key, observed)
        ctx.set_conditions(_workload_before(obj, observed))
        if observed.answers:
            await ctx.send_status()
            objects = await self._sync_workload(situation)
            ctx.set_conditions(objects)
            if objects.status == "False":
                return After(_RETRY_SECONDS)
        await complete_restore(ctx, situation)
        return _requeue(desired, observed, now, operations.next, move.next, sleep.next)

    def _sleep(
        self,
        ctx: ControlPlaneContext,
        situation: Situation,
        *moments: datetime | None,
    ) -> Result:
        """Report a control plane that sleeps. Its tasks stop."""
        key, obj, observed = situation.key, situation.obj, situation.observed
        desired, progress = situation.desired, situation.authorities.progress
        self._operations.forget(key)
        self._workload.forget(key)
        waiting = waiting_requests(obj, desired, observed, progress)
        if not is_condition_true((obj.status or Status()).conditions, ASLEEP):
            ctx.event(obj, "Normal", Reason.ASLEEP, "its components stop until it wakes")
        ctx.set_status(conditions.asleep_status(obj, desired, observed, waiting))
        if observed.alive:
            return After(1.0)
        return _requeue(desired, observed, desired.now, *moments)

    def is_reported(self, obj: CapelinControlPlane, change: Change) -> bool:  # noqa: ARG002
        """It has reported itself that it sleeps: this is not a failure."""
        return change.reason != ASLEEP

    async def reconcile_delete(self, ctx: ControlPlaneContext, obj: CapelinControlPlane) -> Result:
        """Wait for the workers, then stop and delete the control plane."""
        key, replaced_by = key_of(obj), _replaced_by(obj, ctx.cluster_or_none)
        if replaced_by is not None:
            await self._release(key)
            if await ctx.client.find(CapelinControlPlane, replaced_by, key.namespace) is not None:
                # A copy: the instances belong to the control plane that the Cluster names.
                return Done()
        address = obj.metadata.annotations.get(ADDRESS_ANNOTATION)
        if address is None and obj.spec.backend not in self._backends:
            # No instance was ever started.
            return Done()
        backend = self._backend_of(obj)
        self._orphans.request_deletion(key)
        workers = await _workers_of(ctx, obj)
        if workers:
            message = f"{', '.join(workers)} still need the API and are deleted first"
            ctx.set_conditions(ConditionSpec(DELETING, "True", Reason.WORKERS_REMAIN, message))
            if address is not None and not stays_asleep(obj, ctx.now()):
                await backend.keep_running(key, address)
            return After(_RETRY_SECONDS)
        ctx.set_conditions(ConditionSpec(DELETING, "True", DELETING, "stopping and deleting it"))
        await ctx.send_status()
        self._operations.forget(key)
        self._moves.forget(key)
        await backend.delete(key)
        self._orphans.keep(key)
        self._workload.forget(key)
        return Done()

    async def _desired(
        self, ctx: ControlPlaneContext, obj: CapelinControlPlane, *, is_new: bool
    ) -> tuple[ControlPlane, Authorities, EncryptionKeys | None]:
        """The desired state, with its CAs and keys. New ones are created only if it is new."""
        client, now = ctx.client, ctx.now()
        audit_policy = await find_audit_policy(ctx, obj)
        keys = await find_encryption_keys(
            client,
            obj,
            ctx.cluster.name,
            now,
            is_new=is_new,
            plugins=self._policy.kms_plugins,
            plugin_key=self._operations.plugin_key(key_of(obj), now),
        )
        files = keys and keys.files
        desired = desired_state(obj, ctx.cluster, now, self._policy, audit_policy, encryption=files)
        authorities = await ensure_authorities(client, obj, desired, may_create=is_new)
        return replace(desired, rotation=authorities.progress.step), authorities, keys

    async def _prepare_move(
        self, ctx: ControlPlaneContext, obj: CapelinControlPlane
    ) -> tuple[ControlPlane, Authorities]:
        desired, authorities, _ = await self._desired(ctx, obj, is_new=False)
        return desired, authorities

    def _forget_replaced(self, key: ObjectKey, observed: Observed) -> None:
        """Forget which objects were applied: the backup may not have them."""
        if observed.restore in {Phase.STOPPING, Phase.REPLACING}:
            self._workload.forget(key)

    async def _release(self, key: ObjectKey) -> None:
        self._operations.forget(key)
        self._moves.forget(key)
        self._workload.forget(key)
        for backend in self._backends.values():
            await backend.release(key)

    def _backend_name(self, obj: CapelinControlPlane) -> BackendName:
        """The backend in the spec. Without one, what its other fields or the provider imply."""
        if obj.spec.backend is not None:
            return obj.spec.backend
        return "Pods" if obj.spec.pods is not None else next(iter(self._backends))

    def _backend_of(self, obj: CapelinControlPlane) -> Backend:
        name = self._backend_name(obj)
        backend = self._backends.get(name)
        if backend is None:
            raise Blocked(
                Reason.BACKEND_NOT_AVAILABLE,
                f"spec.backend: this provider does not run control planes on {name}",
                f"write backend: {' or '.join(sorted(self._backends))}, or ask its administrator"
                f" for --backends={name.lower()} (pods need a management cluster with nodes)",
            )
        return backend

    async def _sync_workload(self, situation: Situation) -> ConditionSpec:
        type_, desired = conditions.WORKLOAD_OBJECTS_AVAILABLE, situation.desired
        ca = situation.authorities.bundle("ca")
        objects = workload_objects(desired, situation.endpoint, ca)
        try:
            async with asyncio.timeout(_WORKLOAD_SECONDS):
                config = situation.config()
                await self._workload.apply(situation.key, config, objects, desired.now)
        except (ClientError, TimeoutError) as error:
            reason = str(error) or f"the workload cluster took more than {_WORKLOAD_SECONDS:g} s"
            message = f"cannot apply them: {reason}"
            return ConditionSpec(type_, "False", Reason.NOT_APPLIED, message)
        return ConditionSpec(type_, "True", type_)


async def allocated_address(ctx: Context, obj: CapelinControlPlane) -> str | None:
    """The address that the backend allocated.

    Without an address, the provider creates missing CAs. New CAs would break a control plane that
    has started, so a cached object without an address is read again.
    """
    address = obj.metadata.annotations.get(ADDRESS_ANNOTATION)
    if address is None:
        live = await ctx.client.get(CapelinControlPlane, obj.name, obj.namespace)
        address = live.metadata.annotations.get(ADDRESS_ANNOTATION)
    return address


def _replaced_by(control_plane: CapelinControlPlane, cluster: Cluster | None) -> str | None:
    """The control plane that the Cluster names instead of this one."""
    if cluster is None:
        return None
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    return None if name == control_plane.name else name


async def _workers_of(ctx: Context, control_plane: CapelinControlPlane) -> list[str]:
    """The workers that still need the API, for a message: `3 machines`."""
    cluster = control_plane.metadata.labels.get(CLUSTER_NAME_LABEL)
    if cluster is None:
        return []
    labels = {CLUSTER_NAME_LABEL: cluster}
    machines = await ctx.client.list(Machine, control_plane.namespace, labels=labels)
    pools = await ctx.client.list(MachinePool, control_plane.namespace, labels=labels)
    counts = {
        "machines": sum(
            CONTROL_PLANE_LABEL not in machine.metadata.labels for machine in machines.items
        ),
        "machine pools": len(pools.items),
    }
    return [f"{count} {kind}" for kind, count in counts.items() if count]


def _failed(blocked: Blocked) -> list[ConditionSpec]:
    """The conditions of the keys that a reconcile could not use."""
    if blocked.reason in _ABOUT_CERTIFICATES:
        return [conditions.certificates_available(blocked)]
    if blocked.reason in _ABOUT_ENCRYPTION:
        return [ConditionSpec(ENCRYPTION_AT_REST, "False", blocked.reason, str(blocked))]
    return []


def _annotations(
    obj: CapelinControlPlane,
    endpoint: Endpoint,
    keys: EncryptionKeys | None,
    desired: ControlPlane,
) -> dict[str, str]:
    """The annotations that must outlive this provider."""
    annotations = {ADDRESS_ANNOTATION: endpoint.address, **(keys.annotations if keys else {})}
    if desired.rotation:
        annotations[AUTHORITIES_ANNOTATION] = str(desired.rotation)
    if obj.spec.backend == "Pods":
        # clusterctl cannot move it.
        annotations[BLOCK_MOVE_ANNOTATION] = "true"
    return annotations


def _workload_before(control_plane: CapelinControlPlane, observed: Observed) -> ConditionSpec:
    """The condition of the objects in the workload cluster before it is contacted."""
    type_ = conditions.WORKLOAD_OBJECTS_AVAILABLE
    if not observed.answers:
        message = "no API server is ready yet"
        return ConditionSpec(type_, "False", Reason.WAITING_FOR_API_SERVER, message)
    if is_condition_true((control_plane.status or Status()).conditions, type_):
        return ConditionSpec(type_, "True", type_)
    return ConditionSpec(type_, "Unknown", Reason.STARTING, "being applied")


def _requeue(
    desired: ControlPlane, observed: Observed, now: datetime, *moments: datetime | None
) -> Result:
    """When to look again. The backend reports changes of processes, but not the passing of time."""
    if observed.restore is Phase.STARTING or observed.stepped:
        return After(1.0)
    if observed.blocked is not None or observed.restore is not None:
        return After(_RETRY_SECONDS)
    wait = RESYNC
    for moment in (observed.renew_at, observed.replace_at, *moments):
        if moment is not None:
            wait = min(wait, max(moment - now, timedelta(seconds=1)))
    if desired.changes_at is not None:
        wait = min(wait, desired.changes_at - now)
    return After(wait.total_seconds())
