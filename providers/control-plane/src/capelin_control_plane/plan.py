"""Which instances of which component there are, and the next step from those to the wanted ones."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from capelin.embedded.processes import Command

Component = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "relay"]

PLANNED_AT = "CAPELIN_PLANNED_AT"
"""The environment variable in which an instance has the moment at which it was planned.

It makes the command of a replacement another one; that alone makes nothing outdated.
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a component."""

    component: Component
    slot: int
    version: str
    command: Command
    rejoined: bool = False
    """Whether it came to its cluster later, in place of one that was lost. Of etcd members."""
    rollout_after: datetime | None = None
    """Of one that is wanted: it replaces what was planned before, though that runs the same."""

    @property
    def name(self) -> str:
        """Unique in its control plane, and the name of its process and log."""
        return f"{self.component}-{self.slot}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The instances that are to run now, old and new ones."""

    instances: tuple[Instance, ...] = ()

    def of(self, component: Component) -> tuple[Instance, ...]:
        """The instances of a component."""
        return tuple(one for one in self.instances if one.component == component)

    def without(self, gone: Instance) -> "Plan":
        """The plan less one instance."""
        return Plan(tuple(one for one in self.instances if one.name != gone.name))

    def including(self, *new: Instance) -> "Plan":
        """The plan with these instances, in place of those of the same name."""
        names = {one.name for one in new}
        return Plan((*(one for one in self.instances if one.name not in names), *new))


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a control plane is made of when nothing is left to do."""

    etcd: tuple[Instance, ...]
    relay: Instance
    replicas: int
    api_server: Callable[[int], Instance]
    """The API server of a slot. There are more slots than replicas, for replacing one by one."""
    others: tuple[Instance, ...]
    """Controller manager and scheduler: they need an API server, and are never newer than it."""


def is_current(instance: Instance, wanted: Instance) -> bool:
    """Whether an instance runs as it is wanted, and was not planned before a rollout."""
    is_old = wanted.rollout_after is not None and _is_planned_before(instance, wanted.rollout_after)
    return _timeless(instance).hash == _timeless(wanted).hash and not is_old


def _is_planned_before(instance: Instance, moment: datetime) -> bool:
    planned_at = instance.command.environment.get(PLANNED_AT)
    return planned_at is None or datetime.fromisoformat(planned_at) < moment


def _timeless(instance: Instance) -> Command:
    """What an instance runs, whenever it was planned."""
    environment = instance.command.environment
    rest = {name: value for name, value in environment.items() if name != PLANNED_AT}
    return replace(instance.command, environment=rest)


def outdated_api_servers(plan: Plan, wanted: Composition) -> tuple[Instance, ...]:
    """The API servers that do not run as they are wanted."""
    return tuple(
        one for one in plan.of("kube-apiserver") if not is_current(one, wanted.api_server(one.slot))
    )


def next_plan(
    plan: Plan,
    wanted: Composition,
    ready: Collection[str],
    *,
    coming: Collection[str] = (),
    controllers_may_start: bool = True,
) -> Plan:
    """One step towards what is wanted, such that the API never stops answering.

    Kubernetes' order: etcd, then API servers, then what talks to them. `ready` are the names of
    the instances that are up, and `coming` those of the etcd members that were up once and may be
    again as they are. The same plan means that nothing can be done now: everything is as wanted, or
    something has to become ready first.
    """
    plan = plan.including(wanted.relay)
    after_etcd = _next_etcd(plan, wanted, ready, coming)
    if after_etcd != plan:
        return after_etcd
    if wanted.replicas == 0:
        kept = {one.name for one in (*wanted.etcd, wanted.relay)}
        return Plan(tuple(one for one in plan.instances if one.name in kept))
    after_servers = _next_api_server(plan, wanted, ready)
    if after_servers != plan:
        return after_servers
    return _next_other(plan, wanted, ready, may_start=controllers_may_start)


def _next_etcd(
    plan: Plan, wanted: Composition, ready: Collection[str], coming: Collection[str]
) -> Plan:
    members = plan.of("etcd")
    if not members:
        return plan.including(*wanted.etcd)
    present = {one.name: one for one in members}
    changed = [
        one for one in wanted.etcd if one.name in present and not is_current(present[one.name], one)
    ]
    down = {one.name for one in members if one.name not in ready}
    if not down:
        return plan.including(*changed[:1])
    if len(down) == len(members) > 1:
        # There is no quorum to lose, and one alone does not come up, changed or not. But those
        # that are coming may be a quorum already that has not said so yet.
        return plan.including(*(one for one in changed if one.name not in coming))
    # Those that are down may be so for want of just this change. It takes none that is up, and no
    # second one before the first has come up with it. What failed goes first: one that is coming
    # may serve already.
    down_and_changed = [one for one in changed if one.name in down]
    if len(down_and_changed) < len(down):
        return plan
    return plan.including(*sorted(down_and_changed, key=lambda one: one.name in coming)[:1])


def _next_api_server(plan: Plan, wanted: Composition, ready: Collection[str]) -> Plan:
    servers = plan.of("kube-apiserver")
    outdated = outdated_api_servers(plan, wanted)
    current = [one for one in servers if one not in outdated]
    coming = [one for one in current if one.name not in ready]
    serving = [one for one in servers if one.name in ready]
    if serving:
        # While nothing serves, they may be the ones that can, and what is to come may never.
        for one in outdated:
            if one.name not in ready:
                plan = plan.without(one)
    if coming:
        # One change at a time, but what is not needed goes at once, whether it comes up or not.
        return plan.without(_least_needed(plan, coming)) if _too_many(current, wanted) else plan
    if outdated and len(plan.of("kube-apiserver")) > wanted.replicas:
        return plan.without(_least_needed(plan, outdated))
    if _too_many(current, wanted):
        return plan.without(_least_needed(plan, ()))
    missing = wanted.replicas - len(current)
    if missing > 0:
        # All at once where there are none yet; one by one next to those that serve, or may again.
        count = 1 if outdated else missing
        last = max((one.slot for one in current or servers), default=-1)
        slots = _free_slots(servers, count, after=last, among=2 * wanted.replicas + 1)
        return plan.including(*map(wanted.api_server, slots))
    return plan


def _too_many(current: Collection[Instance], wanted: Composition) -> bool:
    return len(current) > wanted.replicas


def _least_needed(plan: Plan, rather: Collection[Instance]) -> Instance:
    servers = plan.of("kube-apiserver")
    return max(servers, key=lambda one: (one in rather, one.slot))


def _free_slots(servers: tuple[Instance, ...], count: int, *, after: int, among: int) -> list[int]:
    """Slots that none has, nor had before the same roll replaced it: it may still be going."""
    taken = {one.slot for one in servers}
    slots = ((after + step) % among for step in range(1, among + 1))
    return [slot for slot in slots if slot not in taken][:count]


def _next_other(
    plan: Plan, wanted: Composition, ready: Collection[str], *, may_start: bool
) -> Plan:
    servers = plan.of("kube-apiserver")
    answers = any(one.name in ready for one in servers)
    all_current = not outdated_api_servers(plan, wanted)
    present = {one.name: one for one in plan.instances}
    for one in wanted.others:
        if one.name not in present:
            if answers and may_start:
                plan = plan.including(one)
        elif all_current and answers and not is_current(present[one.name], one):
            plan = plan.including(one)
    return plan


def is_complete(plan: Plan, wanted: Composition) -> bool:
    """Whether the plan is what is wanted, whatever is ready of it."""
    servers = plan.of("kube-apiserver")
    slots = [wanted.api_server(one.slot) for one in servers]
    complete = {one.name: one for one in (*wanted.etcd, wanted.relay, *slots, *wanted.others)}
    present = {one.name: one for one in plan.instances}
    return (
        len(servers) == wanted.replicas
        and present.keys() == complete.keys()
        and all(is_current(present[name], one) for name, one in complete.items())
    )
