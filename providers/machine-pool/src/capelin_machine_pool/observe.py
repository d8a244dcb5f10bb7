"""What is seen of machines, from their two sides: ours and their Machines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from capelin.api.views.capi import Machine
from capelin.contract.conditions import find, is_true
from capelin.contract.machine_pools import is_to_go_first

from capelin_machine_pool import status as say
from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.desired import is_of
from capelin_machine_pool.plan import Member

_SOON_GONE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Owner:
    """The Machine of a machine, as far as it matters which one goes."""

    going_since: datetime | None
    node_ready: bool
    goes_first: bool


def owner(machine: Machine) -> Owner:
    """What matters of a Machine."""
    return Owner(
        going_since=machine.metadata.deletion_timestamp,
        node_ready=is_true(machine.status.conditions, "NodeReady"),
        goes_first=is_to_go_first(machine),
    )


def member(
    machine: CapelinMachine, owners: Mapping[str, Owner], revision: str, now: datetime
) -> Member:
    """A machine, as far as it matters which one goes."""
    its = owners.get(machine.name)
    going = its is not None and its.going_since is not None
    return Member(
        name=machine.name,
        current=is_of(machine, revision),
        # Pods do not run on a machine, but on a node that is ready.
        ready=say.is_ready(machine) and its is not None and its.node_ready,
        created=machine.metadata.creation_timestamp or now,
        deleting=machine.metadata.deletion_timestamp is not None or going,
        removable=its is not None,
        goes_first=its is not None and its.goes_first,
        lost=say.is_lost(machine),
    )


def is_going(machine: CapelinMachine) -> bool:
    """Whether a machine goes, or has to."""
    return machine.metadata.deletion_timestamp is not None or say.is_lost(machine)


def leaving(owners: Iterable[Owner], now: datetime) -> int:
    """How many Machines are on their way out, without those that have to wait for their pods."""
    since = (owner.going_since for owner in owners)
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
