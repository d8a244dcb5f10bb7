"""The command line of an etcd member."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from capelin_embedded.components.arguments import CertificateFiles, ExtraArguments, command_line

ETCD_FLAGS = frozenset(
    {
        "advertise-client-urls",
        "auto-tls",
        "cert-file",
        "client-cert-auth",
        "config-file",
        "data-dir",
        "discovery",
        "discovery-endpoints",
        "discovery-fallback",
        "discovery-proxy",
        "discovery-srv",
        "discovery-srv-name",
        "discovery-token",
        "force-new-cluster",
        "initial-advertise-peer-urls",
        "initial-cluster",
        "initial-cluster-state",
        "initial-cluster-token",
        "key-file",
        "listen-client-http-urls",
        "listen-client-urls",
        "listen-metrics-urls",
        "listen-peer-urls",
        "name",
        "peer-auto-tls",
        "peer-cert-file",
        "peer-client-cert-auth",
        "peer-key-file",
        "peer-trusted-ca-file",
        "trusted-ca-file",
        "unsafe-no-fsync",
        # Members with a log elsewhere would count as lost, and start an empty cluster.
        "wal-dir",
    }
)
"""Flags that users cannot set: the membership and the safety of the cluster depend on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Etcd:
    """One member of an etcd cluster. Clients and peers must present certificates."""

    name: str
    data: PurePath
    listen_address: str
    advertise_host: str
    client_port: int
    peer_port: int
    metrics_port: int | None = None
    """Also serves metrics and health over plain HTTP, for probes without a certificate."""
    members: Mapping[str, str] | str
    """The peer URLs of all members by name, this one included. In a pod, the variable with them."""
    token: str
    """The same for all members of a cluster, so that two clusters never mix."""
    state: str = "new"
    """`new` or `existing`. In a pod, the name of the variable with the value."""
    serving: CertificateFiles
    client_ca: PurePath
    peer: CertificateFiles
    peer_ca: PurePath
    durable: bool = True
    """False loses the last writes when the machine crashes. For development only."""
    extra: ExtraArguments = field(default_factory=dict[str, str])

    @property
    def client_url(self) -> str:
        return f"https://{self.advertise_host}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """The URL for the other members."""
        return f"https://{self.advertise_host}:{self.peer_port}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return command_line(
            {
                "advertise-client-urls": self.client_url,
                "cert-file": self.serving.certificate,
                "client-cert-auth": True,
                "data-dir": self.data,
                "initial-advertise-peer-urls": self.peer_url,
                "initial-cluster": self.members
                if isinstance(self.members, str)
                else [f"{name}={url}" for name, url in sorted(self.members.items())],
                "initial-cluster-state": self.state,
                "initial-cluster-token": self.token,
                "key-file": self.serving.key,
                "listen-client-urls": f"https://{self.listen_address}:{self.client_port}",
                "listen-metrics-urls": None
                if self.metrics_port is None
                else f"http://{self.listen_address}:{self.metrics_port}",
                "listen-peer-urls": f"https://{self.listen_address}:{self.peer_port}",
                "name": self.name,
                "peer-cert-file": self.peer.certificate,
                "peer-client-cert-auth": True,
                "peer-key-file": self.peer.key,
                "peer-trusted-ca-file": self.peer_ca,
                "trusted-ca-file": self.client_ca,
                "unsafe-no-fsync": None if self.durable else True,
            },
            extra=self.extra,
            owned=ETCD_FLAGS,
        )
