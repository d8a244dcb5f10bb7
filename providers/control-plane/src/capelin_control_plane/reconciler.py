"""Moves control planes towards their specs: reads, decides, acts, tells."""

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from capelin.api import Unstructured, resource_of
from capelin.api.views.capi import Cluster
from capelin.api.views.core import Secret
from capelin.client import Client, ClientError, needs_apply
from capelin.contract.clusters import cluster_name_of, cluster_of
from capelin.contract.conditions import ConditionSpec, is_true
from capelin.contract.labels import CLUSTER_NAME_LABEL
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

from capelin_control_plane import status as say
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backends import Backend, Observed, Problem, Site
from capelin_control_plane.belonging import (
    its_control_plane,
    original_of,
    why_nobodys,
    workers_of,
)
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import (
    ControlPlane,
    RefusedSpecError,
    desired,
    renewal_asked_for,
)
from capelin_control_plane.remedies import unusable
from capelin_control_plane.secrets import authorities, ca_certificate, ensure_kubeconfig
from capelin_control_plane.workload import Facts, addons, join_objects, service_objects

FINALIZER = "controlplane.cluster.x-k8s.io/capelin"
ADDRESS_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-address"
"""What the backend knows the control plane by. It outlives a move to another management cluster."""
MANAGER = "capelin-control-plane"

_LOOK_AGAIN = timedelta(minutes=2)
"""How soon something that was deleted from the workload cluster is put back."""
_RETRY = 5.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was last seen to be in a workload cluster, and when."""

    digest: str
    at: datetime


class ControlPlanes(Reconciler[CapelinControlPlane]):
    """Moves a hosted control plane one step towards its spec."""

    watches = (
        For(CapelinControlPlane),
        Owns(Secret, labels={CLUSTER_NAME_LABEL: None}),
        Watches(Cluster, to=its_control_plane),
    )
    permissions = (
        Permission("", ("secrets",), ("get", "create", "patch")),
        Permission("cluster.x-k8s.io", ("machines", "machinepools"), ("list",)),
    )

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[ObjectKey, _Kept] = {}
        self._uids: dict[ObjectKey, str | None] = {}
        """Whose the backend looks after: another one of the same name may come in its place."""

    async def reconcile(self, ctx: Context, control_plane: CapelinControlPlane) -> Result:
        """Take one step."""
        key = ObjectKey(control_plane.namespace or "", control_plane.name)
        if self._uids.get(key, control_plane.uid) != control_plane.uid:
            await self._let_go(key)
        cluster = await cluster_of(ctx.client, control_plane)
        pause = paused(control_plane, cluster)
        if pause.status == "True":
            await self._let_go(key)
            await ctx.patch_status(
                control_plane, say.paused_status(control_plane, pause, ctx.now())
            )
            return Done()
        original = original_of(control_plane, cluster)
        if original is not None:
            # What runs is the original's, which may be paused and so looked after by nobody.
            await self._let_go(key)
        if control_plane.metadata.deletion_timestamp is not None:
            is_copy = original is not None and await self._is_there(key.namespace, original, ctx)
            return await self._delete(key, control_plane, ctx, is_copy=is_copy)
        if cluster is None or original is not None:
            problem = Problem(say.WAITING_FOR_OWNER, why_nobodys(cluster, original))
            await ctx.patch_status(
                control_plane, say.waiting(control_plane, [pause], problem, ctx.now())
            )
            return Done()
        await ctx.add_finalizer(control_plane, FINALIZER)
        return await self._keep(key, control_plane, cluster, pause, ctx)

    async def on_missing(self, _: Context, key: ObjectKey) -> None:
        """Look no more after one that went without us. What it runs was not ours to stop."""
        if key in self._uids:
            await self._let_go(key)

    async def _is_there(self, namespace: str, name: str, ctx: Context) -> bool:
        """Whether there is a control plane of that name, which what runs may belong to."""
        return await ctx.client.find(CapelinControlPlane, name, namespace) is not None

    async def _let_go(self, key: ObjectKey) -> None:
        self._kept.pop(key, None)
        self._uids.pop(key, None)
        await self._backend.release(key)

    async def _keep(
        self,
        key: ObjectKey,
        control_plane: CapelinControlPlane,
        cluster: Cluster,
        pause: ConditionSpec,
        ctx: Context,
    ) -> Result:
        now = ctx.now()

        async def blocked(problem: Problem, *aspects: ConditionSpec) -> Result:
            wait = say.waiting(control_plane, [*aspects, pause], problem, now)
            await ctx.patch_status(control_plane, wait)
            return After(_RETRY)

        try:
            wanted = desired(control_plane, cluster, now)
        except RefusedSpecError as error:
            problem = await self._look_after(key, control_plane, cluster)
            return await blocked(problem or Problem(say.INVALID_SPEC, str(error)))
        address = control_plane.metadata.annotations.get(ADDRESS_ANNOTATION)
        keys = await authorities(ctx.client, control_plane, wanted, now, may_make=address is None)
        if isinstance(keys, Problem):
            refused = ConditionSpec(say.CERTIFICATES_AVAILABLE, "False", keys.reason, keys.message)
            problem = await self._look_after(key, control_plane, cluster)
            return await blocked(problem or keys, refused)
        self._uids[key] = control_plane.uid
        try:
            site = await self._backend.claim(wanted, keys, address)
            if isinstance(site, Problem):
                return await blocked(site)
            # Before anything runs there: whoever deletes the control plane has to find it.
            await ctx.apply_metadata(control_plane, annotations={ADDRESS_ANNOTATION: site.address})
            seen = await self._backend.move(key, site, wanted, keys, now)
        except OSError as error:
            return await blocked(unusable(error))
        if seen.problem is not None and not seen.parts:
            return await blocked(seen.problem)
        if seen.answers or control_plane.spec.control_plane_endpoint is not None:
            # Cluster API connects as soon as it can, and has 30 s pass after it has failed.
            await self._give_away(control_plane, wanted, site, keys, ctx)
        certificates = ConditionSpec(say.CERTIFICATES_AVAILABLE, "True", say.CERTIFICATES_AVAILABLE)

        async def tell(workload: ConditionSpec) -> None:
            current = say.status(
                control_plane,
                wanted,
                seen,
                paused=pause,
                certificates=certificates,
                workload=workload,
                now=now,
            )
            await ctx.patch_status(control_plane, current)

        await tell(_workload_before(control_plane, seen))
        if seen.answers:
            await tell(await self._keep_workload(key, site, wanted, keys, now))
        asked_for = control_plane.spec.rollout.after, renewal_asked_for(control_plane)
        return _next_look(seen, now, *asked_for)

    async def _look_after(
        self, key: ObjectKey, control_plane: CapelinControlPlane, cluster: Cluster
    ) -> Problem | None:
        """Have what dies started again, though nobody can say what is wanted."""
        address = control_plane.metadata.annotations.get(ADDRESS_ANNOTATION)
        if address is None:
            return None
        self._uids[key] = control_plane.uid
        try:
            await self._backend.look_after(key, cluster.name, address)
        except OSError as error:
            return unusable(error)
        return None

    async def _give_away(
        self,
        control_plane: CapelinControlPlane,
        wanted: ControlPlane,
        site: Site,
        keys: Authorities,
        ctx: Context,
    ) -> None:
        """Say where the control plane answers, and who may come in."""
        endpoint = control_plane.spec.control_plane_endpoint
        if endpoint is None or (endpoint.host, endpoint.port) != (site.host, site.port):
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
                    "spec": {"controlPlaneEndpoint": {"host": site.host, "port": site.port}},
                },
                resource=resource,
                manager=f"{MANAGER}-endpoint",
            )
        await ensure_kubeconfig(
            ctx.client, control_plane, wanted, site=site, keys=keys, now=ctx.now()
        )

    async def _keep_workload(
        self, key: ObjectKey, site: Site, wanted: ControlPlane, keys: Authorities, now: datetime
    ) -> ConditionSpec:
        """Have in the workload cluster what belongs there, looking now and then."""
        type_ = say.WORKLOAD_OBJECTS_AVAILABLE
        facts = Facts(
            cluster_name=wanted.cluster,
            version=wanted.version,
            host=site.host,
            port=site.port,
            ca_pem=keys.ca.certificate_pem,
            service_cidrs=wanted.service_cidrs,
            pod_cidrs=wanted.pod_cidrs,
            service_domain=wanted.service_domain,
            encryption_algorithm=wanted.algorithm.upper(),
            coredns=wanted.coredns,
            kube_proxy=wanted.kube_proxy,
        )
        objects = [*join_objects(facts), *service_objects(facts), *addons(facts)]
        digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
        kept = self._kept.get(key)
        if kept is not None and kept.digest == digest and now - kept.at < _LOOK_AGAIN:
            return ConditionSpec(type_, "True", type_)
        try:
            async with Client(self._backend.workload(site), manager=MANAGER) as workload:
                for one in objects:
                    await _ensure_object(workload, one)
        except ClientError as error:
            self._kept.pop(key, None)
            return ConditionSpec(type_, "False", say.NOT_APPLIED, f"cannot apply them: {error}")
        self._kept[key] = _Kept(digest, now)
        return ConditionSpec(type_, "True", type_)

    async def _address(self, control_plane: CapelinControlPlane, ctx: Context) -> str | None:
        """Where the control plane is, if it is anywhere."""
        known = control_plane.metadata.annotations.get(ADDRESS_ANNOTATION)
        cluster = cluster_name_of(control_plane)
        if known is not None or cluster is None:
            return known
        namespace = control_plane.namespace or ""
        ca = await ca_certificate(ctx.client, cluster, namespace)
        return None if ca is None else await self._backend.find(namespace, cluster, ca)

    async def _delete(
        self, key: ObjectKey, control_plane: CapelinControlPlane, ctx: Context, *, is_copy: bool
    ) -> Result:
        if is_copy:
            await ctx.remove_finalizer(control_plane, FINALIZER)
            return Done()
        workers = await workers_of(control_plane, ctx)
        if workers:
            message = f"{', '.join(workers)} still need the API; they're deleted first"
            await ctx.patch_status(
                control_plane,
                say.deleting(control_plane, say.WORKERS_REMAIN, message, ctx.now()),
            )
            return After(_RETRY)
        await ctx.patch_status(
            control_plane,
            say.deleting(control_plane, "Deleting", "being stopped and removed", ctx.now()),
        )
        cluster, address = cluster_name_of(control_plane), await self._address(control_plane, ctx)
        if cluster is not None and address is not None:
            await self._backend.remove(key, cluster, address)
        self._kept.pop(key, None)
        self._uids.pop(key, None)
        await ctx.remove_finalizer(control_plane, FINALIZER)
        return Done()


def _workload_before(control_plane: CapelinControlPlane, seen: Observed) -> ConditionSpec:
    """What is known of the objects in the workload cluster before anybody has looked."""
    type_ = say.WORKLOAD_OBJECTS_AVAILABLE
    if not seen.answers:
        return ConditionSpec(
            type_, "False", say.WAITING_FOR_API_SERVER, "no API server is ready yet"
        )
    if is_true((control_plane.status or Status()).conditions, type_):
        return ConditionSpec(type_, "True", type_)
    return ConditionSpec(type_, "Unknown", say.STARTING, "being applied")


async def _ensure_object(workload: Client, wanted: Unstructured) -> None:
    metadata = wanted["metadata"]
    resource = replace(resource_of(wanted), namespaced="namespace" in metadata)
    live = await workload.find(resource, metadata["name"], metadata.get("namespace"))
    if live is None or needs_apply(live, wanted, MANAGER):
        await workload.apply(wanted, resource=resource)


def _next_look(seen: Observed, now: datetime, *asked_for: datetime | None) -> Result:
    """The backend tells of what happens to processes; what time brings has to be looked for."""
    if seen.problem is not None:
        return After(_RETRY)
    wait = _LOOK_AGAIN
    if seen.renew_at is not None:
        wait = min(wait, max(seen.renew_at - now, timedelta(seconds=1)))
    for moment in asked_for:
        if moment is not None and moment > now:
            wait = min(wait, moment - now)
    return After(wait.total_seconds())
