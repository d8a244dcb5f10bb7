"""The machines of a pool, as the decisions about the pool need them."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """The part of a Machine that matters for choosing which one to delete."""

    deleting_since: datetime | None
    node_ready: bool
    delete_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """The part of a pool's machine that matters for choosing which one to delete."""

    name: str
    up_to_date: bool
    ready: bool
    created: datetime
    deleting: bool = False
    has_machine: bool = True
    """Whether core has created its Machine. A machine is only deleted through that."""
    delete_first: bool = False
    """Whether it has the annotation `cluster.x-k8s.io/delete-machine`."""
    lost: bool = False
    """Whether its Node was deleted."""
    updatable: bool = False
    """Whether it is outdated, and can be updated in place."""
    update_failed: bool = False
