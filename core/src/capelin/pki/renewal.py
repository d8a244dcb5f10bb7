"""Desired leaf certificates, and the reasons to reissue an existing one."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from capelin.pki.certificates import (
    CLOCK_SKEW,
    LEAF_VALIDITY,
    UNREADABLE,
    Algorithm,
    KeyPair,
    Usage,
    alternative_names,
    distinguished_name,
    extended_usages,
    issue,
)


@dataclass(frozen=True, slots=True)
class Validity:
    not_before: datetime
    not_after: datetime

    def after(self, share: float) -> datetime:
        """The moment at which `share` of the period has passed."""
        if not 0 < share <= 1:
            raise ValueError(f"the share must be more than 0 and at most 1, not {share}")
        return self.not_before + (self.not_after - self.not_before) * share


def validity_of(certificate_pem: bytes) -> Validity:
    """The validity period of the first certificate."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def reissue_reason(
    certificate_pem: bytes | None,
    ca_pem: bytes,
    *,
    common_name: str,
    usages: Collection[Usage],
    organizations: Iterable[str] = (),
    dns_names: Iterable[str] = (),
    addresses: Iterable[str | IPv4Address | IPv6Address] = (),
    now: datetime,
    share: float = 0.5,
) -> str | None:
    """The reason to reissue a leaf, as a clause after "because", or `None` if it is good.

    Takes the same arguments as `issue`.
    """
    if certificate_pem is None:
        return "there is none yet"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names, found_usages = _names(certificate), _usages(certificate)
    except UNREADABLE:
        return "the present one cannot be read"
    validity = Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    checks = {
        "another CA has signed it": _is_issued_by(certificate, ca_pem),
        "its subject is another": certificate.subject
        == distinguished_name(common_name, organizations),
        "its names and addresses are others": names == set(alternative_names(dns_names, addresses)),
        "its usages are others": found_usages == set(extended_usages(usages)),
        # Issued while the clock was ahead: peers reject it until its start.
        "it is not valid yet": now >= validity.not_before - CLOCK_SKEW,
        "it is due for renewal": now < validity.after(share),
    }
    return next((reason for reason, is_fulfilled in checks.items() if not is_fulfilled), None)


def is_issued_by(certificate_pem: bytes, ca_pem: bytes) -> bool:
    """Whether a CA has signed a certificate. False if the certificate is unreadable."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except UNREADABLE:
        return False
    return _is_issued_by(certificate, ca_pem)


def _is_issued_by(certificate: x509.Certificate, ca_pem: bytes) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(found.value)


def _usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return set()
    return set(found.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A desired leaf certificate: its subject and its usages."""

    common_name: str
    usages: tuple[Usage, ...]
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def reissue_reason(
        self, certificate_pem: bytes | None, ca_pem: bytes, *, now: datetime, share: float = 0.5
    ) -> str | None:
        """The reason to reissue it, or `None` if it is good. See the function of this name."""
        return reissue_reason(
            certificate_pem,
            ca_pem,
            common_name=self.common_name,
            usages=self.usages,
            organizations=self.organizations,
            dns_names=self.dns_names,
            addresses=self.addresses,
            now=now,
            share=share,
        )

    def issue(
        self,
        ca: KeyPair,
        *,
        now: datetime,
        validity: timedelta = LEAF_VALIDITY,
        algorithm: Algorithm = "ecdsa-p256",
    ) -> KeyPair:
        """The certificate signed by `ca`. It does not outlive its CA."""
        return issue(
            ca,
            common_name=self.common_name,
            usages=self.usages,
            organizations=self.organizations,
            dns_names=self.dns_names,
            addresses=self.addresses,
            now=now,
            validity=validity,
            algorithm=algorithm,
        )
