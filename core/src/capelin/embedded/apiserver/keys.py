"""The certificates and keys of an API server, and their files."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from capelin.embedded.components import CertificateFiles, apiserver_dns_names
from capelin.embedded.processes import private_folder, write_private
from capelin.pki import (
    KeyPair,
    Leaf,
    Usage,
    new_ca,
    new_service_account_keys,
    read_ca,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate: the name of its files, its CA, and its content."""

    file: str
    ca: str
    leaf: Leaf


CAS = {"ca": "kubernetes-ca", "etcd-ca": "etcd-ca", "front-proxy-ca": "front-proxy-ca"}
"""The CAs: the name of their files and their common name."""


def certificates(address: str, service_cidr: str) -> tuple[Certificate, ...]:
    first_service = str(ipaddress.ip_network(service_cidr)[1])
    both: tuple[Usage, ...] = ("server", "client")
    server = Leaf(
        common_name="kube-apiserver",
        usages=("server",),
        dns_names=apiserver_dns_names(),
        addresses=(address, first_service),
    )
    etcd = Leaf(common_name="etcd", usages=both, addresses=(address,))
    etcd_client = Leaf(common_name="kube-apiserver-etcd-client", usages=("client",))
    proxy_client = Leaf(common_name="front-proxy-client", usages=("client",))
    manager = Leaf(common_name="system:kube-controller-manager", usages=both, addresses=(address,))
    admin = Leaf(common_name="admin", usages=("client",), organizations=("system:masters",))
    return (
        Certificate("apiserver", "ca", server),
        Certificate("apiserver-etcd-client", "etcd-ca", etcd_client),
        Certificate("etcd", "etcd-ca", etcd),
        Certificate("front-proxy-client", "front-proxy-ca", proxy_client),
        Certificate("controller-manager", "ca", manager),
        Certificate("admin", "ca", admin),
    )


@dataclass(frozen=True, slots=True)
class KeyFiles:
    folder: Path

    def ca(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def files(self, name: str) -> CertificateFiles:
        return CertificateFiles(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def service_account(self) -> Path:
        """The key that signs service account tokens."""
        return self.folder / "service-account.key"

    @property
    def service_account_public(self) -> Path:
        """The key that verifies service account tokens."""
        return self.folder / "service-account.pub"

    def read(self, name: str) -> KeyPair:
        return KeyPair(
            (self.folder / f"{name}.crt").read_bytes(), (self.folder / f"{name}.key").read_bytes()
        )

    def ensure(self, wanted: Iterable[Certificate], now: datetime) -> None:
        """Create missing certificates and renew those that are due. CAs are never renewed."""
        private_folder(self.folder)
        cas = {name: self._ensure_ca(name, common_name, now) for name, common_name in CAS.items()}
        for certificate in wanted:
            self._ensure_leaf(certificate, cas[certificate.ca], now)
        # The private key is written last: if it exists, so does the public one.
        if not self.service_account.exists():
            keys = new_service_account_keys()
            write_private(self.service_account_public, keys.public_key_pem)
            write_private(self.service_account, keys.private_key_pem)

    def _ensure_ca(self, name: str, common_name: str, now: datetime) -> KeyPair:
        if (self.folder / f"{name}.key").exists():
            pair = self.read(name)
            return read_ca(pair.certificate_pem, pair.private_key_pem, now)
        pair = new_ca(common_name, now=now)
        self._write(name, pair)
        return pair

    def _ensure_leaf(self, wanted: Certificate, ca: KeyPair, now: datetime) -> None:
        certificate = self.folder / f"{wanted.file}.crt"
        key = self.folder / f"{wanted.file}.key"
        present = certificate.read_bytes() if certificate.exists() and key.exists() else None
        if wanted.leaf.reissue_reason(present, ca.certificate_pem, now=now) is not None:
            self._write(wanted.file, wanted.leaf.issue(ca, now=now))

    def _write(self, name: str, pair: KeyPair) -> None:
        write_private(self.folder / f"{name}.crt", pair.certificate_pem)
        write_private(self.folder / f"{name}.key", pair.private_key_pem)
