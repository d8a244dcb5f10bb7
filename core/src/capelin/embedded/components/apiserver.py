"""The command line of kube-apiserver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from capelin.embedded.components.arguments import Extra, command_line
from capelin.embedded.components.files import CertificateFiles, ClientFiles

OWNED = frozenset(
    {
        "advertise-address",
        "bind-address",
        "cert-dir",
        "client-ca-file",
        "etcd-cafile",
        "etcd-certfile",
        "etcd-keyfile",
        "etcd-servers",
        "permit-address-sharing",
        "permit-port-sharing",
        "proxy-client-cert-file",
        "proxy-client-key-file",
        "requestheader-allowed-names",
        "requestheader-client-ca-file",
        "requestheader-extra-headers-prefix",
        "requestheader-group-headers",
        "requestheader-username-headers",
        "secure-port",
        "service-account-key-file",
        "service-account-signing-key-file",
        "service-cluster-ip-range",
        "tls-cert-file",
        "tls-private-key-file",
    }
)
"""Flags that users cannot set: addresses, files and what must agree with other components."""


def own_names(service_domain: str = "cluster.local") -> tuple[str, ...]:
    """The names that an API server has to its own host and to pods."""
    service = "kubernetes.default.svc"
    return (
        "localhost",
        "kubernetes",
        "kubernetes.default",
        service,
        f"{service}.{service_domain}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeApiServer:
    """One kube-apiserver."""

    bind_address: str
    advertise_address: str
    port: int
    shares_port: bool = False
    """Several replicas listen on the same address and port."""
    etcd_urls: tuple[str, ...]
    etcd_client: ClientFiles
    serving: CertificateFiles
    client_ca: PurePath
    front_proxy: ClientFiles
    """The CA of aggregated API servers' front proxies, and the certificate shown to them."""
    kubelet_client: CertificateFiles | None = None
    service_account_issuer: str = "https://kubernetes.default.svc.cluster.local"
    service_account_public_keys: tuple[PurePath, ...]
    service_account_key: PurePath
    service_cidr: str
    registers_itself: bool = True
    """Whether it keeps the endpoints of the service `kubernetes`."""
    features: Mapping[str, bool] = field(default_factory=dict[str, bool])
    extra: Extra = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a kube-apiserver."""
        kubelet = self.kubelet_client
        return command_line(
            {
                "advertise-address": self.advertise_address,
                "allow-privileged": True,
                "authorization-mode": "Node,RBAC",
                "bind-address": self.bind_address,
                "client-ca-file": self.client_ca,
                "enable-admission-plugins": "NodeRestriction",
                "enable-bootstrap-token-auth": True,
                "endpoint-reconciler-type": None if self.registers_itself else "none",
                "etcd-cafile": self.etcd_client.ca,
                "etcd-certfile": self.etcd_client.certificate,
                "etcd-keyfile": self.etcd_client.key,
                "etcd-servers": self.etcd_urls,
                "kubelet-client-certificate": kubelet and kubelet.certificate,
                "kubelet-client-key": kubelet and kubelet.key,
                "kubelet-preferred-address-types": kubelet and "InternalIP,ExternalIP,Hostname",
                "permit-port-sharing": self.shares_port or None,
                "profiling": False,
                "proxy-client-cert-file": self.front_proxy.certificate,
                "proxy-client-key-file": self.front_proxy.key,
                "requestheader-allowed-names": "front-proxy-client",
                "requestheader-client-ca-file": self.front_proxy.ca,
                "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                "requestheader-group-headers": "X-Remote-Group",
                "requestheader-username-headers": "X-Remote-User",
                "secure-port": self.port,
                "service-account-issuer": self.service_account_issuer,
                "service-account-key-file": self.service_account_public_keys,
                "service-account-signing-key-file": self.service_account_key,
                "service-cluster-ip-range": self.service_cidr,
                "tls-cert-file": self.serving.certificate,
                "tls-private-key-file": self.serving.key,
            },
            extra=self.extra,
            owned=OWNED,
            features=self.features,
        )
