"""Machine pools: provider IDs, failure domains, and the machines to delete first."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from capelin.api import BaseObject
from capelin.api.capi import Machine, MachinePool
from capelin.contract.conditions import is_condition_true
from capelin.contract.labels import DELETE_MACHINE_ANNOTATION, PAUSED_ANNOTATION
from capelin.contract.references import controller_of

LONGEST_PROVIDER_ID = 512
MOST_PROVIDER_IDS = 10000
_COUNTED = ("Ready", "Available", "UpToDate")
"""The conditions of Machines that core counts in the status of a MachinePool, in this order."""


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


def is_miscounted(machine_pool: MachinePool, counts: Counter[str]) -> bool:
    """Whether the status of a MachinePool does not match its Machines.

    Core does not watch the Machines of a pool. It counts them when another object of the pool
    changes, and otherwise at its next sync, up to ten minutes later.

    Args:
        machine_pool: The MachinePool. Core does not count the Machines of a paused one.
        counts: The sum of `machine_counts` of its Machines.
    """
    status = machine_pool.status
    replicas = (status.ready_replicas, status.available_replicas, status.up_to_date_replicas)
    counted = Counter({name: number or 0 for name, number in zip(_COUNTED, replicas, strict=True)})
    counted.update({entry.version: entry.replicas or 0 for entry in status.versions})
    if not status.versions:
        # Releases of core before v1.14 do not count versions.
        counts = Counter({name: counts[name] for name in _COUNTED})
    return counted != counts and PAUSED_ANNOTATION not in machine_pool.metadata.annotations


def machine_counts(machine_pool: MachinePool, machine: Machine) -> Counter[str]:
    """The conditions and the version of a Machine, as core counts them for its MachinePool."""
    controller = controller_of(machine.metadata.owner_references)
    if controller is not None and controller.uid != machine_pool.uid:
        return Counter()
    conditions, info = machine.status.conditions, machine.status.node_info
    version = (info.kubelet_version if info else None) or machine.spec.version
    names = [name for name in _COUNTED if is_condition_true(conditions, name)]
    return Counter([*names, version] if version else names)


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

    def order(name: str) -> tuple[int, bytes]:
        return counts[name], hashlib.sha256(f"{seed}/{name}".encode()).digest()

    return min(domains, key=order, default=None)
