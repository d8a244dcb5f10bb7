"""Failure domains: reading both generations' shape, and spreading over them.

Rules `infra-cluster/failure-domains`, `control-plane/placement`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from capelin.api.capi import FailureDomain


def read(value: object) -> list[FailureDomain]:
    """The failure domains in a status: the list of v1beta2, or the map of v1beta1 by name."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return [
            FailureDomain.read({**(entries[name] or {}), "name": name}) for name in sorted(entries)
        ]
    return [FailureDomain.read(entry) for entry in cast("Iterable[Mapping[str, Any]]", value or ())]


def for_control_plane(domains: Iterable[FailureDomain]) -> list[str]:
    """The names of those that are meant for control planes."""
    return [domain.name for domain in domains if domain.control_plane]


def fewest(domains: Sequence[str], placed: Iterable[str | None], *, seed: str = "") -> str | None:
    """Where the next one goes: the domain that has the fewest, or none if there are no domains.

    Args:
        domains: Where it may go.
        placed: Where the others are; what is nowhere, or elsewhere, does not count.
        seed: Whose they are. It decides between domains that have the same number, so that many
            small clusters do not all begin in the same one.
    """
    counts = Counter(placed)
    return min(domains, key=lambda name: (counts[name], _shuffled(seed, name)), default=None)


def most(
    domains: Sequence[str],
    placed: Iterable[str | None],
    removable: Iterable[str | None],
    *,
    seed: str = "",
) -> str | None:
    """Where to take one away: the domain that has the most, of those with one that may go.

    Args:
        domains: Where they may be.
        placed: Where all of them are.
        removable: Where those are that may go.
        seed: As given to `fewest`, whose choices are taken back in reverse.
    """
    counts = Counter(placed)
    possible = set(removable)
    return max(
        (name for name in domains if name in possible),
        key=lambda name: (counts[name], _shuffled(seed, name)),
        default=None,
    )


def _shuffled(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()
