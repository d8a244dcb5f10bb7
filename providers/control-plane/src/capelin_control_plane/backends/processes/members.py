"""The members of etcd on processes, as `backends.etcd_members` changes them."""

import asyncio
import shutil
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import etcd_peer_url, joining
from capelin_control_plane.backends.processes.supervised import Supervised
from capelin_control_plane.desired.instances import DesiredComponents
from capelin_control_plane.etcd.api import EtcdApi
from capelin_control_plane.etcd.rules import Membership, Replacement


@dataclass(frozen=True, slots=True)
class ProcessMembers:
    """The members of one control plane."""

    supervised: Supervised
    desired: DesiredComponents

    @property
    def ready(self) -> Sequence[int]:
        return self.supervised.ready_voters

    def open(self, index: int) -> AbstractAsyncContextManager[EtcdApi]:
        return member_data.connect(self.supervised.state_dir, index)

    def peer_url(self, index: int) -> str:
        return etcd_peer_url(self.supervised.state_dir, index)

    async def start_learner(self, index: int, present: Membership) -> None:
        state_dir = self.supervised.state_dir
        # First: a member that is marked and has no data counts as one that lost it.
        member_data.unmark_joined(state_dir, index)
        await asyncio.to_thread(member_data.clear_data, state_dir, index, datetime.now(UTC))
        member = joining(self.desired.etcd[index], present.members.keys(), state_dir)
        learner = replace(member, is_learner=True)
        self.supervised.set_plan(self.supervised.plan.including(learner))

    async def start_again(self, replacement: Replacement, listed: Collection[int]) -> None:
        state_dir, index = self.supervised.state_dir, replacement.index
        data = state_dir.etcd_data(index)
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
        member = joining(self.desired.etcd[index], listed, state_dir)
        plan = self.supervised.plan.including(member)
        state_dir.write_plan(plan)
        self.supervised.plan = plan
        # Only now: without the mark, a lost member would begin an empty cluster.
        member_data.unmark_joined(state_dir, index)
        self.supervised.declare()
