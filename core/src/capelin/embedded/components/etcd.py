"""The command line of an etcd member."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from capelin.embedded.components.arguments import Extra, command_line
from capelin.embedded.components.files import CertificateFiles

OWNED = frozenset(
    {
        "advertise-client-urls",
        "auto-tls",
        "cert-file",
        "client-cert-auth",
        "config-file",
        "data-dir",
        "force-new-cluster",
        "initial-advertise-peer-urls",
        "initial-cluster",
        "initial-cluster-state",
        "initial-cluster-token",
        "key-file",
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
    }
)
"""Flags that users cannot set: the cluster's make-up and its safety hang on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Etcd:
    """One member of an etcd cluster. Clients and peers both have to show certificates."""

    name: str
    data: PurePath
    listen_address: str
    advertise_host: str
    client_port: int
    peer_port: int
    metrics_port: int | None = None
    """Plain HTTP metrics and health on this port as well, for probes that have no certificate."""
    members: Mapping[str, str]
    """The peer URL of each member that the cluster is made of, by name, this one included."""
    token: str
    """Equal for the members of one cluster, so that two clusters never mix."""
    state: Literal["new", "existing"] = "new"
    serving: CertificateFiles
    client_ca: PurePath
    peer: CertificateFiles
    peer_ca: PurePath
    durable: bool = True
    """False loses the last writes when the machine goes down. For development only."""
    extra: Extra = field(default_factory=dict[str, str])

    @property
    def client_url(self) -> str:
        """Where clients find it."""
        return f"https://{self.advertise_host}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """Where the other members find it."""
        return f"https://{self.advertise_host}:{self.peer_port}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of an etcd member."""
        return command_line(
            {
                "advertise-client-urls": self.client_url,
                "cert-file": self.serving.certificate,
                "client-cert-auth": True,
                "data-dir": self.data,
                "initial-advertise-peer-urls": self.peer_url,
                "initial-cluster": [f"{name}={url}" for name, url in sorted(self.members.items())],
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
            owned=OWNED,
        )
