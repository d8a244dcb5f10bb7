"""The program of the end-to-end tests: all managers in pods of a kind cluster, from a release."""

from pathlib import Path
from typing import Annotated, Final

import pulumi
import pulumi_kubernetes as kubernetes
from capelin.api import DescribedModel
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from pydantic import Field

from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.manifests import (
    CertManager,
    CheckedManifestsArgs,
    ClusterApi,
    ManifestsArgs,
    Provider,
    RuntimeExtension,
)
from capelin_infra.components.repository import ComponentRepository
from capelin_infra.resources import KindCluster, WorkloadCluster

_FEATURES: Final = {
    "CLUSTER_TOPOLOGY": "true",
    "EXP_MACHINE_POOL": "true",
    "EXP_RUNTIME_SDK": "true",
}


class E2EConfig(DescribedModel):
    """Settings of the program `e2e`."""

    repository: str
    """The folder `clusterctl` of a release."""
    name: str = "capelin-e2e"
    """Name of the kind cluster."""
    node_image: str = ""
    """Image of kind's nodes. Default: kind's own."""
    images: str = ""
    """Image archives to load into the nodes, separated by commas."""
    cert_manager: bool = True
    """Whether to install cert-manager. Without it, the cluster has to have it."""
    lifecycle: bool = True
    """Whether to install the lifecycle extension."""
    kubernetes_version: str = DEFAULT_KUBERNETES
    """Kubernetes version of the workload cluster, whose images the nodes have or pull."""
    workers: Annotated[int, Field(ge=0, le=1000)] = 2
    """Workers of the workload cluster."""


def e2e(config: E2EConfig) -> None:
    """Make it all, in the order in which each part needs the ones before."""
    repository = ComponentRepository(Path(config.repository))
    kind = KindCluster(
        "kind",
        name=config.name,
        image=config.node_image or None,
        images=[each for each in config.images.split(",") if each],
    )
    kubeconfig = pulumi.Output.secret(kind.kubeconfig)
    api_server = kubernetes.Provider(
        "api-server",
        kubeconfig=kubeconfig,
        delete_unreachable=True,
        cluster_identifier=config.name,
    )

    options = pulumi.ResourceOptions(providers=[api_server])
    manifests = repository.manifests("cert-manager") if config.cert_manager else []
    cert_manager = CertManager(
        "cert-manager", CheckedManifestsArgs(kubeconfig, manifests, kind), options
    )
    core = ClusterApi(
        "cluster-api",
        CheckedManifestsArgs(
            kubeconfig,
            [
                *repository.manifests("cluster-api", _FEATURES),
                *repository.manifests("bootstrap-kubeadm", _FEATURES),
            ],
            kind,
            [cert_manager.ready],
        ),
        options,
    )
    providers: list[pulumi.Resource] = [
        Provider(label, ManifestsArgs(repository.manifests(label), kind, [core.ready]), options)
        for label in ("control-plane-capelin", "infrastructure-capelin")
    ]
    if config.lifecycle:
        label = "runtime-extension-lifecycle"
        arguments = ManifestsArgs(repository.manifests(label), kind, [core.ready])
        providers.append(RuntimeExtension(label, arguments, options))
    cluster_class = ClusterClass(
        "capelin", ClusterClassArgs(deleted_with=kind, after=providers), options
    )
    cluster = WorkloadCluster(
        "demo",
        kubeconfig=kubeconfig,
        name="demo",
        namespace=cluster_class.namespace,
        cluster_class=cluster_class.name,
        kubernetes_version=config.kubernetes_version,
        workers=config.workers,
        # kind has no load balancer.
        variables={"backend": "Pods", "exposure": "NodePort"},
        opts=pulumi.ResourceOptions(depends_on=[cluster_class], deleted_with=kind),
    )
    pulumi.export("kubeconfig", kubeconfig)
    pulumi.export("workloadKubeconfig", pulumi.Output.secret(cluster.workload_kubeconfig))
    pulumi.export("endpoint", cluster.endpoint)
