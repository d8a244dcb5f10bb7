"""Decides the next step from the instances that run to the desired ones. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from capelin.provider import Blocked
from capelin.versions import Version

from capelin_control_plane.instances import DesiredComponents, Instance, Observed, Plan


@dataclass(frozen=True, slots=True)
class MemberReplacement:
    """Replace an etcd member that lost its data."""

    member: Instance
    """The new member. It joins the others without data."""
    through: int
    """The index of a ready member, which changes the cluster's list of members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to change now so that the API never stops answering."""

    plan: Plan
    """The instances that should run from now on."""
    serving: tuple[Instance, ...]
    """The API servers that get new connections."""
    replacement: MemberReplacement | None = None
    set_aside: int | None = None
    """The etcd member whose data is corrupt and moved away. It is replaced as a lost one then."""


def next_step(desired: DesiredComponents, observed: Observed) -> Step:
    """What to change now so that the API never stops answering."""
    plan, ready = observed.plan, observed.ready
    lost = lost_member_to_replace(desired, observed)
    replacement = None
    if lost is not None:
        planned = next((member for member in plan.of("etcd") if member.index == lost), None)
        member = desired.joining_member(lost)
        if planned is not None:
            plan = plan.without(planned)
        elif member.name not in observed.stopping:
            through = min(member.index for member in plan.of("etcd") if member.name in ready)
            replacement = MemberReplacement(member, through)
    while True:
        following = next_plan(
            plan,
            desired,
            # An instance that is only planned is not ready, even if its predecessor is.
            {planned.name for planned in plan.instances if planned in observed.plan.instances}
            & ready,
            recovering=observed.recovering,
            controllers_may_start=observed.controllers_may_start,
        )
        if following == plan:
            break
        plan = following
    return Step(
        plan=plan,
        serving=_serving(plan, observed),
        replacement=replacement,
        set_aside=None if lost is not None else _spare_member(desired, observed),
    )


def _spare_member(desired: DesiredComponents, observed: Observed) -> int | None:
    """The corrupt etcd member without which the others have a quorum."""
    return _without_quorum_loss(observed.corrupt_members, desired, observed)


def _serving(plan: Plan, observed: Observed) -> tuple[Instance, ...]:
    """The API servers that get new connections."""
    kept = [server for server in plan.of("kube-apiserver") if server in observed.plan.instances]
    ready = tuple(server for server in kept if server.name in observed.ready)
    # If none is ready, those that served may still do: the provider may have restarted a moment
    # ago, or the machine is busy. The relay itself passes over a server that refuses.
    return ready or tuple(
        server for server in kept if server.name in observed.serving & observed.alive
    )


def lost_member_to_replace(desired: DesiredComponents, observed: Observed) -> int | None:
    """The etcd member to replace now: it lost its data, and the others have a quorum without it."""
    return _without_quorum_loss(observed.lost_members, desired, observed)


def _without_quorum_loss(
    members: Collection[int], desired: DesiredComponents, observed: Observed
) -> int | None:
    ready = {member.index for member in observed.plan.of("etcd") if member.name in observed.ready}
    for index in sorted(members):
        if len(ready - {index}) > len(desired.etcd) // 2:
            return index
    return None


def check_no_downgrade(serving: Iterable[str], version: str) -> None:
    """See to it that no API server of a newer version serves already.

    Args:
        serving: The versions of the API servers that are ready.
        version: The desired version.

    Raises:
        Blocked: one does.
    """
    newer = [other for other in serving if Version.parse(other) > Version.parse(version)]
    if newer:
        raise Blocked(
            "InvalidConfiguration",
            f"spec.version: {version} is older than {newer[0]}, which runs already",
            f"write {newer[0]} or a later version",
        )


def next_plan(
    plan: Plan,
    desired: DesiredComponents,
    ready: Collection[str],
    *,
    recovering: Collection[str] = (),
    controllers_may_start: bool = True,
) -> Plan:
    """One change towards the desired instances, in Kubernetes' order.

    First etcd, then API servers, then what talks to them. The same plan means that nothing can be
    changed now: everything is as desired, or something has to become ready first.

    Args:
        plan: The instances that should run now.
        desired: The instances that should run in the end.
        ready: The names of the instances that are ready.
        recovering: The etcd members that were ready before and may become so again as they are.
        controllers_may_start: Whether a first controller manager and scheduler may start.
    """
    plan = plan.including(desired.relay)
    after_etcd = _next_etcd(plan, desired, ready, recovering)
    if after_etcd != plan:
        return after_etcd
    if desired.replicas == 0:
        kept = {instance.name for instance in (*desired.etcd, desired.relay)}
        return Plan(tuple(instance for instance in plan.instances if instance.name in kept))
    after_servers = _next_api_server(plan, desired, ready)
    if after_servers != plan:
        return after_servers
    return _next_controller(plan, desired, ready, may_start=controllers_may_start)


def is_current(instance: Instance, desired: Instance) -> bool:
    """Whether an instance runs as desired, and was not planned before a rollout."""
    return not _is_planned_before(instance, desired.rollout_after) and (
        (instance.arguments, instance.environment, instance.resources)
        == (desired.arguments, desired.environment, desired.resources)
    )


def is_complete(plan: Plan, desired: DesiredComponents) -> bool:
    """Whether exactly the desired instances are planned, ready or not."""
    servers = plan.of("kube-apiserver")
    complete = {
        instance.name: instance
        for instance in (
            *desired.etcd,
            desired.relay,
            *(desired.api_server(server.index) for server in servers),
            *desired.controllers,
        )
    }
    planned = {instance.name: instance for instance in plan.instances}
    return (
        len(servers) == desired.replicas
        and planned.keys() == complete.keys()
        and all(is_current(planned[name], instance) for name, instance in complete.items())
    )


def _is_planned_before(instance: Instance, moment: datetime | None) -> bool:
    if moment is None:
        return False
    return instance.planned_at is None or instance.planned_at < moment


def _outdated_api_servers(plan: Plan, desired: DesiredComponents) -> tuple[Instance, ...]:
    return tuple(
        server
        for server in plan.of("kube-apiserver")
        if not is_current(server, desired.api_server(server.index))
    )


def _next_etcd(
    plan: Plan, desired: DesiredComponents, ready: Collection[str], recovering: Collection[str]
) -> Plan:
    members = plan.of("etcd")
    if not members:
        return plan.including(*desired.etcd)
    planned = {member.name: member for member in members}
    changed = [
        member
        for member in desired.etcd
        if member.name in planned and not is_current(planned[member.name], member)
    ]
    down = {member.name for member in members if member.name not in ready}
    if not down:
        return plan.including(*changed[:1])
    if len(down) == len(members) > 1:
        # There is no quorum to lose, and one member alone never becomes ready: change all. But
        # those that recover may have a quorum already that has not been observed yet.
        return plan.including(*(member for member in changed if member.name not in recovering))
    # A member that is down may need just this change. Changing it takes none that is ready. Wait
    # if one was changed already and has not become ready. Change a failed member first: one that
    # recovers may serve already.
    down_and_changed = [member for member in changed if member.name in down]
    if len(down_and_changed) < len(down):
        return plan
    failed_first = sorted(down_and_changed, key=lambda member: member.name in recovering)
    return plan.including(*failed_first[:1])


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
        # Start all at once if there are none yet; one by one beside those that serve.
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
