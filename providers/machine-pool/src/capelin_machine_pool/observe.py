"""What is seen of machines, from their two sides: ours and their Machines."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from capelin.api.views.capi import Machine
from capelin.contract.conditions import find, is_true
from capelin.contract.machine_pools import is_to_go_first

from capelin_machine_pool import status as say
from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.desired import is_of
from capelin_machine_pool.plan import Member

_SOON_GONE = timedelta(minutes=1)


def member(
    machine: CapelinMachine, owners: Mapping[str, Machine], revision: str, now: datetime
) -> Member:
    """A machine, as far as it matters which one goes."""
    owner = owners.get(machine.name)
    going = owner is not None and owner.metadata.deletion_timestamp is not None
    return Member(
        name=machine.name,
        current=is_of(machine, revision),
        # Pods do not run on a machine, but on a node that is ready.
        ready=say.is_ready(machine)
        and owner is not None
        and is_true(owner.status.conditions, "NodeReady"),
        created=machine.metadata.creation_timestamp or now,
        deleting=machine.metadata.deletion_timestamp is not None or going,
        removable=owner is not None,
        goes_first=owner is not None and is_to_go_first(owner),
        lost=say.is_lost(machine),
    )


def is_going(machine: CapelinMachine) -> bool:
    """Whether a machine goes, or has to."""
    return machine.metadata.deletion_timestamp is not None or say.is_lost(machine)


def leaving(owners: Iterable[Machine], now: datetime) -> int:
    """How many Machines are on their way out, without those that have to wait for their pods."""
    since = (owner.metadata.deletion_timestamp for owner in owners)
    return sum(moment is not None and now - moment < _SOON_GONE for moment in since)


def has_lost_its_node(machine: Machine) -> bool:
    """Whether core has seen that a Machine's Node was deleted."""
    node_ready = find(machine.status.conditions, "NodeReady")
    return node_ready is not None and node_ready.reason == "NodeDeleted"


def is_given_up(machine: Machine) -> bool:
    """Whether a MachineHealthCheck wants whoever owns a Machine to remove it.

    Core does it for MachineSets; for a pool, nobody else does.
    """
    remediated = find(machine.status.conditions, "OwnerRemediated")
    return remediated is not None and remediated.status == "False"
