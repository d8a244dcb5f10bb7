"""When a certificate has to be made anew: a pure function of the certificate and the clock."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from capelin.pki.certificates import (
    UNREADABLE,
    Usage,
    alternative_names,
    distinguished_name,
    extended_usages,
)


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is good."""

    not_before: datetime
    not_after: datetime

    def after(self, share: float) -> datetime:
        """The moment at which `share` of this time has passed."""
        if not 0 < share <= 1:
            raise ValueError(f"a share of a life is more than 0 and at most 1, not {share}")
        return self.not_before + (self.not_after - self.not_before) * share


def validity_of(certificate_pem: bytes) -> Validity:
    """When a certificate is good; of several, the first counts."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def renewal_at(certificate_pem: bytes, share: float = 0.5) -> datetime:
    """When `share` of a certificate's life will have passed."""
    return validity_of(certificate_pem).after(share)


def renewal_due(certificate_pem: bytes, now: datetime, share: float = 0.5) -> bool:
    """Whether `share` of a certificate's life has passed."""
    return now >= renewal_at(certificate_pem, share)


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
    """Why a leaf must be issued anew, in words that fit "because ..."; nothing when it is good.

    Takes what `issue` takes, so that a caller says once what it wants.
    """
    if certificate_pem is None:
        return "there is none yet"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names, found = _names(certificate), _usages(certificate)
    except UNREADABLE:
        return "the present one cannot be read"
    good = {
        "another CA has signed it": _signed_by(certificate, ca_pem),
        "its subject is another": certificate.subject
        == distinguished_name(common_name, organizations),
        "its names and addresses are others": names == set(alternative_names(dns_names, addresses)),
        "its usages are others": found == set(extended_usages(usages)),
        "it is due for renewal": not renewal_due(certificate_pem, now, share),
    }
    return next((reason for reason, is_good in good.items() if not is_good), None)


def _signed_by(certificate: x509.Certificate, ca_pem: bytes) -> bool:
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
