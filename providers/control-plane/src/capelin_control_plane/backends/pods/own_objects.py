"""Applies, deletes and evicts the objects of control planes, and none of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from capelin.api import Resource, Unstructured, resource_of
from capelin.api.core import Pod
from capelin.client import Client, Conflict, Invalid, TooManyRequests, needs_apply
from capelin.pki import KeyPair
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.pods.membership import EtcdState, planned_members
from capelin_control_plane.backends.pods.names import Names, fields_at, owner_of
from capelin_control_plane.backends.pods.objects import DesiredObjects, without_data
from capelin_control_plane.desired.control_plane import Component
from capelin_control_plane.desired.instances import InstanceStatus
from capelin_control_plane.etcd.rules import Member

MANAGER = "capelin-control-plane-pods"

CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
CONTROLLER_REVISIONS = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
SECRETS = Resource("", "v1", "Secret", "secrets")
SERVICES = Resource("", "v1", "Service", "services")
STATEFUL_SETS = Resource("apps", "v1", "StatefulSet", "statefulsets")

# A deleted control plane has no clients, and its data is deleted too: it does not need the minute
# in which API servers end in order. A pod that a controller or the garbage collector deletes gets
# that minute, and its kubelet cannot shorten it. So the provider orphans the pods when it deletes
# their owners, and evicts them itself.
STOP_SECONDS = 1

Propagation = Literal["Background", "Orphan"]


@dataclass(slots=True)
class Known:
    """A control plane as it should be, and as it was read last."""

    names: Names
    objects: DesiredObjects
    state: Unstructured
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
        live = self.live.get("etcd")
        # Asleep, the StatefulSet runs none of the members.
        return planned_members(live, size if live is None else len(self.etcd_state.members) or size)

    @property
    def etcd_state(self) -> EtcdState:
        return EtcdState.of(self.state)

    @property
    def ready_members(self) -> list[int]:
        return sorted(member.index for member in self.members if member.ready)


@dataclass(frozen=True, slots=True)
class OwnObjects:
    """The objects of control planes in the management cluster."""

    client: Client

    async def ensure(
        self,
        manifest: Unstructured,
        live: Unstructured | None = None,
        *,
        is_unchanged: bool = False,
    ) -> Unstructured:
        """Apply an object unless it is as desired. Returns the live object.

        Args:
            manifest: The desired object.
            live: The object as it was read.
            is_unchanged: Whether it must not have changed since.
        """
        resource, metadata = resource_of(manifest), manifest["metadata"]
        if live is None:
            live = await self.client.find(resource, metadata["name"], metadata["namespace"])
        if live is not None:
            if owner(live) != owner(manifest):
                raise Blocked(
                    Reason.NAME_TAKEN,
                    f"{resource.kind} {metadata['name']} in namespace {metadata['namespace']} is"
                    " not this control plane's",
                    "delete it, or give the control plane another name",
                )
            if not needs_apply(live, manifest, MANAGER):
                return live
        try:
            version = live["metadata"]["resourceVersion"] if live and is_unchanged else None
            return await self.client.apply(
                manifest, resource=resource, manager=MANAGER, version=version
            )
        except Invalid as error:
            raise Blocked(
                Reason.INVALID_CONFIGURATION,
                f"the management cluster refuses {resource.kind} {metadata['name']}: {error}",
            ) from error

    async def stop(self, live: Unstructured, resource: Resource) -> None:
        """Have a workload run no pods."""
        metadata = live["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "spec": {"replicas": 0}}
        await self.client.patch(resource, metadata["name"], metadata["namespace"], patch)

    async def delete(
        self, names: Names, resource: Resource, name: str, propagation: Propagation = "Background"
    ) -> None:
        """Delete an object if it belongs to the control plane."""
        live = await self.client.find(resource, name, names.namespace)
        if live is not None and belongs_to(live, resource, names):
            await self.delete_live(live, resource, propagation)

    async def delete_live(
        self, live: Unstructured, resource: Resource, propagation: Propagation
    ) -> None:
        """Delete an object by its UID."""
        metadata = live["metadata"]
        if not metadata.get("deletionTimestamp"):
            await self.client.delete(
                resource,
                metadata["name"],
                metadata["namespace"],
                uid=metadata["uid"],
                propagation=propagation,
            )

    async def evict(self, pod: Pod, grace_seconds: int | None = None) -> bool:
        """Evict a pod. Returns whether it still existed under this UID."""
        try:
            return await self.client.evict(
                pod.name, pod.namespace or "", uid=pod.uid, grace_seconds=grace_seconds
            )
        except TooManyRequests as error:
            raise Blocked(
                Reason.WAITING_FOR_BUDGET,
                f"the disruption budget of {pod.name} does not allow its eviction yet",
            ) from error
        except Conflict:
            # A pod with the same name has replaced it already.
            return False

    async def empty_secret(self, names: Names) -> None:
        """Remove the keys at once, without the permission to delete Secrets."""
        live = await self.client.find(SECRETS, names.pki, names.namespace)
        if live is not None and owner(live) == names.control_plane and live.get("data"):
            await self.client.apply(without_data(live), resource=SECRETS, manager=MANAGER)


def owner(live: Unstructured) -> str | None:
    """The name of the control plane to which an object belongs."""
    return owner_of(
        fields_at(live, "metadata", "labels"), fields_at(live, "metadata", "annotations")
    )


def belongs_to(live: Unstructured, resource: Resource, names: Names) -> bool:
    """Whether an object belongs to a control plane."""
    if resource is CLAIMS:
        # A StatefulSet gives its claims labels, and no annotations.
        return names.labels("etcd").items() <= fields_at(live, "metadata", "labels").items()
    return owner(live) == names.control_plane
