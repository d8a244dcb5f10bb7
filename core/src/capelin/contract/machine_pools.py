"""Machine pools: the list of provider ids, where machines go, and which one goes first."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from capelin.api import BaseObject
from capelin.contract.labels import DELETE_MACHINE_ANNOTATION

LONGEST_PROVIDER_ID = 512
MOST_PROVIDER_IDS = 10000


def provider_id_list(provider_ids: Iterable[str]) -> list[str]:
    """`spec.providerIDList`: sorted, because core takes another order for a change.

    Raises:
        ValueError: one cannot be the id of a Node, two are the same, or there are too many.
    """
    listed = sorted(provider_ids)
    for provider_id, times in Counter(listed).items():
        if not 0 < len(provider_id) <= LONGEST_PROVIDER_ID:
            raise ValueError(
                f"a provider id has 1 to {LONGEST_PROVIDER_ID} characters, and this one has "
                f"{len(provider_id)}: {provider_id[:80]!r}; give the instance a shorter id"
            )
        if times > 1:
            raise ValueError(
                f"{times} instances have the provider id {provider_id!r}, and core finds each "
                "instance's Node by it; give every instance an id of its own"
            )
    if len(listed) > MOST_PROVIDER_IDS:
        raise ValueError(
            f"a pool cannot have {len(listed)} instances: the contract ends at "
            f"{MOST_PROVIDER_IDS}; use several pools"
        )
    return listed


def is_to_go_first(machine: BaseObject) -> bool:
    """Whether a Machine was chosen to go when there are to be fewer."""
    return DELETE_MACHINE_ANNOTATION in machine.metadata.annotations


def emptiest_domain(
    domains: Sequence[str], placed: Iterable[str | None], *, seed: str = ""
) -> str | None:
    """Where the next one goes: the domain that has the fewest, or none if there are no domains.

    Args:
        domains: Where it may go.
        placed: Where the others are; what is nowhere, or elsewhere, does not count.
        seed: Whose they are. It decides between domains that have the same number, so that many
            small clusters do not all begin in the same one.
    """
    counts = Counter(placed)
    return min(domains, key=lambda name: (counts[name], _shuffled(seed, name)), default=None)


def _shuffled(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()
