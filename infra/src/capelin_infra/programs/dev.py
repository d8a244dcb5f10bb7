"""The program of a developer's environment: a management cluster and a workload cluster in it."""

from typing import Annotated

import pulumi
from capelin.api import DescribedModel
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from pydantic import Field

from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.management_cluster import (
    ManagementCluster,
    ManagementClusterArgs,
    Target,
)
from capelin_infra.resources import WorkloadCluster


class DevConfig(DescribedModel):
    """Settings of the program `dev`."""

    target: Target = "process"
    """Where the management cluster's API server is: kind, process or existing."""
    name: str = "dev"
    """Name of the environment in `capelin status -e NAME`, and of the kind cluster."""
    kubernetes_version: str = DEFAULT_KUBERNETES
    """Kubernetes version of the workload cluster, and of the API server on the target process."""
    workers: Annotated[int, Field(ge=0, le=1000)] = 3
    """Workers of the workload cluster."""
    control_plane_replicas: Annotated[int, Field(ge=1, le=9)] = 1
    """Control plane replicas of the workload cluster."""
    node_image: str = ""
    """Image of kind's nodes. Default: kind's own."""
    kubeconfig: str = ""
    """Content of a kubeconfig, for the target existing. Set it as a secret."""
    machine_image: str = ""
    """Image of machines that are containers, such as kindest/node:v1.36.1. Default: simulated."""


def dev(config: DevConfig) -> None:
    """Make the environment, and export the kubeconfigs."""
    images = [config.machine_image] if config.machine_image else []
    management = ManagementCluster(
        "management",
        ManagementClusterArgs(
            name=config.name,
            target=config.target,
            kubernetes_version=config.kubernetes_version,
            node_image=config.node_image or None,
            kubeconfig=pulumi.Output.secret(config.kubeconfig) if config.kubeconfig else None,
            machine_images=images,
        ),
    )
    cluster_class = ClusterClass(
        "capelin",
        ClusterClassArgs(),
        pulumi.ResourceOptions(providers=[management.provider], depends_on=[management]),
    )
    cluster = WorkloadCluster(
        "demo",
        kubeconfig=management.kubeconfig,
        name="demo",
        namespace=cluster_class.namespace,
        cluster_class=cluster_class.name,
        kubernetes_version=config.kubernetes_version,
        control_plane_replicas=config.control_plane_replicas,
        workers=config.workers,
        machine_images=images,
        opts=pulumi.ResourceOptions(depends_on=[cluster_class]),
    )
    pulumi.export("kubeconfig", management.kubeconfig)
    pulumi.export("workloadKubeconfig", pulumi.Output.secret(cluster.workload_kubeconfig))
    pulumi.export("endpoint", cluster.endpoint)
