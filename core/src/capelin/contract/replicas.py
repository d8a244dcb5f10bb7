"""Counters of replicas, as both generations of the contract name them.

Rule `control-plane/replicas`.
"""

from collections.abc import Mapping


def counters(
    desired: int, *, existing: int, ready: int, available: int, up_to_date: int
) -> dict[str, int]:
    """The fields of a status that count replicas, by their names in Python.

    Args:
        desired: How many there are to be.
        existing: How many there are.
        ready: How many of them are fully running.
        available: How many of them have been ready for long enough to be counted on.
        up_to_date: How many of them are as the spec now wants them.
    """
    return {
        "replicas": existing,
        "ready_replicas": ready,
        "available_replicas": available,
        "up_to_date_replicas": up_to_date,
        # Of v1beta1, where core finds the available ones by subtraction.
        "updated_replicas": up_to_date,
        "unavailable_replicas": max(0, desired - available),
    }


def selector(labels: Mapping[str, str]) -> str:
    """`status.selector`: by which labels the scale subresource's readers find the replicas."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
