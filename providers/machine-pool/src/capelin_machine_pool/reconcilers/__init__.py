"""The reconcilers of the provider."""

from capelin_machine_pool.reconcilers.clusters import ClusterReconciler
from capelin_machine_pool.reconcilers.hosts import HostReconciler
from capelin_machine_pool.reconcilers.machines import MachineReconciler, MachineTemplateReconciler
from capelin_machine_pool.reconcilers.pools import MachinePoolReconciler

__all__ = [
    "ClusterReconciler",
    "HostReconciler",
    "MachinePoolReconciler",
    "MachineReconciler",
    "MachineTemplateReconciler",
]
