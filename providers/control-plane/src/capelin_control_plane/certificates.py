"""The certificates of a control plane: which there are, and when each is made anew."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Literal

from capelin.embedded.components import own_names
from capelin.pki import (
    CLOCK_SKEW,
    KeyPair,
    Leaf,
    ServiceAccountKeys,
    validity_of,
)

from capelin_control_plane.desired import ControlPlane

Authority = Literal["ca", "etcd", "proxy"]


@dataclass(frozen=True, slots=True)
class Authorities:
    """What everything else is signed with. Made once, kept in the management cluster."""

    ca: KeyPair
    etcd: KeyPair
    proxy: KeyPair
    service_account: ServiceAccountKeys

    def of(self, name: Authority) -> KeyPair:
        """A certificate authority by name."""
        return {"ca": self.ca, "etcd": self.etcd, "proxy": self.proxy}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(Leaf):
    """A certificate to be had, its name among the others, and who signs it."""

    name: str
    authority: Authority


def leaves(wanted: ControlPlane, host: str, internal: Iterable[str]) -> tuple[Signed, ...]:
    """Every certificate that a control plane needs.

    `host` is where the API answers; its parts find each other at the `internal` addresses.
    """
    names, addresses = _names([host, *wanted.cert_sans])
    parts = ("127.0.0.1", *dict.fromkeys(internal))
    return (
        Signed(
            name="apiserver",
            authority="ca",
            common_name="kube-apiserver",
            usages=("server",),
            dns_names=(*own_names(wanted.service_domain), *names),
            addresses=(wanted.first_service_address, *parts, *addresses),
        ),
        Signed(
            name="apiserver-kubelet-client",
            authority="ca",
            common_name="kube-apiserver-kubelet-client",
            organizations=("system:masters",),
            usages=("client",),
        ),
        Signed(
            name="controller-manager",
            authority="ca",
            common_name="system:kube-controller-manager",
            usages=("server", "client"),
            dns_names=("localhost",),
            addresses=parts,
        ),
        Signed(
            name="scheduler",
            authority="ca",
            common_name="system:kube-scheduler",
            usages=("server", "client"),
            dns_names=("localhost",),
            addresses=parts,
        ),
        Signed(
            name="admin",
            authority="ca",
            common_name="capelin-control-plane",
            organizations=("system:masters",),
            usages=("client",),
        ),
        Signed(
            name="front-proxy-client",
            authority="proxy",
            common_name="front-proxy-client",
            usages=("client",),
        ),
        Signed(
            name="etcd",
            authority="etcd",
            common_name="etcd",
            usages=("server", "client"),
            dns_names=("localhost",),
            addresses=parts,
        ),
        Signed(
            name="apiserver-etcd-client",
            authority="etcd",
            common_name="kube-apiserver-etcd-client",
            usages=("client",),
        ),
    )


def reissued(
    wanted: ControlPlane,
    leaf: Signed,
    authority: KeyPair,
    present: KeyPair | None,
    now: datetime,
) -> KeyPair | None:
    """The certificate anew where it is missing, due or not as wanted; nothing where it is good."""
    asked_for = present is not None and made_before(
        present.certificate_pem, wanted.renew_made_before
    )
    reason = leaf.reissue_reason(
        present.certificate_pem if present else None,
        authority.certificate_pem,
        now=now,
        share=wanted.renewal_share,
    )
    if reason is None and not asked_for:
        return None
    return leaf.issue(authority, now=now, validity=wanted.validity, algorithm=wanted.algorithm)


def made_before(certificate_pem: bytes, moment: datetime | None) -> bool:
    """Whether a certificate of ours was made before a moment."""
    if moment is None:
        return False
    # Certificates begin a little before they are made, for clocks that are behind.
    return validity_of(certificate_pem).not_before + CLOCK_SKEW < moment.replace(microsecond=0)


def next_renewal(wanted: ControlPlane, present: Mapping[str, KeyPair]) -> datetime | None:
    """When the first certificate will be due."""
    return min(
        (
            validity_of(pair.certificate_pem).after(wanted.renewal_share)
            for pair in present.values()
        ),
        default=None,
    )


def _names(said: Iterable[str]) -> tuple[list[str], list[str]]:
    """DNS names and IP addresses apart."""
    names: list[str] = []
    addresses: list[str] = []
    for one in said:
        try:
            addresses.append(str(ip_address(one)))
        except ValueError:
            names.append(one)
    return names, addresses
