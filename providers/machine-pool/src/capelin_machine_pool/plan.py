"""How a pool becomes what is wanted: how many machines to make, and which to remove, now."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

DeletePolicy = Literal["Oldest", "Newest", "Random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine of a pool, as far as it matters which one goes."""

    name: str
    current: bool
    """Whether it is of the wanted making."""
    ready: bool
    created: datetime
    deleting: bool = False
    removable: bool = True
    """Whether core has made its Machine: only through that is a machine removed."""
    goes_first: bool = False
    """Whether somebody has marked it to be removed first."""
    lost: bool = False
    """Whether what it stands for is gone."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many machines there are to be, and how far from it there may be meanwhile."""

    replicas: int
    surge: int = 1
    unavailable: int = 0
    policy: DeletePolicy = "Oldest"


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do now."""

    create: int = 0
    remove: tuple[str, ...] = ()


def limits(
    replicas: int, max_surge: int | str, max_unavailable: int | str, policy: DeletePolicy
) -> Wanted:
    """What a user's numbers and percentages come to; surge rounds up and unavailability down."""
    surge = _share(max_surge, replicas, math.ceil)
    unavailable = min(_share(max_unavailable, replicas, math.floor), replicas)
    # Neither more nor fewer machines would mean that none is ever replaced.
    return Wanted(replicas, surge, unavailable if surge else max(1, unavailable), policy)


def next_changes(
    members: Sequence[Member], wanted: Wanted, *, may_leave: int | None = None
) -> Changes:
    """The machines to remove now, `may_leave` at most, and then to make.

    Never are more than `wanted.unavailable` of the wanted number away because of us, nor are
    there more than `wanted.surge` too many. Those that are already on their way out count as gone.
    """
    alive = [one for one in members if not one.deleting]
    there = [one for one in alive if not one.lost]
    remove = _removals(alive, wanted)[:may_leave]
    current = sum(one.current for one in there)
    outdated = len(there) - current
    left = len(there) - sum(one.name in remove for one in there)
    limit = wanted.replicas + (wanted.surge if outdated else 0)
    return Changes(max(0, min(wanted.replicas - current, limit - left)), remove)


def _removals(alive: Sequence[Member], wanted: Wanted) -> tuple[str, ...]:
    """Which machines go: lost ones, surplus ones, and outdated ones as fast as others stand in."""
    there = [one for one in alive if not one.lost]
    least = max(0, wanted.replicas - wanted.unavailable)
    ready = sum(one.ready for one in there)
    surplus = sum(one.current for one in there) - wanted.replicas
    # New machines that are not ready stand in for nobody, so a bad version stops at the first few.
    spare = len(there) - sum(one.current and not one.ready for one in there) - least
    removed: list[str] = []
    for one in sorted(alive, key=lambda one: _turn(one, wanted.policy)):
        if not one.removable:
            continue
        if not one.lost:
            if (surplus if one.current else spare) <= 0 or (one.ready and ready <= least):
                continue
            ready -= one.ready
            surplus -= one.current
            spare -= not one.current
        removed.append(one.name)
    return tuple(removed)


def _turn(one: Member, policy: DeletePolicy) -> tuple[bool, bool, bool, bool, float | str]:
    moment = one.created.timestamp()
    order: dict[DeletePolicy, float | str] = {
        "Oldest": moment,
        "Newest": -moment,
        "Random": hashlib.sha256(one.name.encode()).hexdigest(),
    }
    return not one.lost, one.current, not one.goes_first, one.ready, order[policy]


def _share(value: int | str, of: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounded(of * int(value.removesuffix("%")) / 100)
