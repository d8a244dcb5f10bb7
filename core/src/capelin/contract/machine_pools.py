"""Machine pools: provider IDs, failure domains, and the machines to delete first."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from capelin.api import BaseObject
from capelin.contract.labels import DELETE_MACHINE_ANNOTATION

LONGEST_PROVIDER_ID = 512
MOST_PROVIDER_IDS = 10000


def provider_id_list(provider_ids: Iterable[str]) -> list[str]:
    """`spec.providerIDList`, sorted because core treats another order as a change.

    Raises:
        ValueError: one cannot be the id of a Node, two are the same, or there are too many.
    """
    listed = sorted(provider_ids)
    for provider_id, times in Counter(listed).items():
        if not 0 < len(provider_id) <= LONGEST_PROVIDER_ID:
            raise ValueError(
                f"a provider id has 1 to {LONGEST_PROVIDER_ID} characters, and this one has "
                f"{len(provider_id)}: {provider_id[:80]!r}. Give the instance a shorter id"
            )
        if times > 1:
            raise ValueError(
                f"{times} instances have the provider id {provider_id!r}, and core finds each "
                "instance's Node by it. Give every instance an id of its own"
            )
    if len(listed) > MOST_PROVIDER_IDS:
        raise ValueError(
            f"a pool cannot have {len(listed)} instances, because the contract allows at most "
            f"{MOST_PROVIDER_IDS}. Use several pools"
        )
    return listed


def is_to_go_first(machine: BaseObject) -> bool:
    """Whether the Machine is marked as the first to delete."""
    return DELETE_MACHINE_ANNOTATION in machine.metadata.annotations


def emptiest_domain(
    domains: Sequence[str], placed: Iterable[str | None], *, seed: str = ""
) -> str | None:
    """The failure domain with the fewest machines, or `None` without domains.

    Args:
        domains: The domains to choose from.
        placed: The domains of the other machines. Others than `domains` do not count.
        seed: The owner of the machines. It breaks ties, so that many small clusters do not all
            begin in the same domain.
    """
    counts = Counter(placed)
    return min(domains, key=lambda name: (counts[name], _shuffled(seed, name)), default=None)


def _shuffled(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()
