"""The known state of a control plane on pods between two calls of its reconciler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from capelin.api import Unstructured
from capelin.api.core import Pod
from capelin.pki import KeyPair

from capelin_control_plane.backends.pods.etcd_state import EtcdState, planned_members
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.objects import DesiredObjects
from capelin_control_plane.desired.control_plane import Component
from capelin_control_plane.desired.instances import InstanceStatus
from capelin_control_plane.etcd.rules import Member


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
