"""Takes the next step of etcd's members on pods: replace, restart, add or remove one."""

import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from capelin.client import tls_context
from capelin.provider import Blocked

from capelin_control_plane.backends.etcd_members import change_members, read_members, replace_member
from capelin_control_plane.backends.pods.membership import (
    forwarded_port,
    is_resized,
    next_change,
    ordered_restarts,
    peer_url,
    voters_of,
)
from capelin_control_plane.backends.pods.names import ETCD_CLIENT_PORT
from capelin_control_plane.backends.pods.objects import etcd_state
from capelin_control_plane.backends.pods.own_objects import CLAIMS, STOP_SECONDS, Known, OwnObjects
from capelin_control_plane.backends.pods.pod_status import (
    has_started,
    is_ending_server,
    is_member,
    member_index,
)
from capelin_control_plane.backends.pods.rollout import are_api_servers_settled
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.etcd.api import EtcdApi, connect
from capelin_control_plane.etcd.rules import (
    Loss,
    Member,
    Membership,
    Removed,
    Replacement,
    next_replacement,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resizing:
    """The number of members differs from the desired one, or is not known."""

    membership: Membership | None = None
    """etcd's own list of members. None if no member returned it."""
    failure: Blocked | None = None


@dataclass(frozen=True, slots=True)
class PodMembers:
    """The members of one control plane, for `backends.etcd_members`."""

    own: OwnObjects
    known: Known

    @property
    def ready(self) -> Sequence[int]:
        return self.known.ready_members

    @asynccontextmanager
    async def open(self, index: int) -> AsyncGenerator[EtcdApi]:
        """A connection to a member, through the API server."""
        names, client = self.known.names, self.known.etcd_client
        trust = tls_context(self.known.etcd_ca, client.certificate_pem, client.private_key_pem)
        async with (
            forwarded_port(
                self.own.client.config, names.namespace, names.member(index), ETCD_CLIENT_PORT
            ) as port,
            connect(f"https://127.0.0.1:{port}", trust) as api,
        ):
            yield api

    def peer_url(self, index: int) -> str:
        return peer_url(self.known.names, index)

    async def start_learner(self, index: int, present: Membership) -> None:
        """Delete the volume of an earlier member with its name, and then start its pod."""
        del present
        names = self.known.names
        claim = await self.own.client.find(CLAIMS, names.claim(index), names.namespace)
        if claim is None and all(pod.name != names.member(index) for pod in self.known.pods):
            await self.scale(index + 1)
        else:
            await self.own.delete(names, CLAIMS, names.claim(index))

    async def start_again(self, replacement: Replacement, listed: Collection[int]) -> None:
        """Delete the volume and the pod of a lost member. The StatefulSet creates another pod."""
        del listed
        names = self.known.names
        member = names.member(replacement.index)
        await self.own.delete(names, CLAIMS, names.claim(replacement.index))
        is_displaced = replacement.loss is Loss.DISPLACED
        # It is not ready, so its budget allows the eviction. A lost kubelet never reports
        # the end of its pod. If it still runs, the others reject it.
        await self.own.evict(self.known.pod(member), 0 if is_displaced else STOP_SECONDS)
        lost_part = "node" if is_displaced else "data"
        _log.warning("%s lost its %s, and is replaced from the others", member, lost_part)

    async def scale(self, members: int) -> None:
        """Have the StatefulSet run so many members."""
        manifest = self.known.objects.etcd.scaled(members).manifest
        await self.own.ensure(manifest, self.known.live.get("etcd"))


@dataclass(frozen=True, slots=True)
class EtcdChanges:
    """Changes of the members of control planes."""

    own: OwnObjects

    async def read(self, known: Known, desired: ControlPlane) -> Resizing | None:
        """Read etcd's own list of members while their number changes, and store it.

        A member that joins starts with the stored list. None: all desired members vote.
        """
        size = desired.etcd_replicas
        if "etcd" not in known.live or is_resized(known.etcd_state, known.planned(size), size):
            return None
        try:
            membership = await read_members(PodMembers(self.own, known))
        except Blocked as error:
            return Resizing(failure=error)
        if membership is not None:
            state = known.etcd_state.of_membership(membership)
            manifest = etcd_state(desired, known.names, state)
            known.state = await self.own.ensure(manifest, known.state)
        return Resizing(membership)

    async def apply(self, known: Known, desired: ControlPlane, resizing: Resizing | None) -> bool:
        """Take the next step. Returns whether there is one.

        Raises:
            Blocked: a step is not possible yet.
        """
        membership = resizing.membership if resizing else None
        voters = voters_of(known.members, membership)
        replacement = next_replacement(voters, known.etcd_state.voters or len(voters))
        lost = None if replacement is None else replacement.index
        others = [member for member in known.members if member.index != lost]
        # While their number changes, only members that are down restart.
        restarts = await self._restart(known, others, 0 if resizing else desired.etcd_replicas)
        if replacement is not None:
            await replace_member(PodMembers(self.own, known), replacement)
            return True
        if resizing is None:
            return restarts
        if resizing.failure is not None:
            raise resizing.failure
        return membership is not None and await self._resize(known, desired, membership)

    async def _restart(self, known: Known, members: Sequence[Member], size: int) -> bool:
        """Restart the members that may restart now. Returns whether anything changes."""
        restarts = ordered_restarts(members, None, size)
        if not restarts.members:
            return False
        if len(members) > 1 and all(member.ready for member in members):
            etcd = PodMembers(self.own, known)
            try:
                membership = await read_members(etcd)
            except Blocked as error:
                # The restart may be the repair. Only its order depends on the list.
                _log.warning("%s: the leader is not known: %s", known.names.control_plane, error)
                membership = None
            restarts = ordered_restarts(members, membership, size)
            if restarts.move is not None and membership is not None:
                await change_members(etcd, restarts.move, membership)
                return True
        for name in map(known.names.member, restarts.members):
            # A node that is drained at this moment obeys the same budget.
            if await self.own.evict(known.pod(name)):
                _log.info("%s is restarted with another template", name)
        return True

    async def _resize(self, known: Known, desired: ControlPlane, membership: Membership) -> bool:
        """Take one step to the desired number of members. Returns whether there is one."""
        ending = any(is_ending_server(pod, datetime.now(UTC)) for pod in known.pods)
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
        members = PodMembers(self.own, known)
        match change:
            case None:
                return False
            case Removed(index):
                # First, because the other write completes the step for the next provider.
                await self.own.delete(known.names, CLAIMS, known.names.claim(index))
                await members.scale(index)
            case _:
                await change_members(members, change, membership)
        _log.info("etcd of %s: %s", known.names.control_plane, change)
        return True
