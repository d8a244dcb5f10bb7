"""The component that installs cert-manager, and proves that its webhook answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pulumi
from capelin.api import Unstructured

from capelin_infra.pulumi.components.manifests import Manifests, ManifestsArgs
from capelin_infra.pulumi.components.objects import admission_check

_GATE: Final[Unstructured] = {
    "apiVersion": "cert-manager.io/v1",
    "kind": "Issuer",
    "metadata": {"name": "capelin-gate", "namespace": "default"},
    "spec": {"selfSigned": {}},
}


@dataclass(frozen=True, slots=True)
class CertManagerArgs:
    """Arguments of cert-manager."""

    kubeconfig: pulumi.Input[str]
    """Content of a kubeconfig of the cluster."""
    manifests: Sequence[Unstructured] = ()
    """cert-manager's objects. None where the cluster has it already."""
    deleted_with: pulumi.Resource | None = None
    """What takes all of it with it when it is deleted."""
    after: Sequence[pulumi.Resource] = ()
    """What has to be there first."""


class CertManager(pulumi.ComponentResource):
    """cert-manager, there when an Issuer would be accepted."""

    ready: pulumi.Resource
    """What needs certificates depends on it."""

    def __init__(
        self,
        resource_name: str,
        args: CertManagerArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:CertManager", resource_name, None, opts)
        installed = Manifests(
            f"{resource_name}-objects",
            ManifestsArgs(args.manifests, args.deleted_with, args.after),
            pulumi.ResourceOptions(parent=self),
        )
        # Its pods are ready before the CA of its webhook is known to the API server.
        self.ready = admission_check(
            f"{resource_name}-webhook",
            args.kubeconfig,
            _GATE,
            parent=self,
            depends_on=[each for stage in installed.stages for each in stage],
        )
        self.register_outputs({})
