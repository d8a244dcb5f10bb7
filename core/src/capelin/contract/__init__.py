"""Cluster API's contracts: labels, conditions, and functions that keep them.

Its modules are its public names: `conditions.update(...)`, `owners.ensure(...)`.
"""

from capelin.contract import (
    clusters,
    conditions,
    failure_domains,
    labels,
    machine_pools,
    metadata,
    names,
    owners,
    pausing,
    replicas,
    secrets,
    versions,
)
from capelin.contract.conditions import ConditionSpec

__all__ = [
    "ConditionSpec",
    "clusters",
    "conditions",
    "failure_domains",
    "labels",
    "machine_pools",
    "metadata",
    "names",
    "owners",
    "pausing",
    "replicas",
    "secrets",
    "versions",
]
