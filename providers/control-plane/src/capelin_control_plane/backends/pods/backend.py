"""Control planes as pods of the management cluster: objects applied, and their pods observed."""

import asyncio
import base64
import hashlib
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from capelin.api import Resource, Unstructured, resource_of
from capelin.api.core import Node, Pod
from capelin.client import (
    Client,
    Config,
    Conflict,
    Invalid,
    Server,
    TooManyRequests,
    User,
    needs_apply,
    tls_context,
)
from capelin.controller import ObjectKey
from capelin.pki import KeyPair
from capelin.provider import Blocked

from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.pods.etcd_state import (
    RESTORED_KEY,
    EtcdState,
    is_resized,
    next_etcd_state,
    peer_url,
    planned_members,
    voters_of,
)
from capelin_control_plane.backends.pods.exposure import (
    agents_endpoint_of,
    api_server_service,
    endpoint_of,
)
from capelin_control_plane.backends.pods.konnectivity import agents_service
from capelin_control_plane.backends.pods.membership import (
    EtcdMembers,
    next_change,
    ordered_restarts,
)
from capelin_control_plane.backends.pods.names import (
    COMPONENT_LABEL,
    ETCD_CLIENT_PORT,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    RESTORED_ANNOTATION,
    Names,
    owner_of,
)
from capelin_control_plane.backends.pods.objects import (
    DesiredObjects,
    desired_objects,
    etcd_state,
    finished,
    is_owned_by,
    pki_secret,
    without_data,
)
from capelin_control_plane.backends.pods.pki_secret import pki_data
from capelin_control_plane.backends.pods.pod_status import (
    has_started,
    instance_statuses,
    is_member,
    is_running,
    member_index,
)
from capelin_control_plane.backends.pods.port_forward import forwarded_port
from capelin_control_plane.backends.pods.restore_pods import (
    is_restore_pod,
    is_stopped,
    restore_files,
    restore_pod,
)
from capelin_control_plane.backends.pods.restore_preparation import RestorePods
from capelin_control_plane.backends.pods.rollout import (
    are_api_servers_settled,
    etcd_members,
    is_complete,
    workloads_to_apply,
)
from capelin_control_plane.backends.pods.trees import fields_at, value_at
from capelin_control_plane.certificates import SERVER_CERTIFICATE, Authorities, key_pair
from capelin_control_plane.desired import PROGRAMS, Component, ControlPlane
from capelin_control_plane.etcd import (
    MOST_MEMBERS,
    Member,
    Membership,
    Removed,
    Replacement,
    StartLearner,
    next_replacement,
)
from capelin_control_plane.etcd_api import (
    EtcdApi,
    MembershipError,
    connect,
    make_room,
    ready_member,
)
from capelin_control_plane.instances import (
    AgentsEndpoint,
    Endpoint,
    InstanceStatus,
    Observed,
    downgrade,
)
from capelin_control_plane.reasons import Reason
from capelin_control_plane.restores import Phase, restore_phase

MANAGER = "capelin-control-plane-pods"
_log = logging.getLogger(__name__)

_CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
_CONTROLLER_REVISIONS = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")
_DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
_NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
_BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
_REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
_SECRETS = Resource("", "v1", "Secret", "secrets")
_SERVICES = Resource("", "v1", "Service", "services")
_STATEFUL_SETS = Resource("apps", "v1", "StatefulSet", "statefulsets")

_Propagation = Literal["Background", "Orphan"]
# How often objects that are not watched are compared with the desired ones.
_RESYNC = timedelta(minutes=2)
# A deleted control plane has no clients, and its data is deleted too: it does not need the minute
# in which API servers end in order. A pod that a controller or the garbage collector deletes gets
# that minute, and its kubelet cannot shorten it. So the provider orphans the pods when it deletes
# their owners, and evicts them itself.
_STOP_SECONDS = 1


@dataclass(slots=True)
class _Known:
    """The known state of a control plane between two calls."""

    names: Names
    objects: DesiredObjects
    state: Unstructured | None
    """The ConfigMap about etcd's cluster, as it was read."""
    admin: KeyPair
    etcd_client: KeyPair
    ca: bytes
    etcd_ca: bytes
    renew_at: datetime | None
    live: Mapping[Component, Unstructured] = field(default_factory=dict[Component, Unstructured])
    pods: Sequence[Pod] = ()
    members: Sequence[Member] = ()
    statuses: tuple[InstanceStatus, ...] = ()
    synced: tuple[str, datetime] | None = None
    """The digest of the supporting objects that were last compared, and when."""

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

    def planned(self, size: int) -> int:
        """How many members of etcd should run now."""
        return planned_members(self.live.get("etcd"), size)

    @property
    def etcd_state(self) -> EtcdState | None:
        return EtcdState.read(self.state)


class PodsBackend:
    """Runs control planes as pods of the management cluster. They outlive the provider."""

    def __init__(
        self, client: Client, namespace: str | None = None, restore_image: str | None = None
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._restores = RestorePods(client, restore_image)
        self._known: dict[ObjectKey, _Known] = {}

    async def allocate(
        self,
        key: ObjectKey,
        desired: ControlPlane,
        authorities: Authorities,
        address: str | None,
    ) -> Endpoint:
        """Apply the Service of the API servers, and the Secret with renewed certificates."""
        names = Names.of(key)
        secret, state = await asyncio.gather(
            self._client.find(_SECRETS, names.pki, key.namespace),
            self._client.find(_CONFIG_MAPS, names.etcd_state, key.namespace),
        )
        if address is not None and secret is None:
            await self._check_data(names, address, state)
        manifest = api_server_service(desired, names)
        service = await self._ensure(finished(manifest, desired, names))
        endpoint = endpoint_of(desired, names, service, await self._nodes(desired))
        if desired.pods.konnectivity.enabled:
            endpoint = replace(endpoint, agents=await self._agents_endpoint(desired, names))
        present = {
            name: base64.b64decode(content) for name, content in fields_at(secret, "data").items()
        }
        data, renew_at = await asyncio.to_thread(
            pki_data, desired, authorities, names, endpoint, present
        )
        konnectivity_pem = data.get(f"{SERVER_CERTIFICATE}.pem", b"")
        if state is None or _owner(state) != names.control_plane:
            state = await self._create_state(desired, names)
        objects = desired_objects(
            desired, names, manifest, konnectivity_pem, restored=_restored(state)
        )
        if data != present or not is_owned_by(secret, state):
            await self._ensure(pki_secret(desired, names, data, owner=state))
        admin, etcd_client = map(key_pair, (data["admin.pem"], data["apiserver-etcd-client.pem"]))
        if admin is None or etcd_client is None:
            raise ValueError("the provider's own certificates cannot be read")
        before = self._known.get(key)
        self._known[key] = _Known(
            names,
            objects,
            state,
            admin,
            etcd_client,
            authorities.bundle("ca"),
            authorities.bundle("etcd"),
            renew_at,
            synced=before.synced if before else None,
        )
        return endpoint

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        """Read the workloads and pods of a control plane."""
        del endpoint
        known = self._known[key]
        labels = known.names.labels()
        deployments, stateful_sets, pods = await asyncio.gather(
            self._client.list(_DEPLOYMENTS, key.namespace, labels=labels),
            self._client.list(_STATEFUL_SETS, key.namespace, labels=labels),
            self._client.list(Pod, key.namespace, labels=labels),
        )
        known.live = {
            component: workload
            for workload in (*deployments.items, *stateful_sets.items)
            for component in PROGRAMS
            if value_at(workload, "metadata", "labels", COMPONENT_LABEL) == component
        }
        known.pods = pods.items
        known.members = etcd_members(known.objects, known.live, known.pods)
        known.statuses = instance_statuses(known.pods, known.objects.digests)
        serving = (
            status.version
            for status in known.statuses
            if status.component == "kube-apiserver" and status.ready
        )
        state = known.etcd_state
        return Observed(
            statuses=known.statuses,
            complete=is_complete(desired, known.objects, known.statuses)
            and is_resized(state, known.planned(desired.etcd_replicas), desired.etcd_replicas),
            voters=(state and state.voters) or 0,
            losses={member.index: member.loss for member in known.members if member.loss},
            # They serve until they end, with their own settings.
            stopping=frozenset(
                pod.name for pod in known.pods if pod.metadata.deletion_timestamp is not None
            ),
            blocked=downgrade(serving, desired.version),
            renew_at=known.renew_at,
            restore=restore_phase(
                desired.restore,
                restore_files(desired, known.names, known.pods, _restored(known.state)),
                stopped=not known.live and is_stopped(known.pods),
            ),
        )

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        """Apply the objects that may change now, and take the next step of etcd's members."""
        del endpoint
        known = self._known[key]
        if observed.restore is Phase.STOPPING:
            await self._stop(known.names)
            # Its disruption budgets are deleted, too.
            known.synced = None
            return True
        if observed.restore is Phase.REPLACING:
            formed = known.etcd_state or EtcdState("existing", (), None)
            state = formed.of_restore(desired.restore, desired.etcd_replicas)
            replaced = etcd_state(desired, known.names, state)
            known.state = await self._ensure(replaced, known.state)
            return True
        if observed.restore is not Phase.PREPARING:
            await self._restores.delete(known.pods)
        if observed.blocked is not None:
            return False
        size, planned = desired.etcd_replicas, known.planned(desired.etcd_replicas)
        await self._sync(known, desired, planned)
        resizes = "etcd" in known.live and not is_resized(known.etcd_state, planned, size)
        membership, failure = None, None
        try:
            membership = await self._read_members(known, desired) if resizes else None
        except Blocked as error:
            failure = error
        state = known.etcd_state
        workloads = workloads_to_apply(
            desired,
            known.objects,
            known.live,
            observed.statuses,
            members=planned,
            voters=(state and state.voters) or 0,
            started_members=sum(is_member(pod) and is_running(pod) for pod in known.pods),
        )
        applied = [
            await self._ensure(workload.manifest, known.live.get(workload.component))
            is not known.live.get(workload.component)
            for workload in workloads
        ]
        voters = voters_of(known.members, membership)
        votes = len(voters) if state is None or state.voters is None else state.voters
        replacement = next_replacement(voters, votes)
        lost = None if replacement is None else replacement.index
        others = [member for member in known.members if member.index != lost]
        restarts = await self._restart_members(known, others, 0 if resizes else size)
        if replacement is not None:
            await self._replace_member(known, replacement)
            return True
        if failure is not None:
            raise failure
        resized = membership is not None and await self._resize(known, desired, membership)
        return resized or restarts or any(applied)

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        """Nothing to do: the management cluster keeps pods running."""

    async def release(self, key: ObjectKey) -> None:
        self._known.pop(key, None)

    async def allocated(self) -> set[ObjectKey]:
        """The objects that etcd clusters belong to."""
        listed = await self._client.list(
            _STATEFUL_SETS, self._namespace, labels={MANAGED_BY_LABEL: MANAGED_BY}
        )
        return {
            ObjectKey(item["metadata"]["namespace"], owner)
            for item in listed.items
            if (owner := _owner(item))
        }

    async def delete(self, key: ObjectKey) -> None:
        """Delete everything that belongs to a control plane, and wait for its pods to end."""
        names = Names.of(key)
        await self._delete_workloads(names)
        for resource, name in _deletable(names):
            await self._delete_own(names, resource, name)
        await self._empty_secret(names)
        # Last: while it exists, no empty etcd begins. The Secret is garbage collected with it.
        await self._delete_own(names, _CONFIG_MAPS, names.etcd_state)
        if await self._end_pods(names):
            raise Blocked(Reason.STOPPING_PODS, "waiting for its pods to end", retry_seconds=1.0)
        self._known.pop(key, None)

    async def _stop(self, names: Names) -> None:
        """Stop all pods of a control plane, before the restored data takes the place of theirs."""
        await self._delete_workloads(names)
        for component in PROGRAMS:
            await self._delete_own(names, _BUDGETS, names.of_component(component))
        await self._end_pods(names, keeps_restores=True)

    async def _delete_workloads(self, names: Names) -> None:
        """Delete what would create pods, and leave the pods."""
        for component in PROGRAMS:
            workload = _STATEFUL_SETS if component == "etcd" else _DEPLOYMENTS
            name = names.of_component(component)
            await self._delete_own(names, workload, name, "Orphan")
        # After their Deployments and StatefulSet, which would create others.
        for resource in (_REPLICA_SETS, _CONTROLLER_REVISIONS):
            listed = await self._client.list(resource, names.namespace, labels=names.labels())
            for owned in listed.items:
                # The annotations of its owner are its own, too.
                if _belongs_to(owned, resource, names):
                    await self._delete(owned, resource, "Orphan")

    async def _end_pods(self, names: Names, *, keeps_restores: bool = False) -> bool:
        """Evict all pods. Returns whether any still exist."""
        listed = await self._client.list(Pod, names.namespace, labels=names.labels())
        pods = [pod for pod in listed.items if not (keeps_restores and is_restore_pod(pod))]
        for pod in pods:
            # Their disruption budgets are deleted, so nothing holds them.
            await self._evict(names, pod, grace_seconds=_STOP_SECONDS)
        return bool(pods)

    async def close(self) -> None:
        """Close the connections to the management cluster."""
        await self._client.close()

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        """A connection to the member of an index, or to any member that is ready."""
        known = self._known.get(key)
        if known is None:
            raise MembershipError("no etcd member is ready")
        through = ready_member([member.index for member in known.members if member.ready], index)
        async with self._open_member(known, through) as api:
            yield api

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot
    ) -> None:
        """Create the data of all members in their volumes."""
        known = self._known.get(key)
        if known is None or desired.restore is None:
            return
        if desired.pods.etcd_volume.medium == "Memory":
            raise Blocked(
                Reason.RESTORE_REFUSED,
                "spec.pods.etcdVolume.medium: data in memory ends with the pods of etcd",
                "create another control plane with volumes on disk",
            )
        image = await self._restores.find_image()
        placed = {pod.name for pod in known.pods if is_member(pod)}
        manifests = [
            restore_pod(
                desired,
                known.names,
                index,
                known.objects.etcd,
                image=image,
                restored=_restored(known.state),
                is_placed=known.names.member(index) in placed,
            )
            for index in range(desired.etcd_replicas)
        ]
        await self._restores.prepare(manifests, read)

    def client_config(self, endpoint: Endpoint) -> Config:
        for known in self._known.values():
            if known.names.api_server_host == endpoint.address:
                admin = User(known.admin.certificate_pem, known.admin.private_key_pem)
                return Config(Server(endpoint.url, known.ca), admin)
        raise KeyError(endpoint.address)

    async def _replace_member(self, known: _Known, replacement: Replacement) -> None:
        """Have an etcd member that lost its data copy that of the others."""
        names = known.names
        lost = names.member(replacement.index)
        try:
            async with self._member(known, replacement.through) as (url, trust):
                await make_room(url, trust, peer_url(names, replacement.index))
        except MembershipError as error:
            raise Blocked(
                Reason.ETCD_MEMBER_LOST, f"{lost} cannot be replaced yet: {error}"
            ) from error
        await self._delete_own(names, _CLAIMS, names.claim(replacement.index))
        # It is not ready, so its disruption budget allows the eviction.
        await self._evict(names, known.pod(lost), grace_seconds=_STOP_SECONDS)
        _log.warning("%s lost its data, and is replaced from the others", lost)

    @asynccontextmanager
    async def _member(
        self, known: _Known, index: int
    ) -> AsyncGenerator[tuple[str, ssl.SSLContext]]:
        """The URL and the certificates with which the provider reaches a member of etcd."""
        names, client = known.names, known.etcd_client
        trust = tls_context(known.etcd_ca, client.certificate_pem, client.private_key_pem)
        async with forwarded_port(
            self._client.config, names.namespace, names.member(index), ETCD_CLIENT_PORT
        ) as port:
            yield f"https://127.0.0.1:{port}", trust

    def _etcd_members(self, known: _Known) -> EtcdMembers:
        ready = tuple(sorted(member.index for member in known.members if member.ready))
        return EtcdMembers(known.names, ready, partial(self._open_member, known))

    @asynccontextmanager
    async def _open_member(self, known: _Known, index: int) -> AsyncGenerator[EtcdApi]:
        async with self._member(known, index) as (url, trust), connect(url, trust) as api:
            yield api

    async def _read_members(self, known: _Known, desired: ControlPlane) -> Membership | None:
        """Read etcd's own list of members, and store it for those that join."""
        membership = await self._etcd_members(known).read()
        state = known.etcd_state
        if membership is not None and state is not None:
            state = state.of_membership(membership)
            manifest = etcd_state(desired, known.names, state)
            known.state = await self._ensure(manifest, known.state)
        return membership

    async def _resize(self, known: _Known, desired: ControlPlane, membership: Membership) -> bool:
        """Take one step to the desired number of etcd members. Returns whether there is one."""
        ending = any(
            pod.metadata.deletion_timestamp is not None
            and pod.metadata.labels.get(COMPONENT_LABEL) == "kube-apiserver"
            for pod in known.pods
        )
        change = next_change(
            known.members,
            membership,
            started={
                member_index(pod) for pod in known.pods if is_member(pod) and has_started(pod)
            },
            planned=known.planned(desired.etcd_replicas),
            size=desired.etcd_replicas,
            may_shrink=are_api_servers_settled(desired, known.statuses) and not ending,
        )
        match change:
            case None:
                return False
            case Removed(index):
                await self._scale_etcd(known, index)
                await self._delete_own(known.names, _CLAIMS, known.names.claim(index))
            case StartLearner(index):
                # It joins without data. What it had as an earlier member is deleted.
                if await self._has_data(known, index):
                    await self._delete_own(known.names, _CLAIMS, known.names.claim(index))
                    return True
                await self._scale_etcd(known, index + 1)
            case _:
                await self._etcd_members(known).change(change, membership)
        _log.info("etcd of %s: %s", known.names.control_plane, change)
        return True

    async def _scale_etcd(self, known: _Known, members: int) -> None:
        await self._ensure(known.objects.etcd.scaled(members).manifest, known.live.get("etcd"))

    async def _has_data(self, known: _Known, index: int) -> bool:
        """Whether the pod or the volume of a member still exists."""
        names = known.names
        claim = await self._client.find(_CLAIMS, names.claim(index), names.namespace)
        return claim is not None or any(pod.name == names.member(index) for pod in known.pods)

    async def _restart_members(self, known: _Known, members: Sequence[Member], size: int) -> bool:
        """Restart the members that may restart now. Returns whether anything changes."""
        restarts = ordered_restarts(members, None, size)
        if not restarts.members:
            return False
        if len(members) > 1 and all(member.ready for member in members):
            etcd = self._etcd_members(known)
            try:
                membership = await etcd.read()
            except Blocked as error:
                # The restart may be the repair. Only its order depends on the list.
                _log.warning("%s: the leader is not known: %s", known.names.control_plane, error)
                membership = None
            restarts = ordered_restarts(members, membership, size)
            if restarts.move is not None and membership is not None:
                await etcd.change(restarts.move, membership)
                return True
        for name in map(known.names.member, restarts.members):
            # A node that is drained at this moment obeys the same budget.
            if await self._evict(known.names, known.pod(name)):
                _log.info("%s is restarted with another template", name)
        return True

    async def _evict(self, names: Names, pod: Pod, grace_seconds: int | None = None) -> bool:
        """Evict a pod. Returns whether it still existed under this UID."""
        try:
            return await self._client.evict(
                pod.name, names.namespace, uid=pod.uid, grace_seconds=grace_seconds
            )
        except TooManyRequests as error:
            raise Blocked(
                Reason.WAITING_FOR_BUDGET,
                f"the disruption budget of {pod.name} does not allow its eviction yet",
            ) from error
        except Conflict:
            # A pod with the same name has replaced it already.
            return False

    async def _check_data(self, names: Names, address: str, state: Unstructured | None) -> None:
        """Reject a control plane that ran before and whose data is missing."""
        etcd, claim = await asyncio.gather(
            self._client.find(_STATEFUL_SETS, names.of_component("etcd"), names.namespace),
            self._client.find(_CLAIMS, names.claim(0), names.namespace),
        )
        if address != names.api_server_host or not (state or etcd or claim):
            raise Blocked(
                Reason.DATA_MISSING,
                f"the control plane ran as {address}, and nothing of it is in namespace"
                f" {names.namespace}: a new etcd in its place would be an empty cluster",
                "restore its PersistentVolumeClaims and its StatefulSet from a backup",
            )

    async def _agents_endpoint(self, desired: ControlPlane, names: Names) -> AgentsEndpoint:
        service = await self._ensure(finished(agents_service(desired, names), desired, names))
        return agents_endpoint_of(desired, service, await self._nodes(desired))

    async def _nodes(self, desired: ControlPlane) -> Sequence[Node]:
        """The nodes of the management cluster, where the endpoint is one of theirs."""
        is_needed = desired.host is None and desired.pods.exposure.type == "NodePort"
        return (await self._client.list(Node)).items if is_needed else ()

    async def _sync(self, known: _Known, desired: ControlPlane, planned: int) -> None:
        """Apply the objects that support the workloads, unless they were compared a moment ago."""
        names, objects = known.names, known.objects
        state = next_etcd_state(
            known.etcd_state,
            [status.ready for status in known.statuses if status.component == "etcd"],
            planned,
            has_etcd="etcd" in known.live,
        )
        known.state = await self._ensure(etcd_state(desired, names, state), known.state)
        digest = hashlib.sha256(json.dumps(objects.supporting, sort_keys=True).encode()).hexdigest()
        if known.synced and known.synced[0] == digest and desired.now - known.synced[1] < _RESYNC:
            return
        await asyncio.gather(*map(self._ensure, objects.supporting))
        if not desired.pods.konnectivity.enabled:
            await self._delete_own(names, _SERVICES, names.konnectivity)
        known.synced = digest, desired.now

    async def _create_state(self, desired: ControlPlane, names: Names) -> Unstructured:
        name = names.of_component("etcd")
        live = await self._client.find(_STATEFUL_SETS, name, names.namespace)
        planned = planned_members(live, desired.etcd_replicas)
        state = next_etcd_state(None, (), planned, has_etcd=live is not None)
        # Without it, members would use their data from before the restore.
        restored = value_at(live, "metadata", "annotations", RESTORED_ANNOTATION)
        state = replace(state, restored=restored)
        return await self._ensure(etcd_state(desired, names, state))

    async def _empty_secret(self, names: Names) -> None:
        """Remove the keys at once, without the permission to delete Secrets."""
        live = await self._client.find(_SECRETS, names.pki, names.namespace)
        if live is not None and _owner(live) == names.control_plane and live.get("data"):
            await self._client.apply(without_data(live), resource=_SECRETS, manager=MANAGER)

    async def _ensure(
        self, manifest: Unstructured, live: Unstructured | None = None
    ) -> Unstructured:
        """Apply an object unless it is as desired. Returns the live object."""
        resource, metadata = resource_of(manifest), manifest["metadata"]
        if live is None:
            live = await self._client.find(resource, metadata["name"], metadata["namespace"])
        if live is not None:
            if _owner(live) != _owner(manifest):
                raise Blocked(
                    Reason.NAME_TAKEN,
                    f"{resource.kind} {metadata['name']} in namespace {metadata['namespace']} is"
                    " not this control plane's",
                    "delete it, or give the control plane another name",
                )
            if not needs_apply(live, manifest, MANAGER):
                return live
        try:
            return await self._client.apply(manifest, resource=resource, manager=MANAGER)
        except Invalid as error:
            raise Blocked(
                Reason.INVALID_CONFIGURATION,
                f"the management cluster refuses {resource.kind} {metadata['name']}: {error}",
            ) from error

    async def _delete_own(
        self, names: Names, resource: Resource, name: str, propagation: _Propagation = "Background"
    ) -> None:
        live = await self._client.find(resource, name, names.namespace)
        if live is not None and _belongs_to(live, resource, names):
            await self._delete(live, resource, propagation)

    async def _delete(
        self, live: Unstructured, resource: Resource, propagation: _Propagation
    ) -> None:
        metadata = live["metadata"]
        if not metadata.get("deletionTimestamp"):
            await self._client.delete(
                resource,
                metadata["name"],
                metadata["namespace"],
                uid=metadata["uid"],
                propagation=propagation,
            )


def _restored(state: Unstructured | None) -> str | None:
    """The restore whose data is in use."""
    return value_at(state, "data", RESTORED_KEY)


def _owner(live: Unstructured) -> str | None:
    return owner_of(
        fields_at(live, "metadata", "labels"), fields_at(live, "metadata", "annotations")
    )


def _belongs_to(live: Unstructured, resource: Resource, names: Names) -> bool:
    if resource is _CLAIMS:
        # A StatefulSet gives its claims labels, and no annotations.
        return names.labels("etcd").items() <= fields_at(live, "metadata", "labels").items()
    return _owner(live) == names.control_plane


def _deletable(names: Names) -> list[tuple[Resource, str]]:
    components = [names.of_component(component) for component in PROGRAMS]
    return [
        *((_SERVICES, name) for name in (*components[:2], names.etcd_members, names.konnectivity)),
        *((_BUDGETS, name) for name in components),
        *((_NETWORK_POLICIES, name) for name in components),
        *((_CLAIMS, names.claim(index)) for index in range(MOST_MEMBERS)),
    ]
