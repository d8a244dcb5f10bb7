"""Control planes as pods of the management cluster: objects applied, and their pods observed."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from capelin.api import Unstructured
from capelin.api.core import Node, Pod
from capelin.client import (
    Client,
    Config,
    Server,
    User,
)
from capelin.controller import ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.pods.deletion import (
    delete_everything,
    is_etcd_pod,
    stop_clients,
    stop_pods,
)
from capelin_control_plane.backends.pods.etcd_changes import EtcdChanges, PodMembers
from capelin_control_plane.backends.pods.exposure import (
    agents_endpoint_of,
    api_server_service,
    endpoint_of,
    own_hosts,
)
from capelin_control_plane.backends.pods.konnectivity import agents_service
from capelin_control_plane.backends.pods.membership import (
    EtcdState,
    is_resized,
    next_etcd_state,
    planned_members,
)
from capelin_control_plane.backends.pods.names import (
    COMPONENT_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    RESTORED_ANNOTATION,
    Names,
    fields_at,
    value_at,
)
from capelin_control_plane.backends.pods.objects import (
    desired_objects,
    etcd_state,
    finished,
    is_owned_by,
    pki_secret,
)
from capelin_control_plane.backends.pods.own_objects import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Known,
    OwnObjects,
    belongs_to,
    owner,
)
from capelin_control_plane.backends.pods.pki_secret import pki_data
from capelin_control_plane.backends.pods.pod_status import (
    Displaced,
    displaced_members,
    instance_statuses,
    is_member,
    is_ready,
    is_running,
)
from capelin_control_plane.backends.pods.restore_pods import (
    RestorePods,
    is_stopped,
    restore_files,
    restore_pod,
)
from capelin_control_plane.backends.pods.rollout import (
    etcd_members,
    is_complete,
    workloads_to_apply,
)
from capelin_control_plane.backup.restores import restore_phase
from capelin_control_plane.desired.control_plane import PROGRAMS, ControlPlane
from capelin_control_plane.desired.instances import (
    AgentsEndpoint,
    Endpoint,
    Observed,
    Phase,
    Remains,
    downgrade,
)
from capelin_control_plane.etcd.api import (
    EtcdApi,
    MembershipError,
    ready_member,
)
from capelin_control_plane.keys.certificates import SERVER_CERTIFICATE, Authorities, key_pair

# How often objects that are not watched are compared with the desired ones.
_RESYNC = timedelta(minutes=2)


class PodsBackend:
    """Runs control planes as pods of the management cluster. They outlive the provider."""

    def __init__(
        self, client: Client, namespace: str | None = None, restore_image: str | None = None
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._restores = RestorePods(client, restore_image)
        self._own = OwnObjects(client)
        self._etcd = EtcdChanges(self._own)
        self._known: dict[ObjectKey, Known] = {}

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
            self._client.find(SECRETS, names.pki, key.namespace),
            self._client.find(CONFIG_MAPS, names.etcd_state, key.namespace),
        )
        if address is not None and secret is None and desired.restore is None:
            await self._check_data(names, address, state)
        manifest = api_server_service(desired, names)
        service = await self._own.ensure(finished(manifest, desired, names))
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
        if state is None or EtcdState.read(state) is None or owner(state) != names.control_plane:
            state = await self._create_state(desired, names)
        objects = desired_objects(
            desired, names, manifest, konnectivity_pem, restored=EtcdState.of(state).restored
        )
        if data != present or not is_owned_by(secret, state):
            await self._own.ensure(pki_secret(desired, names, data, owner=state))
        admin, etcd_client = map(key_pair, (data["admin.pem"], data["apiserver-etcd-client.pem"]))
        if admin is None or etcd_client is None:
            raise ValueError("the provider's own certificates cannot be read")
        before = self._known.get(key)
        self._known[key] = Known(
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
            self._client.list(DEPLOYMENTS, key.namespace, labels=labels),
            self._client.list(STATEFUL_SETS, key.namespace, labels=labels),
            self._client.list(Pod, key.namespace, labels=labels),
        )
        known.live = {
            component: workload
            for workload in (*deployments.items, *stateful_sets.items)
            for component in PROGRAMS
            if value_at(workload, "metadata", "labels", COMPONENT_LABEL) == component
        }
        known.pods = pods.items
        displaced = await self._displaced(known, desired)
        known.members = etcd_members(known.objects, known.live, known.pods, displaced.indexes)
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
            voters=state.voters or 0,
            losses={member.index: member.loss for member in known.members if member.loss},
            alive=frozenset(pod.name for pod in known.pods),
            # They serve until they end, with their own settings.
            stopping=frozenset(
                pod.name for pod in known.pods if pod.metadata.deletion_timestamp is not None
            ),
            blocked=downgrade(serving, desired.version),
            renew_at=known.renew_at,
            replace_at=displaced.next,
            restore=restore_phase(
                desired.restore,
                restore_files(desired, known.names, known.pods, state.restored),
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
            await stop_pods(self._own, known.names)
            # Its disruption budgets are deleted, too.
            known.synced = None
            return True
        if observed.restore is Phase.REPLACING:
            state = known.etcd_state.of_restore(desired.restore, desired.etcd_replicas)
            replaced = etcd_state(desired, known.names, state)
            # A late write of a former leader must not undo a newer restore.
            known.state = await self._own.ensure(replaced, known.state, is_unchanged=True)
            return True
        if observed.restore is not Phase.PREPARING:
            await self._restores.delete(known.pods)
        if desired.asleep:
            return await self._fall_asleep(known)
        if observed.blocked is not None:
            return False
        planned = known.planned(desired.etcd_replicas)
        await self._sync(known, desired, planned)
        changes = await self._etcd.read(known, desired)
        workloads = workloads_to_apply(
            desired,
            known.objects,
            known.live,
            observed.statuses,
            members=planned,
            voters=known.etcd_state.voters or 0,
            started_members=sum(is_member(pod) and is_running(pod) for pod in known.pods),
            awaits_data=observed.awaits_data,
        )
        applied = [
            await self._own.ensure(workload.manifest, known.live.get(workload.component))
            is not known.live.get(workload.component)
            for workload in workloads
        ]
        return await self._etcd.apply(known, desired, changes) or any(applied)

    async def own_hosts(self, key: ObjectKey) -> frozenset[str]:
        """The addresses that this management cluster gives to a control plane."""
        name = Names.of(key).of_component("kube-apiserver")
        service, nodes = await asyncio.gather(
            self._client.find(SERVICES, name, key.namespace), self._client.list(Node)
        )
        return own_hosts(service, nodes.items)

    async def remains(self, key: ObjectKey) -> Remains:
        """The objects of a control plane that still exist."""
        names = Names.of(key)
        labels = names.labels()
        deployments, replica_sets, stateful_sets, services, pods = await asyncio.gather(
            self._client.list(DEPLOYMENTS, key.namespace, labels=labels),
            self._client.list(REPLICA_SETS, key.namespace, labels=labels),
            self._client.list(STATEFUL_SETS, key.namespace, labels=labels),
            self._client.list(SERVICES, key.namespace, labels=labels),
            self._client.list(Pod, key.namespace, labels=labels),
        )
        # A ReplicaSet that outlives its Deployment creates pods again.
        creates_pods = bool(deployments.items) or any(
            belongs_to(item, REPLICA_SETS, names) for item in replica_sets.items
        )
        return Remains(
            clients=creates_pods or not all(map(is_etcd_pod, pods.items)),
            others=bool(stateful_sets.items or services.items or pods.items),
        )

    async def stop_clients(self, key: ObjectKey) -> None:
        """Stop the pods that use etcd, and leave its members."""
        await stop_clients(self._own, Names.of(key))

    async def stop(self, key: ObjectKey) -> None:
        """Delete everything but the volumes of etcd and its state."""
        with suppress(Blocked):
            await delete_everything(self._own, Names.of(key), keeps_data=True)
        self._known.pop(key, None)

    async def _fall_asleep(self, known: Known) -> bool:
        """Scale all workloads to 0, etcd last. Their volumes stay."""
        # API servers that end still answer requests, for up to a minute.
        clients = not all(map(is_etcd_pod, known.pods))
        changed = False
        for component, workload in known.live.items():
            is_etcd = component == "etcd"
            if value_at(workload, "spec", "replicas") != 0 and not (is_etcd and clients):
                await self._own.stop(workload, STATEFUL_SETS if is_etcd else DEPLOYMENTS)
                changed = True
        return changed

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        """Nothing to do: the management cluster keeps pods running."""

    async def release(self, key: ObjectKey) -> None:
        self._known.pop(key, None)

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        """Nothing to do: Kubernetes keeps the pods running."""
        del key, address
        return frozenset()

    async def allocated(self) -> set[ObjectKey]:
        """The objects that etcd clusters belong to."""
        listed = await self._client.list(
            STATEFUL_SETS, self._namespace, labels={MANAGED_BY_LABEL: MANAGED_BY}
        )
        return {
            ObjectKey(item["metadata"]["namespace"], name)
            for item in listed.items
            if (name := owner(item))
        }

    async def delete(self, key: ObjectKey) -> None:
        """Delete everything that belongs to a control plane, and wait for its pods to end."""
        await delete_everything(self._own, Names.of(key))
        self._known.pop(key, None)

    async def close(self) -> None:
        """Close the connections to the management cluster."""
        await self._client.close()

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        """A connection to the member of an index, or to any member that is ready."""
        known = self._known.get(key)
        if known is None:
            raise MembershipError("no etcd member is ready")
        members = PodMembers(self._own, known)
        async with members.open(ready_member(members.ready, index)) as api:
            yield api

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
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
                restored=known.etcd_state.restored,
                bump=bump,
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

    async def _check_data(self, names: Names, address: str, state: Unstructured | None) -> None:
        """Reject a control plane that ran before and whose data is missing."""
        etcd, claim = await asyncio.gather(
            self._client.find(STATEFUL_SETS, names.of_component("etcd"), names.namespace),
            self._client.find(CLAIMS, names.claim(0), names.namespace),
        )
        if address != names.api_server_host or not (state or etcd or claim):
            raise Blocked(
                Reason.DATA_MISSING,
                f"the control plane ran as {address}, and nothing of it is in namespace"
                f" {names.namespace}: a new etcd in its place would be an empty cluster",
                "restore its PersistentVolumeClaims and its StatefulSet from a backup",
            )

    async def _agents_endpoint(self, desired: ControlPlane, names: Names) -> AgentsEndpoint:
        service = await self._own.ensure(finished(agents_service(desired, names), desired, names))
        return agents_endpoint_of(desired, service, await self._nodes(desired))

    async def _nodes(self, desired: ControlPlane) -> Sequence[Node]:
        """The nodes of the management cluster, where the endpoint is one of theirs."""
        is_needed = desired.host is None and desired.pods.exposure.type == "NodePort"
        return (await self._client.list(Node)).items if is_needed else ()

    async def _displaced(self, known: Known, desired: ControlPlane) -> Displaced:
        """The members that are to be replaced because they have no usable node."""
        seconds = desired.pods.placement.replace_members_after_seconds
        members = [pod for pod in known.pods if is_member(pod)]
        if seconds is None or all(map(is_ready, members)):
            return Displaced()
        nodes = (await self._client.list(Node)).items
        return displaced_members(members, nodes, desired.now, timedelta(seconds=seconds))

    async def _sync(self, known: Known, desired: ControlPlane, planned: int) -> None:
        """Apply the objects that support the workloads, unless they were compared a moment ago."""
        names, objects = known.names, known.objects
        state = next_etcd_state(
            known.etcd_state,
            [status.ready for status in known.statuses if status.component == "etcd"],
            planned,
            has_etcd="etcd" in known.live,
        )
        known.state = await self._own.ensure(etcd_state(desired, names, state), known.state)
        digest = hashlib.sha256(json.dumps(objects.supporting, sort_keys=True).encode()).hexdigest()
        if known.synced and known.synced[0] == digest and desired.now - known.synced[1] < _RESYNC:
            return
        await asyncio.gather(*map(self._own.ensure, objects.supporting))
        if not desired.pods.konnectivity.enabled:
            await self._own.delete(names, SERVICES, names.konnectivity)
        known.synced = digest, desired.now

    async def _create_state(self, desired: ControlPlane, names: Names) -> Unstructured:
        name = names.of_component("etcd")
        live = await self._client.find(STATEFUL_SETS, name, names.namespace)
        planned = planned_members(live, desired.etcd_replicas)
        state = next_etcd_state(None, (), planned, has_etcd=live is not None)
        # Without it, members would use their data from before the restore.
        restored = value_at(live, "metadata", "annotations", RESTORED_ANNOTATION)
        state = replace(state, restored=restored)
        return await self._own.ensure(etcd_state(desired, names, state))
