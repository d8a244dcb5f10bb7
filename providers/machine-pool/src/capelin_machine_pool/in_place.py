"""Decides which machines of a pool are updated in place instead of being replaced."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from capelin.contract import upgrade_problem

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.bootstrap import is_version
from capelin_machine_pool.desired import DesiredPool, RolloutLimits, has_revision
from capelin_machine_pool.members import PoolMember
from capelin_machine_pool.status import is_lost, is_provisioned, update_failed


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
