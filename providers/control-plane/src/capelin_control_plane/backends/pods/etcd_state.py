"""The stored state of etcd's cluster on pods, and the changes of its members. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.names import ETCD_PEER_PORT, Names
from capelin_control_plane.backends.pods.trees import fields_at, value_at
from capelin_control_plane.etcd.rules import ClusterState, Member, Membership, next_cluster_state

STATE_KEY = "initial-cluster-state"
MEMBERS_KEY = "initial-cluster"
RESTORED_KEY = "restored"
_VOTERS_KEY = "voters"

_MEMBER = re.compile(r"-(\d+)=")


@dataclass(frozen=True, slots=True)
class EtcdState:
    """The state of etcd's cluster that outlives its pods."""

    cluster: ClusterState
    """Whether it has formed. If it has, a member without data joins it."""
    members: tuple[int, ...]
    """The members that the cluster has. One that joins must start with the same list."""
    voters: int | None
    """How many of them vote. None if the provider has to read etcd's own list."""
    restored: str | None = None
    """The restore whose data is in use. Without it, members use the folder of their first data."""

    @classmethod
    def read(cls, config_map: Unstructured | None) -> "EtcdState | None":
        """The stored state. None if it does not exist any more, or is damaged."""
        data = fields_at(config_map, "data")
        cluster, voters = data.get(STATE_KEY), str(data.get(_VOTERS_KEY))
        if cluster not in {"new", "existing"}:
            return None
        return cls(
            cast("ClusterState", cluster),
            tuple(map(int, _MEMBER.findall(str(data.get(MEMBERS_KEY))))),
            int(voters) if voters.isdecimal() else None,
            data.get(RESTORED_KEY),
        )

    @classmethod
    def of(cls, config_map: Unstructured) -> "EtcdState":
        """The state in a ConfigMap that the provider has written.

        Raises:
            ValueError: it is damaged.
        """
        state = cls.read(config_map)
        if state is None:
            raise ValueError("the state of etcd cannot be read")
        return state

    def of_membership(self, membership: Membership) -> "EtcdState":
        """The state after etcd's own list of members was read."""
        voters = [member for member in membership.members.values() if not member.learner]
        return replace(self, members=tuple(sorted(membership.members)), voters=len(voters))

    def data(self, names: Names) -> Mapping[str, str]:
        """The data of the ConfigMap."""
        peers = [f"{names.member(index)}={peer_url(names, index)}" for index in self.members]
        voters = {} if self.voters is None else {_VOTERS_KEY: str(self.voters)}
        restored = {} if self.restored is None else {RESTORED_KEY: self.restored}
        return {STATE_KEY: self.cluster, MEMBERS_KEY: ",".join(peers), **voters, **restored}

    def of_restore(self, restored: str | None, size: int) -> "EtcdState":
        """The state after a restore: its data is that of a new cluster of this size."""
        return EtcdState(self.cluster, tuple(range(size)), size, restored)


def peer_url(names: Names, index: int) -> str:
    """Where the other members reach a member."""
    return f"https://{names.member_host(index)}:{ETCD_PEER_PORT}"


def planned_members(stateful_set: Unstructured | None, size: int) -> int:
    """How many members the StatefulSet runs: this number if it does not exist, or runs none."""
    replicas: Any = value_at(stateful_set, "spec", "replicas")
    return replicas if isinstance(replicas, int) and replicas > 0 else size


def next_etcd_state(
    present: EtcdState | None, ready: Sequence[bool], planned: int, *, has_etcd: bool
) -> EtcdState:
    """The state to store.

    Args:
        present: The stored state.
        ready: For each member that runs, whether it is ready.
        planned: How many members the StatefulSet runs.
        has_etcd: Whether anything of etcd exists.
    """
    cluster = next_cluster_state(present and present.cluster, ready, planned, has_etcd=has_etcd)
    restored = present and present.restored
    if not has_etcd:
        return EtcdState(cluster, tuple(range(planned)), planned, restored)
    members = present.members if present and present.members else tuple(range(planned))
    return EtcdState(cluster, members, present and present.voters, restored)


def is_resized(state: EtcdState | None, planned: int, size: int) -> bool:
    """Whether exactly the desired members run, and all of them vote."""
    return state is not None and state.voters == planned == size


def voters_of(members: Collection[Member], membership: Membership | None) -> list[Member]:
    """The members that count for the quorum."""
    if membership is None:
        return list(members)
    learners = {index for index, member in membership.members.items() if member.learner}
    return [member for member in members if member.index not in learners]
