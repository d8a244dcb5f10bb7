"""The certificates and keys of an API server: which there are, and their files."""

import ipaddress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from capelin.embedded.components import CertificateFiles
from capelin.embedded.processes import private_folder, write_private
from capelin.pki import (
    KeyPair,
    Usage,
    issue,
    new_ca,
    new_service_account_keys,
    read_ca,
    reissue_reason,
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate to be had: who it is for and what it may prove."""

    file: str
    ca: str
    common_name: str
    usages: tuple[Usage, ...]
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


CAS = {"ca": "kubernetes-ca", "etcd-ca": "etcd-ca", "front-proxy-ca": "front-proxy-ca"}
"""The certificate authorities: their files and names."""


def leaves(address: str, service_cidr: str) -> tuple[Leaf, ...]:
    """Every certificate that etcd, the API server and their clients need."""
    first_service = str(ipaddress.ip_network(service_cidr)[1])
    return (
        Leaf(
            "apiserver",
            "ca",
            "kube-apiserver",
            ("server",),
            dns_names=(
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ),
            addresses=(address, first_service),
        ),
        Leaf("apiserver-etcd-client", "etcd-ca", "kube-apiserver-etcd-client", ("client",)),
        Leaf("etcd", "etcd-ca", "etcd", ("server", "client"), addresses=(address,)),
        Leaf("front-proxy-client", "front-proxy-ca", "front-proxy-client", ("client",)),
        Leaf(
            "controller-manager",
            "ca",
            "system:kube-controller-manager",
            ("server", "client"),
            addresses=(address,),
        ),
        Leaf("admin", "ca", "admin", ("client",), organizations=("system:masters",)),
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The folder of certificates and private keys."""

    folder: Path

    def ca(self, name: str) -> Path:
        """The certificate of an authority."""
        return self.folder / f"{name}.crt"

    def files(self, name: str) -> CertificateFiles:
        """A certificate and its key."""
        return CertificateFiles(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def service_account(self) -> Path:
        """The key that signs service account tokens."""
        return self.folder / "service-account.key"

    @property
    def service_account_public(self) -> Path:
        """The key that checks service account tokens."""
        return self.folder / "service-account.pub"

    def read(self, name: str) -> KeyPair:
        """A certificate and its key, as bytes."""
        return KeyPair(
            (self.folder / f"{name}.crt").read_bytes(), (self.folder / f"{name}.key").read_bytes()
        )

    def ensure(self, wanted: tuple[Leaf, ...], now: datetime) -> None:
        """Make what is missing and renew what is due. Authorities are made once and kept."""
        private_folder(self.folder)
        cas = {name: self._ca(name, common_name, now) for name, common_name in CAS.items()}
        for leaf in wanted:
            self._leaf(leaf, cas[leaf.ca], now)
        # The private half last: where it is, both are.
        if not self.service_account.exists():
            keys = new_service_account_keys()
            write_private(self.service_account_public, keys.public_key_pem)
            write_private(self.service_account, keys.private_key_pem)

    def _ca(self, name: str, common_name: str, now: datetime) -> KeyPair:
        if (self.folder / f"{name}.key").exists():
            pair = self.read(name)
            return read_ca(pair.certificate_pem, pair.private_key_pem, now)
        pair = new_ca(common_name, now=now)
        self._write(name, pair)
        return pair

    def _leaf(self, leaf: Leaf, ca: KeyPair, now: datetime) -> None:
        certificate = self.folder / f"{leaf.file}.crt"
        key = self.folder / f"{leaf.file}.key"
        present = certificate.read_bytes() if certificate.exists() and key.exists() else None
        reason = reissue_reason(
            present,
            ca.certificate_pem,
            common_name=leaf.common_name,
            usages=leaf.usages,
            organizations=leaf.organizations,
            dns_names=leaf.dns_names,
            addresses=leaf.addresses,
            now=now,
        )
        if reason is not None:
            self._write(
                leaf.file,
                issue(
                    ca,
                    common_name=leaf.common_name,
                    usages=leaf.usages,
                    organizations=leaf.organizations,
                    dns_names=leaf.dns_names,
                    addresses=leaf.addresses,
                    now=now,
                ),
            )

    def _write(self, name: str, pair: KeyPair) -> None:
        write_private(self.folder / f"{name}.crt", pair.certificate_pem)
        write_private(self.folder / f"{name}.key", pair.private_key_pem)
