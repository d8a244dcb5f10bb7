"""The contracts as data: what each asks for, of whom, and where that is stated."""

from capelin.conformance.contracts.clusterctl import CLUSTERCTL
from capelin.conformance.contracts.control_plane import CONTROL_PLANE
from capelin.conformance.contracts.infra_cluster import INFRA_CLUSTER
from capelin.conformance.contracts.infra_machine import INFRA_MACHINE
from capelin.conformance.contracts.infra_machine_pool import INFRA_MACHINE_POOL
from capelin.conformance.contracts.rule import Contract, ContractRule, Field, Generation
from capelin.conformance.contracts.runtime_sdk import RUNTIME_SDK

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
    "ContractRule",
    "Field",
    "Generation",
]
