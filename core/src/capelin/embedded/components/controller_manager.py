"""The command line of kube-controller-manager."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from capelin.embedded.components.arguments import Extra, command_line
from capelin.embedded.components.files import CertificateFiles

OWNED = frozenset(
    {
        "authentication-kubeconfig",
        "authorization-kubeconfig",
        "bind-address",
        "cert-dir",
        "client-ca-file",
        "cluster-cidr",
        "cluster-name",
        "cluster-signing-cert-file",
        "cluster-signing-key-file",
        "kubeconfig",
        "leader-elect",
        "permit-address-sharing",
        "permit-port-sharing",
        "root-ca-file",
        "secure-port",
        "service-account-private-key-file",
        "service-cluster-ip-range",
        "tls-cert-file",
        "tls-private-key-file",
        "use-service-account-credentials",
    }
)
"""Flags that users cannot set: addresses, files and what must agree with other components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeControllerManager:
    """One kube-controller-manager."""

    kubeconfig: PurePath
    bind_address: str
    port: int
    serving: CertificateFiles
    client_ca: PurePath
    signing: CertificateFiles | None = None
    """The CA that signs what kubelets and users ask to have signed."""
    root_ca: PurePath
    """What pods are given to trust the API server by."""
    service_account_key: PurePath
    service_cidr: str
    pod_cidr: str | None = None
    """Nodes get their share of it; left out, nodes get none."""
    cluster_name: str = "kubernetes"
    controllers: tuple[str, ...] = ("*", "bootstrap-signer-controller", "token-cleaner-controller")
    elects_leader: bool = True
    features: Mapping[str, bool] = field(default_factory=dict[str, bool])
    extra: Extra = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a kube-controller-manager."""
        signing = self.signing
        return command_line(
            {
                "allocate-node-cidrs": self.pod_cidr is not None,
                "authentication-kubeconfig": self.kubeconfig,
                "authorization-kubeconfig": self.kubeconfig,
                "bind-address": self.bind_address,
                "client-ca-file": self.client_ca,
                "cluster-cidr": self.pod_cidr,
                "cluster-name": self.cluster_name,
                "cluster-signing-cert-file": signing and signing.certificate,
                "cluster-signing-key-file": signing and signing.key,
                "controllers": self.controllers,
                "kubeconfig": self.kubeconfig,
                "leader-elect": self.elects_leader,
                "profiling": False,
                "root-ca-file": self.root_ca,
                "secure-port": self.port,
                "service-account-private-key-file": self.service_account_key,
                "service-cluster-ip-range": self.service_cidr,
                "tls-cert-file": self.serving.certificate,
                "tls-private-key-file": self.serving.key,
                "use-service-account-credentials": True,
            },
            extra=self.extra,
            owned=OWNED,
            features=self.features,
        )
