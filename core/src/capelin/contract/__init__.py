"""Cluster API's contracts: their vocabulary and the functions that keep them.

Its modules are its public names: `conditions.update(...)`, `owners.ensure(...)`.
"""

from capelin.contract import (
    clusters,
    conditions,
    failure_domains,
    machine_pools,
    metadata,
    names,
    owners,
    pausing,
    replicas,
    secrets,
    versions,
    vocabulary,
)
from capelin.contract.conditions import ConditionSpec

__all__ = [
    "ConditionSpec",
    "clusters",
    "conditions",
    "failure_domains",
    "machine_pools",
    "metadata",
    "names",
    "owners",
    "pausing",
    "replicas",
    "secrets",
    "versions",
    "vocabulary",
]
