"""The certificates and keys of an API server, and their files."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from capelin.pki import KeyPair, Leaf, Usage, new_ca, new_service_account_keys, read_ca

from capelin_embedded.components import apiserver_dns_names
from capelin_embedded.processes import private_folder, write_private


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

    def files(self, name: str) -> tuple[Path, Path]:
        """The certificate and its key."""
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    @property
    def service_account(self) -> Path:
        """The key that signs service account tokens."""
        return self.folder / "service-account.key"

    @property
    def service_account_public(self) -> Path:
        """The key that verifies service account tokens."""
        return self.folder / "service-account.pub"

    def read(self, name: str) -> KeyPair:
        certificate, key = self.files(name)
        return KeyPair(certificate.read_bytes(), key.read_bytes())

    def ensure(self, wanted: Iterable[Certificate], now: datetime) -> None:
        """Create missing certificates and renew those that are due. Never renew CAs."""
        private_folder(self.folder)
        cas = {name: self.ensure_ca(name, common_name, now) for name, common_name in CAS.items()}
        for certificate in wanted:
            self.ensure_leaf(certificate.file, certificate.leaf, cas[certificate.ca], now)
        # Written last: if the private key exists, so does the public one.
        if not self.service_account.exists():
            keys = new_service_account_keys()
            write_private(self.service_account_public, keys.public_key_pem)
            write_private(self.service_account, keys.private_key_pem)

    def ensure_ca(self, name: str, common_name: str, now: datetime) -> KeyPair:
        """The CA of a name. Creates it if it has no key yet."""
        certificate, key = self.files(name)
        if key.exists():
            return read_ca(certificate.read_bytes(), key.read_bytes(), now)
        pair = new_ca(common_name, now=now)
        # The key last: if it exists, both exist.
        write_private(certificate, pair.certificate_pem)
        write_private(key, pair.private_key_pem)
        return pair

    def ensure_leaf(self, name: str, leaf: Leaf, ca: KeyPair, now: datetime) -> bool:
        """Issue a certificate that is missing, due or different. Returns whether it did."""
        certificate, key = self.files(name)
        present = certificate.read_bytes() if certificate.exists() and key.exists() else None
        if leaf.reissue_reason(present, ca.certificate_pem, now=now) is None:
            return False
        pair = leaf.issue(ca, now=now)
        # The key first: a reader of the new certificate finds its key.
        write_private(key, pair.private_key_pem)
        write_private(certificate, pair.certificate_pem)
        return True
