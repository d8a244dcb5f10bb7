"""The command lines of kube-apiserver, kube-controller-manager and kube-scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from capelin_embedded.components.arguments import (
    CertificateFiles,
    ClientFiles,
    ExtraArguments,
    command_line,
)

# Flags that users cannot set: addresses, files and values that other components share.

API_SERVER_FLAGS = frozenset(
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

CONTROLLER_MANAGER_FLAGS = frozenset(
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

SCHEDULER_FLAGS = frozenset(
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


def apiserver_dns_names(service_domain: str = "cluster.local") -> tuple[str, ...]:
    """The names of an API server for its own host and for pods."""
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
    bind_address: str
    advertise_address: str
    port: int
    etcd_urls: tuple[str, ...]
    etcd_client: ClientFiles
    serving: CertificateFiles
    client_ca: PurePath
    front_proxy: ClientFiles
    """The CA of front proxies, and the client certificate for aggregated API servers."""
    kubelet_client: CertificateFiles | None = None
    service_account_issuer: str = "https://kubernetes.default.svc.cluster.local"
    service_account_public_keys: tuple[PurePath, ...]
    service_account_key: PurePath
    service_cidr: str
    registers_itself: bool = True
    """Whether it maintains the endpoints of the service `kubernetes`."""
    features: Mapping[str, bool] = field(default_factory=dict[str, bool])
    extra: ExtraArguments = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
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
            owned=API_SERVER_FLAGS,
            features=self.features,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeControllerManager:
    kubeconfig: PurePath
    bind_address: str
    port: int
    serving: CertificateFiles
    client_ca: PurePath
    signing: CertificateFiles | None = None
    """The CA that signs certificate signing requests."""
    root_ca: PurePath
    """The CA certificate that pods get to verify the API server."""
    service_account_key: PurePath
    service_cidr: str
    pod_cidr: str | None = None
    """The range for the pod ranges of nodes. None disables their allocation."""
    cluster_name: str = "kubernetes"
    controllers: tuple[str, ...] = ("*", "bootstrap-signer-controller", "token-cleaner-controller")
    elects_leader: bool = True
    extra: ExtraArguments = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
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
            owned=CONTROLLER_MANAGER_FLAGS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeScheduler:
    kubeconfig: PurePath
    bind_address: str
    port: int
    serving: CertificateFiles
    client_ca: PurePath
    elects_leader: bool = True
    extra: ExtraArguments = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> tuple[str, ...]:
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
            owned=SCHEDULER_FLAGS,
        )
