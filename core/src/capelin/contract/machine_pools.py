"""Machine pools: provider ids, sizes, and which instance goes first.

Rules `infra-machine-pool/provider-id-list`, `infra-machine-pool/machines`,
`infra-machine-pool/autoscaler`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capelin.api import BaseObject
from capelin.contract.labels import (
    AUTOSCALER_MAX_SIZE_ANNOTATION,
    AUTOSCALER_MIN_SIZE_ANNOTATION,
    DELETE_MACHINE_ANNOTATION,
    REPLICAS_MANAGED_BY_ANNOTATION,
)

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


@dataclass(frozen=True, slots=True)
class Sizes:
    """How far the cluster autoscaler may go."""

    least: int
    most: int


def autoscaler_sizes(annotations: Mapping[str, str]) -> Sizes | None:
    """How far the cluster autoscaler may go with a pool; nothing if it is not to touch it.

    Raises:
        ValueError: the annotations contradict themselves.
    """
    least = _size(annotations, AUTOSCALER_MIN_SIZE_ANNOTATION)
    most = _size(annotations, AUTOSCALER_MAX_SIZE_ANNOTATION)
    if least is None or most is None:
        return None
    if least > most:
        raise ValueError(
            f"annotation {AUTOSCALER_MIN_SIZE_ANNOTATION} says {least}, which is more than "
            f"{AUTOSCALER_MAX_SIZE_ANNOTATION} says, {most}; make the first the smaller one"
        )
    return Sizes(least, most)


def replicas_are_managed_elsewhere(annotations: Mapping[str, str]) -> bool:
    """Whether somebody else decides how many replicas a pool has."""
    return annotations.get(REPLICAS_MANAGED_BY_ANNOTATION, "false") != "false"


def is_to_go_first(machine: BaseObject) -> bool:
    """Whether a Machine was chosen to go when there are to be fewer."""
    return DELETE_MACHINE_ANNOTATION in machine.metadata.annotations


def _size(annotations: Mapping[str, str], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()):
        raise ValueError(f"annotation {name} says {value!r}; write a number of replicas there")
    return int(value)
