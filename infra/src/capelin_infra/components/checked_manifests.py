"""The components that install cert-manager and Cluster API, and wait for their webhooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi
from capelin.api import Unstructured

from capelin_infra.components.manifests import Manifests, ManifestsArgs
from capelin_infra.components.objects import admission_check


@dataclass(frozen=True, slots=True)
class CheckedManifestsArgs:
    """Arguments of cert-manager and of Cluster API."""

    kubeconfig: pulumi.Input[str]
    """Content of a kubeconfig of the cluster."""
    manifests: Sequence[Unstructured] = ()
    """The objects. None where the cluster has them already."""
    deleted_with: pulumi.Resource | None = None
    """The resource whose deletion removes all of it."""
    after: Sequence[pulumi.Resource] = ()
    """Resources that must exist first."""


class CheckedManifests(pulumi.ComponentResource):
    """Manifests whose webhooks answer: the API server would accept a sample object."""

    _check: ClassVar[str]
    """Suffix of the name of the check."""
    _sample: ClassVar[Unstructured]

    ready: pulumi.Resource
    """Resources that need the webhooks depend on it."""

    def __init__(
        self,
        resource_name: str,
        args: CheckedManifestsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(f"capelin:components:{type(self).__name__}", resource_name, None, opts)
        installed = Manifests(
            f"{resource_name}-objects",
            ManifestsArgs(args.manifests, args.deleted_with, args.after),
            pulumi.ResourceOptions(parent=self),
        )
        # Pods are ready before the CA of their webhook is known to the API server.
        self.ready = admission_check(
            f"{resource_name}-{self._check}",
            args.kubeconfig,
            self._sample,
            parent=self,
            depends_on=[resource for stage in installed.stages for resource in stage],
        )
        self.register_outputs({})


class CertManager(CheckedManifests):
    """cert-manager, ready when the API server would accept an Issuer."""

    _check = "webhook"
    _sample = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Issuer",
        "metadata": {"name": "capelin-gate", "namespace": "default"},
        "spec": {"selfSigned": {}},
    }


class ClusterApi(CheckedManifests):
    """Cluster API's core and bootstrap providers, ready when they would accept a Cluster."""

    _check = "webhooks"
    _sample = {
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
