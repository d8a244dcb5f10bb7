"""Changes of etcd's members on processes."""

import asyncio
import shutil
from dataclasses import replace
from datetime import UTC, datetime

from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import joining
from capelin_control_plane.backends.processes.plan import MemberReplacement
from capelin_control_plane.backends.processes.supervised import Supervised
from capelin_control_plane.desired.instances import DesiredComponents, Instance
from capelin_control_plane.etcd.api import MembershipError
from capelin_control_plane.etcd.rules import MemberChange, Membership, MoveLeadership, StartLearner


async def membership(supervised: Supervised) -> Membership | None:
    """The list of members that etcd itself has. None if no member is ready.

    Raises:
        MembershipError: no ready member returns a list that the provider understands.
    """
    failure = None
    for index in supervised.ready_voters:
        try:
            return await member_data.membership(supervised.state_dir, through=index)
        except (OSError, MembershipError) as error:
            failure = error
    if failure is not None:
        raise MembershipError(f"etcd does not list its members: {failure}") from failure
    return None


async def change_members(
    supervised: Supervised,
    change: MemberChange,
    desired: DesiredComponents,
    present: Membership,
) -> None:
    match change:
        case StartLearner(index):
            await start_learner(supervised, desired.etcd[index], present)
            return
        case MoveLeadership(leader, _):
            through = leader
        case _:
            others = (index for index in supervised.ready_voters if index != change.index)
            through = next(others, None)
    if through is None:
        raise Blocked(Reason.ETCD_RESIZING, "no other etcd member is ready")
    await member_data.change_members(supervised.state_dir, change, present, through=through)


async def replace_member(supervised: Supervised, replacement: MemberReplacement) -> None:
    state_dir, member = supervised.state_dir, replacement.member
    listed = await member_data.make_room(state_dir, member.index, through=replacement.through)
    data = state_dir.etcd_data(member.index)
    await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    plan = supervised.plan.including(joining(member, listed, state_dir))
    state_dir.write_plan(plan)
    supervised.plan = plan
    # Only now: without the mark, a lost member would begin an empty cluster.
    member_data.unmark_joined(state_dir, member.index)
    supervised.declare()


async def start_learner(supervised: Supervised, member: Instance, present: Membership) -> None:
    state_dir = supervised.state_dir
    # First: a member that is marked and has no data counts as one that lost it.
    member_data.unmark_joined(state_dir, member.index)
    await asyncio.to_thread(member_data.clear_data, state_dir, member.index, datetime.now(UTC))
    learner = replace(joining(member, present.members.keys(), state_dir), is_learner=True)
    supervised.set_plan(supervised.plan.including(learner))
