"""Keys, certificate authorities and the leaf certificates that they sign."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Usage = Literal["server", "client"]
"""Extended key usage of a leaf certificate."""

Algorithm = Literal["ecdsa-p256", "rsa-2048"]
"""ECDSA keys are a hundred times faster to generate. Some components require RSA."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""The types of key that all Kubernetes components support."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates start this long before now, for machines whose clock is behind."""
CA_CLOCK_ERROR = timedelta(days=366)
"""A CA is valid from this long before its creation, in case the clock is ahead. Leaf certificates
are reissued when the clock is right again, but a CA stays.
"""

CA_VALIDITY = timedelta(days=3650)
LEAF_VALIDITY = timedelta(days=365)

UNREADABLE = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
"""Exceptions that cryptography raises for an unreadable certificate."""

_MAX_COMMON_NAME = 64
_USAGES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM. Its `repr` does not show the key."""

    certificate_pem: bytes
    private_key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServiceAccountKeys:
    """The key pair that signs and verifies service account tokens."""

    public_key_pem: bytes
    private_key_pem: bytes = field(repr=False)


def new_service_account_keys(algorithm: Algorithm = "ecdsa-p256") -> ServiceAccountKeys:
    """A new pair for `--service-account-signing-key-file` and `--service-account-key-file`."""
    key = generate_key(algorithm)
    return ServiceAccountKeys(public_pem(key.public_key()), private_pem(key))


def new_ca(
    name: str,
    *,
    now: datetime,
    algorithm: Algorithm = "ecdsa-p256",
    validity: timedelta = CA_VALIDITY,
) -> KeyPair:
    """A self-signed certificate authority whose common name is `name`."""
    key = generate_key(algorithm)
    subject = distinguished_name(name, ())
    start = _start(now - CA_CLOCK_ERROR)
    usage = _key_usage(signs=True, enciphers=True)
    certificate = (
        _builder(subject, subject, key, start=start, end=_end(now, validity))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, _digest(key))
    )
    return _pair(certificate, key)


def cross_sign(certificate_pem: bytes, issuer: KeyPair) -> bytes:
    """A certificate of another CA's key, signed by `issuer`.

    A client that trusts only the issuer accepts the other CA's certificates if it gets this one
    with them (RFC 4210, section 4.4: NewWithOld).
    """
    ca = x509.load_pem_x509_certificate(certificate_pem)
    signer = x509.load_pem_x509_certificate(issuer.certificate_pem)
    key = load_private_key(issuer.private_key_pem)
    builder = x509.CertificateBuilder(
        signer.subject,
        ca.subject,
        ca.public_key(),
        x509.random_serial_number(),
        max(ca.not_valid_before_utc, signer.not_valid_before_utc),
        min(ca.not_valid_after_utc, signer.not_valid_after_utc),
    )
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(signs=True, enciphers=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(cast("PublicKey", ca.public_key())),
            critical=False,
        )
        .add_extension(_authority(signer), critical=False)
    )
    return builder.sign(key, _digest(key)).public_bytes(serialization.Encoding.PEM)


def issue(
    ca: KeyPair,
    *,
    common_name: str,
    usages: Collection[Usage],
    organizations: Iterable[str] = (),
    dns_names: Iterable[str] = (),
    addresses: Iterable[str | IPv4Address | IPv6Address] = (),
    now: datetime,
    validity: timedelta = LEAF_VALIDITY,
    algorithm: Algorithm = "ecdsa-p256",
) -> KeyPair:
    """A leaf certificate signed by `ca`. It does not outlive its CA."""
    issuer = x509.load_pem_x509_certificate(ca.certificate_pem)
    if now >= issuer.not_valid_after_utc:
        raise ValueError(
            f"cannot issue a certificate for {common_name}: the CA "
            f"{issuer.subject.rfc4514_string()} expired on {issuer.not_valid_after_utc:%Y-%m-%d}. "
            "Replace the CA first"
        )
    if not usages:
        raise ValueError(f"a certificate for {common_name} needs a usage: server, client or both")
    issuer_key = load_private_key(ca.private_key_pem)
    key = generate_key(algorithm)
    builder = (
        _builder(
            distinguished_name(common_name, organizations),
            issuer.subject,
            key,
            start=_start(now),
            end=min(_end(now, validity), issuer.not_valid_after_utc),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False, enciphers=algorithm == "rsa-2048"), critical=True)
        .add_extension(extended_usages(usages), critical=False)
        .add_extension(_authority(issuer), critical=False)
    )
    names = alternative_names(dns_names, addresses)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(builder.sign(issuer_key, _digest(issuer_key)), key)


def new_request(common_name: str, organizations: Iterable[str] = ()) -> tuple[bytes, bytes]:
    """A certificate signing request for a new key, and the key. Both are PEM."""
    key = generate_key("ecdsa-p256")
    builder = x509.CertificateSigningRequestBuilder()
    request = builder.subject_name(distinguished_name(common_name, organizations))
    pem = request.sign(key, _digest(key)).public_bytes(serialization.Encoding.PEM)
    return pem, private_pem(key)


def distinguished_name(common_name: str, organizations: Iterable[str]) -> x509.Name:
    """The subject: for Kubernetes, organizations are groups and the common name is the user."""
    if not 0 < len(common_name) <= _MAX_COMMON_NAME:
        raise ValueError(
            f"common name {common_name!r} has {len(common_name)} characters, but "
            f"X.509 allows 1 to {_MAX_COMMON_NAME}. Choose another name"
        )
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)
        for organization in organizations
    ]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def alternative_names(
    dns_names: Iterable[str], addresses: Iterable[str | IPv4Address | IPv6Address]
) -> list[x509.GeneralName]:
    """The subject alternative names without duplicates, in the given order."""
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ip_address(address)) for address in addresses]
    return list(dict.fromkeys(names))


def extended_usages(usages: Collection[Usage]) -> x509.ExtendedKeyUsage:
    return x509.ExtendedKeyUsage([oid for usage, oid in _USAGES.items() if usage in usages])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, *, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _start(now: datetime) -> datetime:
    return (now - CLOCK_SKEW).replace(microsecond=0)


def _end(now: datetime, validity: timedelta) -> datetime:
    if validity <= timedelta():
        raise ValueError(f"the validity of a certificate must be positive, not {validity}")
    return (now + validity).replace(microsecond=0)


def _key_usage(*, signs: bool, enciphers: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=enciphers,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    # A user's CA may have computed its key id in another way, so copy it.
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        key = cast("PublicKey", issuer.public_key())
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def _digest(key: PrivateKey) -> hashes.SHA256 | hashes.SHA384 | hashes.SHA512:
    if isinstance(key, rsa.RSAPrivateKey) or key.key_size <= 256:
        return hashes.SHA256()
    return hashes.SHA384() if key.key_size <= 384 else hashes.SHA512()


def _pair(certificate: x509.Certificate, key: PrivateKey) -> KeyPair:
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


def generate_key(algorithm: Algorithm) -> PrivateKey:
    if algorithm == "rsa-2048":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def load_private_key(pem: bytes) -> PrivateKey:
    """A private key, without OpenSSL's test for primes: of a long RSA key, it takes minutes."""
    key = serialization.load_pem_private_key(
        pem, password=None, unsafe_skip_rsa_key_validation=True
    )
    return cast("PrivateKey", key)


def private_pem(key: PrivateKey) -> bytes:
    """PEM as `RSA PRIVATE KEY` or `EC PRIVATE KEY`, as kubeadm and CAPI write it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def public_pem(key: PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
