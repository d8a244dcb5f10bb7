"""The contracts as data: what each asks for, of whom, and where that is stated."""

from capelin.contract.rules.clusterctl import CLUSTERCTL
from capelin.contract.rules.control_plane import CONTROL_PLANE
from capelin.contract.rules.infra_cluster import INFRA_CLUSTER
from capelin.contract.rules.infra_machine import INFRA_MACHINE
from capelin.contract.rules.infra_machine_pool import INFRA_MACHINE_POOL
from capelin.contract.rules.rule import Contract, Field, Generation, Rule
from capelin.contract.rules.runtime_sdk import RUNTIME_SDK

CONTRACTS = (
    CONTROL_PLANE,
    INFRA_CLUSTER,
    INFRA_MACHINE,
    INFRA_MACHINE_POOL,
    CLUSTERCTL,
    RUNTIME_SDK,
)
"""All of them."""

__all__ = [
    "CLUSTERCTL",
    "CONTRACTS",
    "CONTROL_PLANE",
    "INFRA_CLUSTER",
    "INFRA_MACHINE",
    "INFRA_MACHINE_POOL",
    "RUNTIME_SDK",
    "Contract",
    "Field",
    "Generation",
    "Rule",
]
