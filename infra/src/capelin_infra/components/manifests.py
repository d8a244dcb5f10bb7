"""The component that applies manifests in an order that does not race."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import pulumi
from capelin.api import Unstructured

from capelin_infra.components.objects import (
    WAIT_FOR,
    KubernetesObject,
    admission_check,
    kubernetes_object,
)

_STAGES: Final[dict[str, int]] = {
    "CustomResourceDefinition": 0,
    "Namespace": 0,
    "Deployment": 2,
    # While their server does not run, they would make every write fail.
    "MutatingWebhookConfiguration": 3,
    "ValidatingWebhookConfiguration": 3,
    "ExtensionConfig": 3,
}
_ALL_ELSE: Final = 1


@dataclass(frozen=True, slots=True)
class ManifestsArgs:
    """Arguments of manifests."""

    manifests: Sequence[Unstructured]
    """The objects."""
    deleted_with: pulumi.Resource | None = None
    """The resource whose deletion removes all of them, such as a kind cluster."""
    after: Sequence[pulumi.Resource] = ()
    """Resources that must exist first. Pulumi's `depends_on` does not reach children."""


class Manifests(pulumi.ComponentResource):
    """Objects in stages: kinds, objects that pods need, available pods, callers of the pods."""

    stages: Sequence[Sequence[KubernetesObject]]
    """Resources that depend on the last one come after all of them."""

    def __init__(
        self,
        resource_name: str,
        args: ManifestsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(f"capelin:components:{type(self).__name__}", resource_name, None, opts)
        stages: list[list[KubernetesObject]] = []
        for number in range(max(_STAGES.values()) + 1):
            before = stages[-1] if stages else args.after
            made = [
                kubernetes_object(
                    resource_name,
                    manifest,
                    parent=self,
                    depends_on=before,
                    deleted_with=args.deleted_with,
                )
                for manifest in args.manifests
                if stage_of(manifest) == number
            ]
            if made:
                stages.append(made)
        self.stages = stages
        self.register_outputs({})


class Provider(Manifests):
    """Kinds, roles that core's are aggregated from, a service account, an available Deployment."""


class RuntimeExtension(Manifests):
    """A certificate, a service, available pods, and then an ExtensionConfig that is discovered."""

    def __init__(
        self,
        resource_name: str,
        args: ManifestsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        manifests = [
            waiting_for(manifest, "Discovered")
            if manifest["kind"] == "ExtensionConfig"
            else manifest
            for manifest in args.manifests
        ]
        super().__init__(resource_name, replace(args, manifests=manifests), opts)


def stage_of(manifest: Unstructured) -> int:
    """The stage of an object. Pure."""
    return _STAGES.get(manifest["kind"], _ALL_ELSE)


def waiting_for(manifest: Unstructured, condition: str) -> Unstructured:
    """The manifest, of which only that condition makes an available resource."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), WAIT_FOR: f"condition={condition}"}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


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
