"""The provider as Cluster API installs it: its kinds, its permissions, its manager."""

from importlib.metadata import version

from capelin.api import crd, immutable_templates
from capelin.controller import rbac
from capelin.provider import Provider

from capelin_machine_pool.api import (
    CapelinCluster,
    CapelinClusterTemplate,
    CapelinMachine,
    CapelinMachinePool,
    CapelinMachinePoolTemplate,
    CapelinMachineTemplate,
)
from capelin_machine_pool.reconcilers import (
    ClusterReconciler,
    MachinePoolReconciler,
    MachineReconciler,
    MachineTemplateReconciler,
)

LABEL = "infrastructure-capelin"
KINDS = (
    CapelinCluster,
    CapelinClusterTemplate,
    CapelinMachine,
    CapelinMachineTemplate,
    CapelinMachinePool,
    CapelinMachinePoolTemplate,
)


def provider() -> Provider:
    """What an environment needs to know to run this provider."""
    return Provider(
        name="capelin",
        type="InfrastructureProvider",
        version=f"v{version('capelin-machine-pool')}",
        module="capelin_machine_pool",
        crds=[crd(kind, provider=LABEL) for kind in KINDS],
        rules=rbac(
            [ClusterReconciler, MachineReconciler, MachinePoolReconciler, MachineTemplateReconciler]
        ),
        programs=["kwok"],
        # Of the others, topologies alone make something, and that follows their changes.
        objects=immutable_templates(
            f"{LABEL}-{CapelinMachineTemplate.resource.plural}", CapelinMachineTemplate
        ),
    )
