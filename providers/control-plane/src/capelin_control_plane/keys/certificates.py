"""The certificates of a control plane, and when each is renewed. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_address
from pathlib import PurePath
from typing import Literal, get_args

from capelin.pki import (
    CLOCK_SKEW,
    KeyPair,
    Leaf,
    ServiceAccountKeys,
    split_pem,
    validity_of,
)
from capelin_embedded.components import apiserver_dns_names

from capelin_control_plane.desired.component_files import ComponentFiles
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.keys.rotation import NO_ROTATION, Progress, fingerprint

Authority = Literal["ca", "etcd", "proxy"]
_AUTHORITIES: tuple[Authority, ...] = get_args(Authority)

SERVER_CERTIFICATE = "konnectivity-server"
SERVER_USER = "system:konnectivity-server"
"""A name that the workload cluster's roles have, too."""

_BEGIN = b"-----BEGIN "
_NAMES = ComponentFiles(PurePath(), PurePath())


@dataclass(frozen=True, slots=True)
class Authorities:
    """The CAs and service account keys that sign, and those that are trusted besides them.

    They are in Secrets of the management cluster.
    """

    ca: KeyPair
    etcd: KeyPair
    proxy: KeyPair
    service_account: ServiceAccountKeys
    also_trusted: Mapping[Authority | Literal["sa"], bytes] = field(
        default_factory=dict[Authority | Literal["sa"], bytes]
    )
    """Other certificates or public keys that are trusted."""
    crosses: Mapping[Authority, bytes] = field(default_factory=dict[Authority, bytes])
    """The signing CA's certificates from former CAs. Every certificate comes with them."""
    progress: Progress = NO_ROTATION
    """The progress of their rotation."""
    first: str | None = None
    """SHA-256 of the certificate of the cluster's first CA. None if it is the present one."""

    def of(self, name: Authority) -> KeyPair:
        """The CA of a name."""
        return {"ca": self.ca, "etcd": self.etcd, "proxy": self.proxy}[name]

    def bundle(self, name: Authority) -> bytes:
        """The certificates that are trusted, the signing CA's first."""
        return self.of(name).certificate_pem + self.also_trusted.get(name, b"")

    @property
    def public_keys(self) -> bytes:
        """The keys that verify service account tokens."""
        return self.service_account.public_key_pem + self.also_trusted.get("sa", b"")

    @property
    def digest(self) -> str:
        """SHA-256 of the CAs and the key. A rotation changes it."""
        parts = (self.ca, self.etcd, self.proxy)
        content = b"".join(part.certificate_pem for part in parts)
        return sha256(content + self.service_account.public_key_pem).hexdigest()

    @property
    def identity(self) -> str:
        """Identifies the cluster. A rotation does not change it."""
        return self.first or fingerprint(self.ca.certificate_pem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Leaf):
    """A desired certificate, and the CA that signs it."""

    name: str
    authority: Authority


def pki_files(
    desired: ControlPlane,
    authorities: Authorities,
    read: Callable[[str], bytes | None],
    *,
    host: str,
    internal: Iterable[str],
    etcd: Iterable[str],
    agents_host: str | None = None,
) -> tuple[dict[str, bytes], datetime | None]:
    """The files of certificates, keys and policies, and the time of the next renewal.

    `read` returns the present content of a file. Certificates that are missing or due are new. The
    hosts are those of `desired_certificates`.
    """
    keys = authorities.service_account
    files = {
        **{str(_NAMES.ca(name)): authorities.bundle(name) for name in _AUTHORITIES},
        str(_NAMES.certificate("ca-signing")): _joined(authorities.ca),
        str(_NAMES.service_account_key): keys.private_key_pem,
        str(_NAMES.service_account_public_key): authorities.public_keys,
    }
    if desired.audit_policy is not None:
        files[desired.audit_policy.name] = desired.audit_policy.content
    files.update(desired.encryption.contents)
    pairs: list[KeyPair] = []
    for certificate in desired_certificates(
        desired, host, internal=internal, etcd=etcd, agents_host=agents_host
    ):
        name = str(_NAMES.certificate(certificate.name))
        present = key_pair(read(name))
        authority = authorities.of(certificate.authority)
        if pair := renewed(desired, certificate, authority, present, desired.now) or present:
            files[name] = _joined(pair, authorities.crosses.get(certificate.authority, b""))
            pairs.append(pair)
    return files, next_renewal(desired, pairs)


def key_pair(content: bytes | None) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    key = (content or b"").rfind(_BEGIN)
    return KeyPair(content[:key], content[key:]) if content and key > 0 else None


def desired_certificates(
    desired: ControlPlane,
    host: str,
    *,
    internal: Iterable[str],
    etcd: Iterable[str],
    agents_host: str | None = None,
) -> tuple[Certificate, ...]:
    """Every certificate that a control plane needs.

    Args:
        desired: The control plane.
        host: The host of its endpoint.
        internal: The hosts at which its components find each other.
        etcd: The hosts of the members of etcd.
        agents_host: The host at which agents of konnectivity find their servers, if there are any.
    """
    internal = tuple(internal)
    names, addresses = _names_and_addresses([*internal, host, *desired.cert_sans])
    own_names, own_addresses = _names_and_addresses(["localhost", "127.0.0.1", *internal])
    etcd_names, etcd_addresses = _names_and_addresses(["localhost", "127.0.0.1", *etcd])
    return (
        Certificate(
            name="apiserver",
            authority="ca",
            common_name="kube-apiserver",
            usages=("server",),
            dns_names=(*apiserver_dns_names(desired.service_domain), *names),
            addresses=(desired.first_service_address, "127.0.0.1", *addresses),
        ),
        Certificate(
            name="apiserver-kubelet-client",
            authority="ca",
            common_name="kube-apiserver-kubelet-client",
            organizations=("system:masters",),
            usages=("client",),
        ),
        Certificate(
            name="controller-manager",
            authority="ca",
            common_name="system:kube-controller-manager",
            usages=("server", "client"),
            dns_names=own_names,
            addresses=own_addresses,
        ),
        Certificate(
            name="scheduler",
            authority="ca",
            common_name="system:kube-scheduler",
            usages=("server", "client"),
            dns_names=own_names,
            addresses=own_addresses,
        ),
        Certificate(
            name="admin",
            authority="ca",
            common_name="capelin-control-plane",
            organizations=("system:masters",),
            usages=("client",),
        ),
        Certificate(
            name="front-proxy-client",
            authority="proxy",
            common_name="front-proxy-client",
            usages=("client",),
        ),
        Certificate(
            name="etcd",
            authority="etcd",
            common_name="etcd",
            usages=("server", "client"),
            dns_names=etcd_names,
            addresses=etcd_addresses,
        ),
        Certificate(
            name="apiserver-etcd-client",
            authority="etcd",
            common_name="kube-apiserver-etcd-client",
            usages=("client",),
        ),
        *(() if agents_host is None else (_konnectivity_server(agents_host),)),
    )


def _konnectivity_server(host: str) -> Certificate:
    """The konnectivity server presents it to agents and to the API server."""
    names, addresses = _names_and_addresses([host])
    return Certificate(
        name=SERVER_CERTIFICATE,
        authority="ca",
        common_name=SERVER_USER,
        usages=("server", "client"),
        dns_names=names,
        addresses=addresses,
    )


def renewed(
    desired: ControlPlane,
    certificate: Certificate,
    authority: KeyPair,
    present: KeyPair | None,
    now: datetime,
) -> KeyPair | None:
    """A new certificate if the present one is missing, due or not as desired, else None."""
    is_requested = present is not None and issued_before(
        present.certificate_pem, desired.renew_issued_before
    )
    reason = certificate.reissue_reason(
        present.certificate_pem if present else None,
        authority.certificate_pem,
        now=now,
        share=desired.renewal_share,
    )
    if reason is None and not is_requested:
        return None
    return certificate.issue(
        authority, now=now, validity=desired.validity, algorithm=desired.algorithm
    )


def issued_before(certificate_pem: bytes, moment: datetime | None) -> bool:
    """Whether a certificate of ours was issued before a moment."""
    if moment is None:
        return False
    # Certificates are valid from a little before they are issued, for clocks that are behind.
    return validity_of(certificate_pem).not_before + CLOCK_SKEW < moment.replace(microsecond=0)


def next_renewal(desired: ControlPlane, present: Iterable[KeyPair]) -> datetime | None:
    """When the first certificate is due."""
    return min(
        (validity_of(pair.certificate_pem).after(desired.renewal_share) for pair in present),
        default=None,
    )


def _names_and_addresses(hosts: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names: list[str] = []
    addresses: list[str] = []
    for host in dict.fromkeys(hosts):
        try:
            addresses.append(str(ip_address(host)))
        except ValueError:
            names.append(host)
    return tuple(names), tuple(addresses)


def _joined(pair: KeyPair, crosses: bytes = b"") -> bytes:
    """A file with a certificate, those that lead to former CAs, and the key."""
    return split_pem(pair.certificate_pem)[0] + crosses + pair.private_key_pem
