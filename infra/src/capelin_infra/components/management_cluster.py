"""The component that provides a management cluster with Cluster API and Capelin's providers."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as kubernetes

from capelin_infra.resources import Environment, KindCluster


@dataclass(frozen=True, slots=True)
class ManagementClusterArgs:
    """Arguments of a management cluster."""

    name: str
    """Name of the environment, and of the kind cluster."""
    target: str = "process"
    """Where the API server is: `process`, `kind` or `existing`."""
    kubernetes_version: str | None = None
    """Kubernetes version of the API server, for the target `process`."""
    node_image: str | None = None
    """Image of the nodes, for the target `kind`."""
    providers: Sequence[str] = ("kubeadm-bootstrap",)
    """More of Cluster API's own providers."""
    kubeconfig: pulumi.Input[str] | None = None
    """Content of a kubeconfig, for the target `existing`."""
    machine_images: Sequence[str] = ()
    """Images of machines that are containers. Machines are simulated without any."""


class ManagementCluster(pulumi.ComponentResource):
    """A management cluster in which Cluster API runs."""

    kubeconfig: pulumi.Output[str]
    """Content of the administrator's kubeconfig."""
    uid: pulumi.Output[str]
    """Distinguishes the cluster from others."""
    environment: Environment
    """Its deletion removes everything in the cluster that needs Cluster API."""
    provider: kubernetes.Provider
    """For resources of pulumi-kubernetes in this cluster."""

    def __init__(
        self,
        resource_name: str,
        args: ManagementClusterArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:ManagementCluster", resource_name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        existing = self._existing(resource_name, args, child)
        self.environment = Environment(
            f"{resource_name}-environment",
            name=args.name,
            kubernetes_version=args.kubernetes_version,
            providers=list(args.providers),
            existing_kubeconfig=existing,
            machine_images=list(args.machine_images),
            opts=child,
        )
        self.kubeconfig = pulumi.Output.secret(self.environment.kubeconfig)
        self.uid = self.environment.uid
        self.provider = kubernetes.Provider(
            f"{resource_name}-api-server",
            kubeconfig=self.kubeconfig,
            cluster_identifier=self.uid,
            opts=child,
        )
        self.register_outputs({"kubeconfig": self.kubeconfig, "uid": self.uid})

    @staticmethod
    def _existing(
        resource_name: str, args: ManagementClusterArgs, child: pulumi.ResourceOptions
    ) -> pulumi.Input[str] | None:
        """The kubeconfig of an API server that is not a process of ours."""
        match args.target:
            case "process":
                return None
            case "kind":
                cluster = KindCluster(
                    f"{resource_name}-kind", name=args.name, image=args.node_image, opts=child
                )
                return pulumi.Output.secret(cluster.kubeconfig)
            case "existing":
                if args.kubeconfig is None:
                    raise ValueError("the target existing needs a kubeconfig")
                return args.kubeconfig
            case other:
                raise ValueError(f"the target is process, kind or existing, and not {other}")
