"""Decides the next step: what to wait for, which machines to create and which to delete."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from capelin.api import BaseObject, OwnerReference
from capelin.api.capi import Cluster, Machine
from capelin.contract import (
    ASLEEP,
    CONTROL_PLANE_LABEL,
    PAUSED,
    POOL_NAME_LABEL,
    READY,
    emptiest_domain,
    find_condition,
    is_asleep,
    is_condition_true,
    is_miscounted,
    is_to_go_first,
    paused,
    reference_to,
    same_owner,
    upgrade_problem,
)
from capelin.provider import Blocked, FrameReason

from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachinePool
from capelin_machine_pool.bootstrap import is_version
from capelin_machine_pool.desired import (
    DeletePolicy,
    DesiredPool,
    RolloutLimits,
    has_revision,
)
from capelin_machine_pool.members import MachineInfo, PoolMember
from capelin_machine_pool.reasons import Reason
from capelin_machine_pool.status import (
    is_lost,
    is_observed,
    is_provisioned,
    is_ready,
    update_failed,
)

SOON = 2.0
"""Seconds after which to look again for something that comes without an event."""
LATER = 15.0
"""Seconds after which to look again at an object that waits for its user."""
_SETTLED = 60.0
"""Seconds after which to look again at a settled pool: its bootstrap config is not watched."""
_MAX_DELETIONS = 50
"""Machines of a pool whose deletion begins within a minute. With hundreds at a time, the
controllers of core get in each other's way."""
_DELETION_COUNTS_FOR = timedelta(minutes=1)
"""A Machine that takes longer waits for its pods and does not hold up the others."""
_NEW_FOR = timedelta(minutes=1)
"""The Machine of a new instance becomes available within this time."""
_HOSTED_CONTROL_PLANE = "CapelinControlPlane"
_NAMED = 3
"""Machines that an event names."""


def is_updatable(desired: DesiredPool, machine: CapelinMachine) -> bool:
    """Whether a machine differs only in a version that kubeadm reaches in one step."""
    present, wanted = machine.spec.version, desired.machine_pool.spec.template.spec.version
    if desired.revision_of_version is None or present is None or wanted is None:
        return False
    if not is_version(present) or not is_version(wanted) or upgrade_problem(present, wanted):
        return False
    return (
        is_provisioned(machine)
        and not is_lost(machine)
        and not update_failed(machine)
        and has_revision(machine, desired.revision_of_version(present))
    )


def without_updatable(members: Iterable[PoolMember]) -> list[PoolMember]:
    """The members as the replacement of machines counts them: an updatable one is not outdated."""
    return [replace(member, up_to_date=True) if member.updatable else member for member in members]


def next_updates(members: Sequence[PoolMember], limits: RolloutLimits) -> tuple[str, ...]:
    """The machines whose update begins now.

    At most `limits.unavailable` of the replicas are unavailable at a time, and at least one may
    be. After a failure, no other update begins.
    """
    existing = [member for member in members if not (member.deleting or member.lost)]
    if any(member.update_failed for member in existing):
        return ()
    least = max(0, limits.replicas - max(1, limits.unavailable))
    ready = sum(member.ready for member in existing)
    # Machines that are being updated, or are new, count as unavailable until they are ready.
    spare = (
        len(existing) - sum(member.up_to_date and not member.ready for member in existing) - least
    )
    names: list[str] = []
    candidates = (member for member in existing if member.updatable and member.has_machine)
    for member in sorted(
        candidates, key=lambda member: (member.ready, member.created, member.name)
    ):
        if spare <= 0 or (member.ready and ready <= least):
            continue
        ready -= member.ready
        spare -= 1
        names.append(member.name)
    return tuple(names)


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The machines of a pool, and their Machines by name."""

    machines: Sequence[CapelinMachine]
    infos: Mapping[str, MachineInfo]
    miscounted: bool = False
    """Whether the MachinePool's status does not match the Machines."""


@dataclass(frozen=True, slots=True)
class PoolChanges:
    """How many machines to create, and which to delete."""

    create: int = 0
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolStep:
    """The next step of a pool. Machines are deleted before others are created."""

    delete: tuple[str, ...]
    create: tuple[str | None, ...]
    """The failure domain of each machine to create."""
    requeue_after: float
    update: tuple[str, ...] = ()
    """The machines whose update in place begins."""


def cluster_waits_for(infrastructure: CapelinCluster, cluster: Cluster) -> Blocked | None:
    """Why a cluster's infrastructure is not provisioned yet: its endpoint is missing or silent.

    Core connects to the endpoint as soon as the infrastructure is provisioned, and tries a failed
    connection again only after 30 s.
    """
    endpoint = infrastructure.spec.control_plane_endpoint or cluster.spec.control_plane_endpoint
    if is_provisioned(infrastructure):
        return None
    if endpoint.host:
        reference = cluster.spec.control_plane_ref
        # Core names the control plane of a ClusterClass after it has created the infrastructure.
        may_be_hosted = (
            cluster.spec.topology is not None
            if reference is None
            else reference.kind == _HOSTED_CONTROL_PLANE
        )
        if not may_be_hosted or cluster.status.initialization.control_plane_initialized:
            return None
        # Others may wait for the infrastructure.
        message = "the control plane does not answer at its endpoint yet"
        return Blocked(Reason.WAITING_FOR_CONTROL_PLANE, message, retry_seconds=None)
    message = "the control plane has no endpoint yet"
    hint = "if its provider never sets one, set spec.controlPlaneEndpoint"
    return Blocked(Reason.WAITING_FOR_ENDPOINT, message, hint, retry_seconds=None)


def needs_owner(references: Sequence[OwnerReference], owner: BaseObject) -> bool:
    """Whether an owner is missing. It does not matter who wrote the reference."""
    wanted = reference_to(owner)
    return not any(
        same_owner(reference, wanted) and reference.uid == wanted.uid for reference in references
    )


def needs_metadata(
    machine: CapelinMachine, pool: CapelinMachinePool, labels: Mapping[str, str]
) -> bool:
    """Whether a pool's machine has lost labels, or the reference to its pool."""
    if machine.metadata.deletion_timestamp is not None:
        return False
    return not labels.items() <= machine.metadata.labels.items() or needs_owner(
        machine.metadata.owner_references, pool
    )


def misses_pause(obj: CapelinMachine | CapelinMachinePool, cluster: Cluster) -> bool:
    """Whether the condition `Paused` of an object is out of date."""
    conditions = obj.status.conditions if obj.status else []
    return is_condition_true(conditions, PAUSED) != (paused(obj, cluster).status == "True")


def misses_sleep(obj: CapelinMachine | CapelinMachinePool, cluster: Cluster) -> bool:
    """Whether an object does not report that its cluster sleeps, or still reports it."""
    ready = find_condition(obj.status.conditions if obj.status else [], READY)
    return (ready is not None and ready.reason == ASLEEP) != is_asleep(cluster)


def machine_waits_for(
    machine: CapelinMachine, cluster: Cluster | None, owner: Machine | None
) -> Blocked | None:
    """Why a machine cannot have an instance yet. A pool's machine does not need its Machine."""
    if cluster is None:
        return Blocked(FrameReason.WAITING_FOR_OWNER, "no Cluster owns it yet", retry_seconds=SOON)
    if not cluster.status.initialization.infrastructure_provisioned:
        message = "the Cluster's infrastructure is not provisioned yet"
        return Blocked(Reason.WAITING_FOR_CLUSTER_INFRASTRUCTURE, message, retry_seconds=SOON)
    if machine.spec.version is None and (owner is None or owner.spec.version is None):
        message = "its Kubernetes version is not set"
        hint = "set spec.template.spec.version of its MachinePool or MachineDeployment"
        return Blocked(Reason.WAITING_FOR_VERSION, message, hint, retry_seconds=LATER)
    if is_in_pool(machine):
        return None
    if owner is None or owner.spec.bootstrap.data_secret_name is None:
        message = "its Machine has no bootstrap data yet"
        return Blocked(Reason.WAITING_FOR_BOOTSTRAP_DATA, message, retry_seconds=LATER)
    return None


def starts_control_plane(machine: CapelinMachine, cluster: Cluster) -> bool:
    """Whether the API server of a cluster may start on this machine: it cannot wait for it."""
    return (
        CONTROL_PLANE_LABEL in machine.metadata.labels
        and not cluster.status.initialization.control_plane_initialized
        and not is_provisioned(machine)
    )


def must_delete_instance(
    machine: CapelinMachine, cluster: Cluster, *, has_kubeconfig: bool
) -> bool:
    """Whether a machine has to wait for its cluster's API before it goes.

    The Nodes go with their cluster, even if it was never initialized or is broken. Without a
    kubeconfig, or an API that has ever answered, nothing was created for a new machine.
    """
    if cluster.metadata.deletion_timestamp is not None:
        return False
    initialized = bool(cluster.status.initialization.control_plane_initialized)
    return is_provisioned(machine) or (has_kubeconfig and initialized)


def is_in_pool(obj: BaseObject) -> bool:
    return POOL_NAME_LABEL in obj.metadata.labels


def machine_info(machine: Machine) -> MachineInfo:
    """The part of a Machine that matters for choosing which one to delete."""
    return MachineInfo(
        deleting_since=machine.metadata.deletion_timestamp,
        node_ready=is_condition_true(machine.status.conditions, "NodeReady"),
        delete_first=is_to_go_first(machine),
    )


def pool_member(
    desired: DesiredPool, machine: CapelinMachine, infos: Mapping[str, MachineInfo], now: datetime
) -> PoolMember:
    """A pool's machine together with its Machine."""
    info = infos.get(machine.name)
    up_to_date = has_revision(machine, desired.revision or "")
    updates = desired.revision_of_version is not None
    return PoolMember(
        name=machine.name,
        up_to_date=up_to_date,
        # A machine without a ready Node runs no pods. One whose update was just requested is not
        # ready either.
        ready=is_ready(machine)
        and info is not None
        and info.node_ready
        and (not updates or is_observed(machine)),
        created=machine.metadata.creation_timestamp or now,
        deleting=machine.metadata.deletion_timestamp is not None
        or (info is not None and info.deleting_since is not None),
        has_machine=info is not None,
        delete_first=info is not None and info.delete_first,
        lost=is_lost(machine),
        updatable=not up_to_date and is_updatable(desired, machine),
        update_failed=updates and update_failed(machine),
    )


def is_settled(desired: DesiredPool, machines: Sequence[CapelinMachine]) -> bool:
    """Whether the pool needs no change, so that its Machines need not be read."""
    return desired.revision is None or (
        len(machines) == desired.limits.replicas
        and all(has_revision(machine, desired.revision) for machine in machines)
        and not any(
            machine.metadata.deletion_timestamp is not None or is_lost(machine)
            for machine in machines
        )
    )


def is_counted(desired: DesiredPool, machines: Sequence[CapelinMachine]) -> bool:
    """Whether core counts the machines of a settled pool correctly, or some still start."""
    counts = Counter(machine.spec.version for machine in machines if machine.spec.version)
    counts.update(dict.fromkeys(("Ready", "Available", "UpToDate"), len(machines)))
    all_ready = all(is_ready(machine) for machine in machines)
    return not all_ready or not is_miscounted(desired.machine_pool, counts)


def next_pool_step(desired: DesiredPool, observed: ObservedPool, now: datetime) -> PoolStep:
    """The machines to create and to delete now."""
    machines, revision = observed.machines, desired.revision
    if revision is None:
        # A missing bootstrap config usually comes back unchanged: replace nothing meanwhile.
        return PoolStep((), (), LATER)
    if is_settled(desired, machines):
        if is_counted(desired, machines):
            return PoolStep((), (), _SETTLED)
        # The Machines are not watched: look again to see whether the others are gone, or ready.
        changing = observed.miscounted or deletions_under_way(observed.infos.values(), now)
        return PoolStep((), (), SOON if changing or _are_new(machines, now) else LATER)
    members = [pool_member(desired, machine, observed.infos, now) for machine in machines]
    deletions = max(0, _MAX_DELETIONS - deletions_under_way(observed.infos.values(), now))
    changes = next_changes(without_updatable(members), desired.limits, max_deletions=deletions)
    updates = () if changes.delete else next_updates(members, desired.limits)
    domains = _next_failure_domains(desired, machines, changes.create)
    # The Machines of a pool are not watched: look again to see whether their Nodes are ready.
    return PoolStep(changes.delete, domains, SOON, updates)


def step_events(
    desired: DesiredPool, observed: ObservedPool, step: PoolStep
) -> list[tuple[str, str]]:
    """The reasons and messages of the events about a step."""
    revision = desired.revision or ""
    gone = [machine for machine in observed.machines if machine.name in step.delete]
    groups = (
        ("MachinesReplaced", "lost their Nodes", [one for one in gone if is_lost(one)]),
        (
            "RollingOut",
            "are outdated",
            [one for one in gone if not is_lost(one) and not has_revision(one, revision)],
        ),
        (
            "ScalingDown",
            "are too many",
            [one for one in gone if not is_lost(one) and has_revision(one, revision)],
        ),
    )
    events = [
        (reason, f"deleting {_names(machines)}, which {why}")
        for reason, why, machines in groups
        if machines
    ]
    if step.update:
        version = desired.machine_pool.spec.template.spec.version
        updated = [machine for machine in observed.machines if machine.name in step.update]
        events.append(("UpdatingInPlace", f"updating {_names(updated)} to {version} in place"))
    if step.create:
        count = len(step.create)
        events.append(("MachinesCreated", f"created {count} of {desired.limits.replicas} machines"))
    return events


def _names(machines: Sequence[CapelinMachine]) -> str:
    """A few names, and how many more there are."""
    names = sorted(machine.name for machine in machines)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def next_changes(
    members: Sequence[PoolMember], limits: RolloutLimits, *, max_deletions: int | None = None
) -> PoolChanges:
    """The machines to delete now, and the number to create afterwards.

    This never makes more than `limits.unavailable` of the replicas unavailable, and never creates
    more than `limits.surge` above them. Machines that are being deleted count as gone.
    """
    remaining = [member for member in members if not member.deleting]
    existing = [member for member in remaining if not member.lost]
    delete = _deletions(remaining, limits)[:max_deletions]
    up_to_date = sum(member.up_to_date for member in existing)
    outdated = len(existing) - up_to_date
    left = len(existing) - sum(member.name in delete for member in existing)
    most = limits.replicas + (limits.surge if outdated else 0)
    return PoolChanges(max(0, min(limits.replicas - up_to_date, most - left)), delete)


def deletions_under_way(infos: Iterable[MachineInfo], now: datetime) -> int:
    """How many Machines are being deleted, without those that wait for their pods."""
    moments = (info.deleting_since for info in infos)
    return sum(moment is not None and now - moment < _DELETION_COUNTS_FOR for moment in moments)


def node_was_deleted(machine: Machine) -> bool:
    """Whether core has observed the deletion of a Machine's Node."""
    node_ready = find_condition(machine.status.conditions, "NodeReady")
    return node_ready is not None and node_ready.reason == "NodeDeleted"


def needs_remediation(machine: Machine) -> bool:
    """Whether a MachineHealthCheck asks the owner of a Machine to replace it.

    Core does so for MachineSets. For the machines of a pool, this provider has to.
    """
    remediated = find_condition(machine.status.conditions, "OwnerRemediated")
    return remediated is not None and remediated.status == "False"


def _deletions(remaining: Sequence[PoolMember], limits: RolloutLimits) -> tuple[str, ...]:
    """Lost machines, surplus ones, and outdated ones as far as others are available."""
    existing = [member for member in remaining if not member.lost]
    least = max(0, limits.replicas - limits.unavailable)
    ready = sum(member.ready for member in existing)
    surplus = sum(member.up_to_date for member in existing) - limits.replicas
    # New machines that are not ready do not count as available, so that a rollout to a version
    # that does not start stops after the first few machines.
    starting = sum(member.up_to_date and not member.ready for member in existing)
    spare = len(existing) - starting - least
    names: list[str] = []
    for member in sorted(remaining, key=lambda member: _deletion_order(member, limits.policy)):
        if not member.has_machine:
            continue
        if not member.lost:
            if (surplus if member.up_to_date else spare) <= 0 or (member.ready and ready <= least):
                continue
            ready -= member.ready
            surplus -= member.up_to_date
            spare -= not member.up_to_date
        names.append(member.name)
    return tuple(names)


def _deletion_order(
    member: PoolMember, policy: DeletePolicy
) -> tuple[bool, bool, bool, bool, float | str]:
    created = member.created.timestamp()
    order: dict[DeletePolicy, float | str] = {
        "Oldest": created,
        "Newest": -created,
        "Random": hashlib.sha256(member.name.encode()).hexdigest(),
    }
    return (
        not member.lost,
        member.up_to_date,
        not member.delete_first,
        member.ready,
        order[policy],
    )


def _are_new(machines: Sequence[CapelinMachine], now: datetime) -> bool:
    """Whether a machine is new."""
    moments = (machine.metadata.creation_timestamp for machine in machines)
    return any(moment is not None and now - moment < _NEW_FOR for moment in moments)


def _next_failure_domains(
    desired: DesiredPool, machines: Sequence[CapelinMachine], count: int
) -> tuple[str | None, ...]:
    """The failure domains of the next machines, each the one with the fewest so far."""
    placed = [machine.spec.failure_domain for machine in machines]
    chosen: list[str | None] = []
    for _ in range(count):
        domain = emptiest_domain(
            desired.failure_domains, [*placed, *chosen], seed=desired.machine_pool.uid
        )
        chosen.append(domain)
    return tuple(chosen)
