"""The provider as it is installed: its kinds, its permissions and its manager."""

from importlib.metadata import version

from capelin.provider import Provider

from capelin_machine_pool.api import (
    CapelinClusterTemplate,
    CapelinMachinePoolTemplate,
    CapelinMachineTemplate,
)
from capelin_machine_pool.desired import MANAGER
from capelin_machine_pool.reconcilers import (
    ClusterReconciler,
    HostReconciler,
    MachinePoolReconciler,
    MachineReconciler,
    MachineTemplateReconciler,
)


def provider() -> Provider:
    return Provider.of(
        "capelin",
        "InfrastructureProvider",
        version=f"v{version('capelin-machine-pool')}",
        module="capelin_machine_pool",
        manager=MANAGER,
        reconcilers=[
            ClusterReconciler,
            MachineReconciler,
            MachinePoolReconciler,
            MachineTemplateReconciler,
            HostReconciler,
        ],
        kinds=[CapelinClusterTemplate, CapelinMachinePoolTemplate, CapelinMachineTemplate],
        programs=["kwok"],
    )
