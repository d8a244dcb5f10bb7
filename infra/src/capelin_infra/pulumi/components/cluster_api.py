"""The component that installs Cluster API's core and its kubeadm bootstrap provider in pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pulumi
from capelin.api import Unstructured

from capelin_infra.pulumi.components.manifests import Manifests, ManifestsArgs
from capelin_infra.pulumi.components.objects import admission_check

_GATE: Final[Unstructured] = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "capelin-gate", "namespace": "default"},
    "spec": {
        "controlPlaneRef": {
            "apiGroup": "controlplane.cluster.x-k8s.io",
            "kind": "CapelinControlPlane",
            "name": "capelin-gate",
        }
    },
}


@dataclass(frozen=True, slots=True)
class ClusterApiArgs:
    """Arguments of Cluster API."""

    kubeconfig: pulumi.Input[str]
    """Content of a kubeconfig of the cluster."""
    manifests: Sequence[Unstructured]
    """The objects of core and of bootstrap providers. Their certificates need cert-manager."""
    deleted_with: pulumi.Resource | None = None
    """What takes all of it with it when it is deleted."""
    after: Sequence[pulumi.Resource] = ()
    """What has to be there first."""


class ClusterApi(pulumi.ComponentResource):
    """Cluster API, there when a Cluster would be accepted."""

    ready: pulumi.Resource
    """Providers and ClusterClasses depend on it."""

    def __init__(
        self,
        resource_name: str,
        args: ClusterApiArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:ClusterApi", resource_name, None, opts)
        installed = Manifests(
            f"{resource_name}-objects",
            ManifestsArgs(args.manifests, args.deleted_with, args.after),
            pulumi.ResourceOptions(parent=self),
        )
        self.ready = admission_check(
            f"{resource_name}-webhooks",
            args.kubeconfig,
            _GATE,
            parent=self,
            depends_on=[each for stage in installed.stages for each in stage],
        )
        self.register_outputs({})
