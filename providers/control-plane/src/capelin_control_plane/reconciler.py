"""Reconciles hosted control planes: reads, decides, acts, reports."""

from dataclasses import replace
from datetime import datetime, timedelta

from capelin.api.views.capi import Cluster, Machine, MachinePool
from capelin.api.views.core import Secret
from capelin.client import ClientError
from capelin.contract.clusters import cluster_of, named_by
from capelin.contract.conditions import ConditionSpec, is_true
from capelin.contract.labels import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from capelin.contract.pausing import paused
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
from capelin.provider import Blocked

from capelin_control_plane import status as conditions
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backends import Backend
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import (
    ControlPlane,
    InvalidSpecError,
    desired_state,
    requested_renewal,
)
from capelin_control_plane.instances import Endpoint, Observed
from capelin_control_plane.plan import next_step
from capelin_control_plane.secrets import ensure_authorities, ensure_kubeconfig
from capelin_control_plane.workload import RESYNC, WorkloadSync, workload_objects

FINALIZER = "controlplane.cluster.x-k8s.io/capelin"
ADDRESS_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-address"
"""The address that the backend allocated. It outlives a move to another management cluster."""
MANAGER = "capelin-control-plane"

_RETRY_SECONDS = 5.0


def control_plane_of(cluster: Cluster) -> list[ObjectKey]:
    """The control plane that a Cluster names."""
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    return [] if name is None else [ObjectKey(cluster.namespace or "", name)]


class ControlPlaneReconciler(Reconciler[CapelinControlPlane]):
    """Reconciles hosted control planes."""

    watches = (
        For(CapelinControlPlane),
        Owns(Secret, labels={CLUSTER_NAME_LABEL: None}),
        Watches(Cluster, to=control_plane_of),
    )
    permissions = (
        Permission("", ("secrets",), ("get", "create", "patch")),
        Permission("cluster.x-k8s.io", ("machines", "machinepools"), ("list",)),
    )

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workload = WorkloadSync(MANAGER)
        self._uids: dict[ObjectKey, str | None] = {}
        """The objects whose control planes the backend supervises. A new object of the same name
        may replace one."""

    async def reconcile(self, ctx: Context, control_plane: CapelinControlPlane) -> Result:
        """Find the Cluster, stop when paused or deleted, then reconcile."""
        key = ObjectKey(control_plane.namespace or "", control_plane.name)
        if self._uids.get(key, control_plane.uid) != control_plane.uid:
            await self._release(key)
        cluster = await cluster_of(ctx.client, control_plane)
        pause = paused(control_plane, cluster)
        if pause.status == "True":
            await self._release(key)
            status = conditions.paused_status(control_plane, pause, ctx.now())
            await ctx.patch_status(control_plane, status)
            return Done()
        replaced_by = _replaced_by(control_plane, cluster)
        if replaced_by is not None:
            # What runs belongs to the other one, which may be paused and so unsupervised.
            await self._release(key)
        if control_plane.metadata.deletion_timestamp is not None:
            return await self._reconcile_delete(ctx, key, control_plane, replaced_by)
        if cluster is None or replaced_by is not None:
            blocked = Blocked(
                conditions.WAITING_FOR_OWNER, _why_without_cluster(cluster, replaced_by)
            )
            status = conditions.blocked_status(control_plane, [pause], blocked, ctx.now())
            await ctx.patch_status(control_plane, status)
            return Done()
        await ctx.add_finalizer(control_plane, FINALIZER)
        try:
            return await self._reconcile_normal(ctx, key, control_plane, cluster, pause)
        except Blocked as blocked:
            status = conditions.blocked_status(
                control_plane, [*_about_certificates(blocked), pause], blocked, ctx.now()
            )
            await ctx.patch_status(control_plane, status)
            return After(_RETRY_SECONDS)

    async def on_missing(self, _: Context, key: ObjectKey) -> None:
        """Release a control plane whose finalizer somebody removed. It keeps running."""
        if key in self._uids:
            await self._release(key)

    async def _reconcile_normal(
        self,
        ctx: Context,
        key: ObjectKey,
        control_plane: CapelinControlPlane,
        cluster: Cluster,
        pause: ConditionSpec,
    ) -> Result:
        address = control_plane.metadata.annotations.get(ADDRESS_ANNOTATION)
        try:
            desired = _desired_state(control_plane, cluster, ctx.now())
            authorities = await ensure_authorities(
                ctx.client, control_plane, desired, may_create=address is None
            )
        except Blocked:
            if address is not None:
                self._uids[key] = control_plane.uid
                await self._backend.keep_running(key, address)
            raise
        self._uids[key] = control_plane.uid
        endpoint = await self._backend.allocate(key, desired, authorities, address)
        # Before anything runs there: whoever deletes the control plane has to find it.
        await ctx.apply_metadata(control_plane, annotations={ADDRESS_ANNOTATION: endpoint.address})
        observed = await reconcile_instances(self._backend, key, endpoint, desired)
        if observed.blocked is not None and not observed.statuses:
            raise observed.blocked
        if observed.answers or control_plane.spec.control_plane_endpoint is not None:
            # Not earlier: Cluster API connects at once, and waits 30 s after a failure.
            await _apply_endpoint(ctx, control_plane, endpoint)
            await ensure_kubeconfig(
                ctx.client,
                control_plane,
                desired,
                endpoint=endpoint,
                authorities=authorities,
                now=ctx.now(),
            )

        async def report(workload: ConditionSpec) -> None:
            status = conditions.running_status(
                control_plane,
                desired,
                observed,
                paused=pause,
                certificates=_certificates("True", conditions.CERTIFICATES_AVAILABLE),
                workload=workload,
                now=desired.now,
            )
            await ctx.patch_status(control_plane, status)

        await report(_workload_before(control_plane, observed))
        if observed.answers:
            await report(await self._sync_workload(key, endpoint, desired, authorities))
        return _requeue(control_plane, observed, desired.now)

    async def _reconcile_delete(
        self,
        ctx: Context,
        key: ObjectKey,
        control_plane: CapelinControlPlane,
        replaced_by: str | None,
    ) -> Result:
        is_copy = replaced_by is not None and (
            await ctx.client.find(CapelinControlPlane, replaced_by, key.namespace) is not None
        )
        if not is_copy:
            workers = await _workers_of(ctx, control_plane)
            if workers:
                message = f"{', '.join(workers)} still need the API; they are deleted first"
                await ctx.patch_status(
                    control_plane,
                    conditions.deleting_status(
                        control_plane, conditions.WORKERS_REMAIN, message, ctx.now()
                    ),
                )
                return After(_RETRY_SECONDS)
            await ctx.patch_status(
                control_plane,
                conditions.deleting_status(
                    control_plane, "Deleting", "stopping and deleting it", ctx.now()
                ),
            )
            await self._backend.delete(key)
        self._workload.forget(key)
        self._uids.pop(key, None)
        await ctx.remove_finalizer(control_plane, FINALIZER)
        return Done()

    async def _release(self, key: ObjectKey) -> None:
        self._workload.forget(key)
        self._uids.pop(key, None)
        await self._backend.release(key)

    async def _sync_workload(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, authorities: Authorities
    ) -> ConditionSpec:
        type_ = conditions.WORKLOAD_OBJECTS_AVAILABLE
        objects = workload_objects(desired, endpoint, authorities.ca.certificate_pem)
        try:
            config = self._backend.client_config(endpoint)
            await self._workload.apply(key, config, objects, desired.now)
        except ClientError as error:
            return ConditionSpec(
                type_, "False", conditions.NOT_APPLIED, f"cannot apply them: {error}"
            )
        return ConditionSpec(type_, "True", type_)


async def reconcile_instances(
    backend: Backend, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane
) -> Observed:
    """Take the next step towards the desired instances."""
    observed = await backend.observe(key, endpoint, desired)
    if observed.desired is None:
        return observed
    step = next_step(observed.desired, observed)
    try:
        await backend.apply(key, step)
    except Blocked as blocked:
        return replace(observed, blocked=blocked)
    if step.plan == observed.plan and step.replacement is None:
        return observed
    return await backend.observe(key, endpoint, desired)


def _desired_state(
    control_plane: CapelinControlPlane, cluster: Cluster, now: datetime
) -> ControlPlane:
    try:
        return desired_state(control_plane, cluster, now)
    except InvalidSpecError as error:
        raise Blocked(conditions.INVALID_CONFIGURATION, str(error)) from error


def _replaced_by(control_plane: CapelinControlPlane, cluster: Cluster | None) -> str | None:
    """The control plane that the Cluster names instead of this one."""
    if cluster is None:
        return None
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    return None if name == control_plane.name else name


def _why_without_cluster(cluster: Cluster | None, replaced_by: str | None) -> str:
    if cluster is None or replaced_by is None:
        return "no Cluster owns this control plane yet; name it in a Cluster's spec.controlPlaneRef"
    return (
        f"the spec.controlPlaneRef of Cluster {cluster.name} names {replaced_by}, and this control"
        " plane would be a second one; delete it, or name it in another Cluster"
    )


async def _workers_of(ctx: Context, control_plane: CapelinControlPlane) -> list[str]:
    """What still needs the API, for a message: `3 machines`."""
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


async def _apply_endpoint(
    ctx: Context, control_plane: CapelinControlPlane, endpoint: Endpoint
) -> None:
    present = control_plane.spec.control_plane_endpoint
    if present is not None and (present.host, present.port) == (endpoint.host, endpoint.port):
        return
    resource = CapelinControlPlane.resource
    await ctx.client.apply(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": control_plane.name,
                "namespace": control_plane.namespace,
                "uid": control_plane.uid,
            },
            "spec": {"controlPlaneEndpoint": {"host": endpoint.host, "port": endpoint.port}},
        },
        resource=resource,
        manager=f"{MANAGER}-endpoint",
    )


def _certificates(status: str, reason: str, message: str = "") -> ConditionSpec:
    type_ = conditions.CERTIFICATES_AVAILABLE
    return ConditionSpec(type_, "True" if status == "True" else "False", reason, message)


def _about_certificates(blocked: Blocked) -> list[ConditionSpec]:
    if not blocked.reason.startswith("Certificates"):
        return []
    return [_certificates("False", blocked.reason, str(blocked))]


def _workload_before(control_plane: CapelinControlPlane, observed: Observed) -> ConditionSpec:
    """What is known of the objects in the workload cluster before a look at it."""
    type_ = conditions.WORKLOAD_OBJECTS_AVAILABLE
    if not observed.answers:
        return ConditionSpec(
            type_, "False", conditions.WAITING_FOR_API_SERVER, "no API server is ready yet"
        )
    if is_true((control_plane.status or Status()).conditions, type_):
        return ConditionSpec(type_, "True", type_)
    return ConditionSpec(type_, "Unknown", conditions.STARTING, "being applied")


def _requeue(control_plane: CapelinControlPlane, observed: Observed, now: datetime) -> Result:
    """When to look again. The backend reports changes of processes, but not the passing of time."""
    if observed.blocked is not None:
        return After(_RETRY_SECONDS)
    wait = RESYNC
    if observed.renew_at is not None:
        wait = min(wait, max(observed.renew_at - now, timedelta(seconds=1)))
    for moment in (control_plane.spec.rollout.after, requested_renewal(control_plane)):
        if moment is not None and moment > now:
            wait = min(wait, moment - now)
    return After(wait.total_seconds())
