"""The command line of kube-scheduler."""

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
        "config",
        "kubeconfig",
        "leader-elect",
        "permit-address-sharing",
        "permit-port-sharing",
        "secure-port",
        "tls-cert-file",
        "tls-private-key-file",
    }
)
"""Flags that users cannot set: addresses, files and what must agree with other components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeScheduler:
    """One kube-scheduler."""

    kubeconfig: PurePath
    bind_address: str
    port: int
    serving: CertificateFiles
    client_ca: PurePath
    elects_leader: bool = True
    features: Mapping[str, bool] = field(default_factory=dict[str, bool])
    extra: Extra = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a kube-scheduler."""
        return command_line(
            {
                "authentication-kubeconfig": self.kubeconfig,
                "authorization-kubeconfig": self.kubeconfig,
                "bind-address": self.bind_address,
                "client-ca-file": self.client_ca,
                "kubeconfig": self.kubeconfig,
                "leader-elect": self.elects_leader,
                "profiling": False,
                "secure-port": self.port,
                "tls-cert-file": self.serving.certificate,
                "tls-private-key-file": self.serving.key,
            },
            extra=self.extra,
            owned=OWNED,
            features=self.features,
        )
