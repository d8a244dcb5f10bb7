"""Decides the next step from the instances that run to the desired ones. Pure.

The rules of etcd are in `capelin_control_plane.etcd.rules`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from capelin_control_plane.desired.instances import DesiredComponents, Instance, Observed, Plan
from capelin_control_plane.etcd.rules import (
    Loss,
    Member,
    MemberChange,
    Membership,
    MoveLeadership,
    PlannedMember,
    Promoted,
    Removed,
    Replacement,
    StartLearner,
    next_leadership,
    next_replacement,
    next_resizing,
    next_restarts,
)

_FIRST_START = "--initial-cluster"
"""The beginning of flags that a member of etcd reads only if it has no data."""


@dataclass(frozen=True, slots=True)
class Step:
    plan: Plan
    """The instances that should run from now on."""
    serving: tuple[Instance, ...]
    """The API servers that get new connections."""
    replacement: Replacement | None = None
    """The etcd member that joins the others without data, in place of a lost one."""
    set_aside: int | None = None
    """The etcd member whose unusable data is moved away. It then counts as a lost one."""
    change: MemberChange | None = None
    """A change of etcd's members or leader, after the plan is in effect."""


def next_step(desired: DesiredComponents, observed: Observed) -> Step:
    """The next change, which never interrupts the API."""
    plan, ready = observed.plan, observed.ready
    members = _voters(plan, observed)
    lost = next_replacement(members, len(members))
    replacement, set_aside, change = None, None, None
    if lost is not None:
        planned = next((member for member in plan.of("etcd") if member.index == lost.index), None)
        if lost.loss is Loss.UNUSABLE:
            set_aside = lost.index
        elif planned is not None:
            plan = plan.without(planned)
        elif f"etcd-{lost.index}" not in observed.stopping:
            replacement = lost
    elif observed.membership is not None:
        plan, change = _resized(plan, desired, observed, observed.membership)
    leader = observed.membership and observed.membership.leader
    move = _leadership_move(plan, desired, observed, leader)
    if move is not None:
        # Before the leader restarts. The next reconcile continues.
        return Step(plan, _serving(plan, observed), replacement, set_aside, move)
    while True:
        following = next_plan(
            plan,
            desired,
            # An instance that is only planned is not ready, even if its predecessor is.
            {planned.name for planned in plan.instances if planned in observed.plan.instances}
            & ready,
            recovering=observed.recovering,
            losses=observed.losses,
            joined=observed.joined,
            leader=leader,
            controllers_may_start=observed.controllers_may_start,
            awaits_data=observed.awaits_data,
        )
        if following == plan:
            break
        plan = following
    return Step(plan, _serving(plan, observed), replacement, set_aside, change)


def needs_membership(plan: Plan, desired: DesiredComponents) -> bool:
    """Whether the next step depends on etcd's own list of members, which costs requests."""
    planned = {member.index: member for member in plan.of("etcd")}
    if not planned:
        return False
    # A restart of the only member cannot move leadership.
    return not is_resized(plan, desired) or (
        len(planned) > 1
        and any(not is_current(planned[member.index], member) for member in desired.etcd)
    )


def is_resized(plan: Plan, desired: DesiredComponents) -> bool:
    """Whether exactly the desired members of etcd are planned, each with a vote."""
    voters = {member.index for member in plan.voters}
    return voters == _indexes(desired) and len(plan.voters) == len(plan.of("etcd"))


def _indexes(desired: DesiredComponents) -> set[int]:
    return {member.index for member in desired.etcd}


def _resized(
    plan: Plan, desired: DesiredComponents, observed: Observed, membership: Membership
) -> tuple[Plan, MemberChange | None]:
    """The plan as etcd's list of members has it, and the next change of the list."""
    is_settled = not _outdated_api_servers(plan, desired) and all(
        server.name in observed.ready for server in plan.of("kube-apiserver")
    )
    while True:
        planned = {
            member.index: PlannedMember(
                ready=member.name in observed.ready,
                learner=member.is_learner,
                lost=member.index in observed.losses,
            )
            for member in plan.of("etcd")
        }
        match next_resizing(
            planned,
            membership,
            len(desired.etcd),
            may_shrink=is_settled and not observed.ending_servers,
        ):
            case Removed(index):
                plan = plan.without(_member(plan, index))
            case Promoted(index):
                plan = plan.including(replace(_member(plan, index), is_learner=False))
            case StartLearner(index) if f"etcd-{index}" in observed.stopping:
                # Its data is moved away, and an earlier process may still use it.
                return plan, None
            case change:
                return plan, change


def _member(plan: Plan, index: int) -> Instance:
    return next(member for member in plan.of("etcd") if member.index == index)


def _leadership_move(
    plan: Plan, desired: DesiredComponents, observed: Observed, leader: int | None
) -> MoveLeadership | None:
    members = _members(
        plan, desired, observed.ready, observed.recovering, observed.losses, leader=leader
    )
    return next_leadership(members, _restarts(plan, desired, members))


def _voters(plan: Plan, observed: Observed) -> list[Member]:
    """The members that vote: planned ones, and those that were stopped because they lost data."""
    voters = {member.index for member in plan.voters}
    membership = observed.membership or Membership(members={})
    listed = membership.members
    # A learner that lost its data has no vote. It is removed, and joins again.
    stopped = {
        index for index in observed.losses if index in listed and not listed[index].learner
    } - {member.index for member in plan.of("etcd")}
    return [
        Member(
            index=index,
            ready=index in voters and f"etcd-{index}" in observed.ready,
            loss=observed.losses.get(index),
        )
        for index in sorted(voters | stopped)
    ]


def _serving(plan: Plan, observed: Observed) -> tuple[Instance, ...]:
    """The API servers that get new connections."""
    kept = [server for server in plan.of("kube-apiserver") if server in observed.plan.instances]
    ready = tuple(server for server in kept if server.name in observed.ready)
    # If none is ready, those that served may still do: the provider may have restarted a moment
    # ago, or the machine is busy. The relay itself passes over a server that refuses.
    return ready or tuple(
        server for server in kept if server.name in observed.serving & observed.alive
    )


def next_plan(
    plan: Plan,
    desired: DesiredComponents,
    ready: Collection[str],
    *,
    recovering: Collection[str] = (),
    losses: Mapping[int, Loss] | None = None,
    joined: Collection[int] = (),
    leader: int | None = None,
    controllers_may_start: bool = True,
    awaits_data: bool = False,
) -> Plan:
    """One change towards the desired instances, in Kubernetes' order.

    First etcd, then API servers, then their clients. The same plan means that nothing can be
    changed now: everything is as desired, or something has to become ready first.

    Args:
        plan: The instances that should run now.
        desired: The instances that should run in the end.
        ready: The names of the instances that are ready.
        recovering: The etcd members that were ready before and may become so again as they are.
        losses: By index, the etcd members that cannot continue with their own data.
        joined: The indexes of the etcd members that were ever ready.
        leader: The index of etcd's leader, if it is known.
        controllers_may_start: Whether a first controller manager and scheduler may start.
        awaits_data: Whether a restore is requested whose data is not in use yet.
    """
    plan = plan.including(desired.relay)
    if awaits_data and not plan.of("kube-apiserver"):
        # Nodes that reach an API server without their data end all their pods.
        return plan
    if not plan.of("etcd"):
        # If the plan was lost, a member without data must not begin a second cluster: it joins.
        known = [member for member in desired.etcd if member.index in joined]
        return plan.including(*(known or desired.etcd))
    members = _members(plan, desired, ready, recovering, losses or {}, leader=leader)
    restarts = _restarts(plan, desired, members)
    after_etcd = plan.including(
        *(_restarted(desired.etcd[index], _member(plan, index)) for index in restarts)
    )
    if after_etcd != plan:
        return after_etcd
    if desired.replicas == 0:
        kept = {instance.name for instance in (*plan.of("etcd"), desired.relay)}
        return Plan(tuple(instance for instance in plan.instances if instance.name in kept))
    if not (plan.of("kube-apiserver") and _is_growing(plan, desired, losses or {})):
        # Otherwise new API servers would use members that have not joined yet.
        after_servers = _next_api_server(plan, desired, ready)
        if after_servers != plan:
            return after_servers
    return _next_controller(plan, desired, ready, may_start=controllers_may_start)


def is_current(instance: Instance, desired: Instance) -> bool:
    """Whether an instance runs as desired, and was not planned before a rollout."""
    return not _is_planned_before(instance, desired.rollout_after) and (
        (_effective(instance), instance.environment, instance.resources)
        == (_effective(desired), desired.environment, desired.resources)
    )


def _effective(instance: Instance) -> tuple[str, ...]:
    """The arguments that take effect at a restart."""
    if instance.component != "etcd":
        return instance.arguments
    return tuple(flag for flag in instance.arguments if not flag.startswith(_FIRST_START))


def runs_as_desired(instance: Instance, desired: DesiredComponents) -> bool:
    """Whether a planned instance should run, and is current."""
    counterpart = desired.counterpart(instance)
    return counterpart is not None and is_current(instance, counterpart)


def is_complete(plan: Plan, desired: DesiredComponents) -> bool:
    """Whether exactly the desired instances are planned, ready or not."""
    others = (*desired.etcd, desired.relay, *desired.controllers)
    return (
        len(plan.of("kube-apiserver")) == desired.replicas
        and len(plan.instances) == desired.replicas + len(others)
        and len(plan.voters) == len(desired.etcd)
        and all(runs_as_desired(instance, desired) for instance in plan.instances)
    )


def _is_planned_before(instance: Instance, moment: datetime | None) -> bool:
    if moment is None:
        return False
    return instance.planned_at is None or instance.planned_at < moment


def _outdated_api_servers(plan: Plan, desired: DesiredComponents) -> tuple[Instance, ...]:
    return tuple(
        server for server in plan.of("kube-apiserver") if not runs_as_desired(server, desired)
    )


def _members(
    plan: Plan,
    desired: DesiredComponents,
    ready: Collection[str],
    recovering: Collection[str],
    losses: Mapping[int, Loss],
    *,
    leader: int | None,
) -> list[Member]:
    """The members that run and stay, also learners."""
    planned = {member.index: member for member in plan.of("etcd")}
    return [
        Member(
            index=member.index,
            ready=member.name in ready,
            outdated=not is_current(planned[member.index], member),
            recovering=member.name in recovering,
            leader=member.index == leader,
            loss=losses.get(member.index),
        )
        for member in desired.etcd
        if member.index in planned
    ]


def _restarts(
    plan: Plan, desired: DesiredComponents, members: Collection[Member]
) -> tuple[int, ...]:
    """The members to restart now. While their number changes, only those that are down."""
    return next_restarts(members, len(desired.etcd) if is_resized(plan, desired) else 0)


def _restarted(desired: Instance, planned: Instance) -> Instance:
    """The desired member. A learner stays one, and has its own flags for the first start."""
    first = [flag for flag in planned.arguments if flag.startswith(_FIRST_START)]
    arguments = (*_effective(desired), *first)
    return replace(desired, arguments=arguments, is_learner=planned.is_learner)


def _is_growing(plan: Plan, desired: DesiredComponents, losses: Collection[int]) -> bool:
    """Whether a desired member of etcd has not joined yet. One that is being replaced has."""
    joined = {member.index for member in plan.voters}
    return not _indexes(desired) <= joined | set(losses)


def _next_api_server(plan: Plan, desired: DesiredComponents, ready: Collection[str]) -> Plan:
    servers = plan.of("kube-apiserver")
    outdated = _outdated_api_servers(plan, desired)
    current = [server for server in servers if server not in outdated]
    starting = [server for server in current if server.name not in ready]
    if any(server.name in ready for server in servers):
        # If no API server is ready, keep the old ones: the new ones may never become ready.
        for server in outdated:
            if server.name not in ready:
                plan = plan.without(server)
    too_many = len(current) > desired.replicas
    if starting:
        # One change at a time. A surplus server goes at once, whether it becomes ready or not.
        return plan.without(_least_needed(plan, starting)) if too_many else plan
    if outdated and len(plan.of("kube-apiserver")) > desired.replicas:
        return plan.without(_least_needed(plan, outdated))
    if too_many:
        return plan.without(_least_needed(plan, ()))
    missing = desired.replicas - len(current)
    if missing > 0:
        # Start all at once if there are none yet, and one by one if others serve.
        count = 1 if outdated else missing
        last = max((server.index for server in current or servers), default=-1)
        indexes = _free_indexes(servers, count, after=last, limit=2 * desired.replicas + 1)
        return plan.including(*map(desired.api_server, indexes))
    return plan


def _least_needed(plan: Plan, preferred: Collection[Instance]) -> Instance:
    servers = plan.of("kube-apiserver")
    return max(servers, key=lambda server: (server in preferred, server.index))


def _free_indexes(
    servers: tuple[Instance, ...], count: int, *, after: int, limit: int
) -> list[int]:
    """Indexes that no server has. Those of this rollout's servers come last: they may still end."""
    taken = {server.index for server in servers}
    indexes = ((after + step) % limit for step in range(1, limit + 1))
    return [index for index in indexes if index not in taken][:count]


def _next_controller(
    plan: Plan, desired: DesiredComponents, ready: Collection[str], *, may_start: bool
) -> Plan:
    answers = any(server.name in ready for server in plan.of("kube-apiserver"))
    all_current = not _outdated_api_servers(plan, desired)
    planned = {instance.name: instance for instance in plan.instances}
    for controller in desired.controllers:
        if controller.name not in planned:
            if answers and may_start:
                plan = plan.including(controller)
        elif all_current and answers and not is_current(planned[controller.name], controller):
            plan = plan.including(controller)
    return plan
