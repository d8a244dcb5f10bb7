"""The framework for Cluster API providers: reconcilers, their status, and installation.

Imports of the controller package are lazy: tools that only install a provider do not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from capelin.api import admission_policy
from capelin.provider.installation import ENTRY_POINTS, Provider, is_validation, needs_webhook
from capelin.provider.topology import may_patch

if TYPE_CHECKING:
    from capelin.provider.blocked import Blocked, FrameReason, Reasons
    from capelin.provider.changes import Change
    from capelin.provider.context import (
        ControlPlaneContext,
        InfraClusterContext,
        InfraMachineContext,
        InfraMachinePoolContext,
        ProviderContext,
    )
    from capelin.provider.control_plane import ControlPlaneReconciler
    from capelin.provider.fields import (
        CONTRACTS,
        INFRA_CLUSTER,
        INFRA_MACHINE,
        TEMPLATE,
        ControlPlaneInitialization,
        ControlPlaneStatus,
        Endpoint,
        FailureDomain,
        FailureDomains,
        InfraClusterSpec,
        InfraClusterStatus,
        InfraMachinePoolSpec,
        InfraMachinePoolStatus,
        InfraMachineSpec,
        InfraMachineStatus,
        Initialization,
        MachineAddress,
        ProviderID,
        VersionCount,
        definition,
        template_of,
    )
    from capelin.provider.infrastructure import (
        InfraClusterReconciler,
        InfraMachinePoolReconciler,
        InfraMachineReconciler,
    )
    from capelin.provider.migration import (
        Migration,
        StoragePlan,
        migrate_storage,
        storage_plan,
    )
    from capelin.provider.pools import (
        POOL_MACHINES,
        delete_pool,
        delete_pool_machine,
        has_pool_labels,
        is_pool_member,
        new_machine_name,
        request_recount,
        scale_pool,
    )
    from capelin.provider.reconciler import ProviderReconciler

_MODULES = (
    "blocked",
    "changes",
    "fields",
    "context",
    "reconciler",
    "control_plane",
    "infrastructure",
    "pools",
    "migration",
)
"""The modules that define the names, those with few imports first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            loaded = import_module(f"{__name__}.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CONTRACTS",
    "ENTRY_POINTS",
    "INFRA_CLUSTER",
    "INFRA_MACHINE",
    "POOL_MACHINES",
    "TEMPLATE",
    "Blocked",
    "Change",
    "ControlPlaneContext",
    "ControlPlaneInitialization",
    "ControlPlaneReconciler",
    "ControlPlaneStatus",
    "Endpoint",
    "FailureDomain",
    "FailureDomains",
    "FrameReason",
    "InfraClusterContext",
    "InfraClusterReconciler",
    "InfraClusterSpec",
    "InfraClusterStatus",
    "InfraMachineContext",
    "InfraMachinePoolContext",
    "InfraMachinePoolReconciler",
    "InfraMachinePoolSpec",
    "InfraMachinePoolStatus",
    "InfraMachineReconciler",
    "InfraMachineSpec",
    "InfraMachineStatus",
    "Initialization",
    "MachineAddress",
    "Migration",
    "Provider",
    "ProviderContext",
    "ProviderID",
    "ProviderReconciler",
    "Reasons",
    "StoragePlan",
    "VersionCount",
    "admission_policy",
    "definition",
    "delete_pool",
    "delete_pool_machine",
    "has_pool_labels",
    "is_pool_member",
    "is_validation",
    "may_patch",
    "migrate_storage",
    "needs_webhook",
    "new_machine_name",
    "request_recount",
    "scale_pool",
    "storage_plan",
    "template_of",
]
