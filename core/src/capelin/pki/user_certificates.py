"""Reads the CAs and keys of users, and explains why one is unusable."""

import re
from datetime import datetime
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from capelin.pki.certificates import (
    UNREADABLE,
    KeyPair,
    PrivateKey,
    ServiceAccountKeys,
    load_private_key,
    private_pem,
    public_pem,
)

PemProblem = Literal[
    "CertificateMissing",
    "CertificateNotReadable",
    "NotACertificateAuthority",
    "MustNotSignCertificates",
    "NotYetValid",
    "Expired",
    "KeyMissing",
    "KeyEncrypted",
    "KeyNotReadable",
    "KeyNotSupported",
    "KeyDoesNotMatch",
]

_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_MIN_RSA_BITS = 2048
_MAX_RSA_BITS = 8192
_LONGEST_KEY = 16 << 10
"""In bytes of PEM, with the text around the key."""
_TRIAL = b"trial"
_MARK = re.compile(rb"-----(BEGIN|END) ([^-\n]{1,64})-----")
ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)


class InvalidPemError(ValueError):
    """An unusable certificate or key. `reason` is for a condition, the message has the details."""

    def __init__(self, reason: PemProblem, message: str) -> None:
        super().__init__(message)
        self.reason: PemProblem = reason


def read_ca(certificate_pem: bytes | None, private_key_pem: bytes | None, now: datetime) -> KeyPair:
    """A CA from a user's certificate and key.

    Of several certificates, it is the one that the key belongs to. The others are only trusted.

    Raises:
        InvalidPemError: they cannot be used to sign certificates.
    """
    certificates = _certificates(certificate_pem)
    if len(certificates) == 1:
        _check_ca(certificates[0], now)
    key = _private_key(private_key_pem)
    own = [found for found in certificates if _belongs_to(key, found)]
    if not own:
        raise InvalidPemError(
            "KeyDoesNotMatch",
            "the private key does not belong to the CA certificate (their public keys differ). "
            "Provide the key of this certificate",
        )
    _check_ca(own[0], now)
    return KeyPair(own[0].public_bytes(serialization.Encoding.PEM), private_pem(key))


def split_pem(pem: bytes) -> tuple[bytes, ...]:
    """The blocks of a PEM file, without the text around them."""
    blocks: list[bytes] = []
    begin: re.Match[bytes] | None = None
    for mark in _MARK.finditer(pem):
        if mark[1] == b"BEGIN":
            begin = mark
        elif begin is not None and begin[2] == mark[2]:
            blocks.append(pem[begin.start() : mark.end()] + b"\n")
            begin = None
    return tuple(blocks)


def read_service_account_keys(
    public_key_pem: bytes | None, private_key_pem: bytes | None
) -> ServiceAccountKeys:
    """A user's service account keys. Computes the public key if it is missing.

    Of several public keys, it is the one that the private key belongs to.

    Raises:
        InvalidPemError: they cannot be used.
    """
    key = _private_key(private_key_pem)
    public = public_pem(key.public_key())
    if not (public_key_pem or b"").strip():
        return ServiceAccountKeys(public, private_pem(key))
    try:
        blocks = split_pem(public_key_pem or b"") or (b"",)
        public_keys = [serialization.load_pem_public_key(block) for block in blocks]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidPemError(
            "KeyNotReadable",
            "the service account public key is not a public key in PEM. "
            "Provide a block that begins with BEGIN PUBLIC KEY",
        ) from error
    if key.public_key() not in public_keys:
        raise InvalidPemError(
            "KeyDoesNotMatch",
            "the service account public key does not belong to its private key. "
            "Provide both halves of one pair, or only the private key",
        )
    return ServiceAccountKeys(public, private_pem(key))


def _check_ca(certificate: x509.Certificate, now: datetime) -> None:
    _check_role(certificate)
    _check_dates(certificate, now)
    try:
        _check_strength(certificate.public_key())
    except UnsupportedAlgorithm as error:
        raise _unsupported("of an unknown type") from error


def _belongs_to(key: PrivateKey, certificate: x509.Certificate) -> bool:
    try:
        return key.public_key() == certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False


def _certificates(pem: bytes | None) -> list[x509.Certificate]:
    if pem is None or not pem.strip():
        raise InvalidPemError(
            "CertificateMissing", "the CA certificate is missing. Provide one certificate in PEM"
        )
    try:
        return x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise InvalidPemError(
            "CertificateNotReadable",
            "the CA certificate is not a certificate in PEM. "
            "Provide a block that begins with BEGIN CERTIFICATE",
        ) from error


def _check_role(certificate: x509.Certificate) -> None:
    name = _name(certificate)
    try:
        extensions = certificate.extensions
    except UNREADABLE as error:
        raise InvalidPemError(
            "CertificateNotReadable",
            f"{name} has unreadable extensions. Create it again",
        ) from error
    constraints = _extension(extensions, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        raise InvalidPemError(
            "NotACertificateAuthority",
            f"{name} is not a CA (its basic constraints have no CA:TRUE). "
            "Provide a CA certificate rather than a server's or a client's",
        )
    usage = _extension(extensions, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        raise InvalidPemError(
            "MustNotSignCertificates",
            f"{name} must not sign certificates (its key usage lacks keyCertSign). "
            "Create it again with keyCertSign",
        )


def _check_dates(certificate: x509.Certificate, now: datetime) -> None:
    name = _name(certificate)
    if now >= certificate.not_valid_after_utc:
        raise InvalidPemError(
            "Expired",
            f"{name} expired on {_day(certificate.not_valid_after_utc)}. Provide a valid CA",
        )
    if now < certificate.not_valid_before_utc:
        raise InvalidPemError(
            "NotYetValid",
            f"{name} is not valid before {_day(certificate.not_valid_before_utc)}. "
            "Provide a CA that is valid now, or correct this machine's clock",
        )


def _private_key(pem: bytes | None) -> PrivateKey:
    if pem is None or not pem.strip():
        raise InvalidPemError(
            "KeyMissing", "the private key is missing. Provide it as unencrypted PEM"
        )
    if len(pem) > _LONGEST_KEY:
        raise _unsupported(f"{len(pem)} bytes long")
    try:
        key = load_private_key(pem)
    except TypeError as error:
        raise InvalidPemError(
            "KeyEncrypted",
            "the private key is encrypted and its password is not known. "
            "Provide it unencrypted (openssl pkey -in KEY -out PLAIN)",
        ) from error
    except UnsupportedAlgorithm as error:
        raise _unsupported("of an unknown type") from error
    except ValueError as error:
        raise InvalidPemError(
            "KeyNotReadable",
            "the private key is not a private key in PEM. Provide a block that begins with "
            "BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY",
        ) from error
    _check_strength(key.public_key())
    if isinstance(key, rsa.RSAPrivateKey) and not _can_sign(key):
        raise InvalidPemError(
            "KeyNotReadable",
            "the numbers of the private RSA key do not belong together. Export the key again",
        )
    return key


def _can_sign(key: rsa.RSAPrivateKey) -> bool:
    """Whether the numbers of a key belong together."""
    numbers = key.private_numbers()
    parts = (numbers.p, numbers.q, numbers.d, numbers.dmp1, numbers.dmq1, numbers.iqmp)
    if max(part.bit_length() for part in parts) > key.key_size:
        return False
    try:
        signature = key.sign(_TRIAL, padding.PKCS1v15(), hashes.SHA256())
        key.public_key().verify(signature, _TRIAL, padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, ValueError, InternalError):
        return False
    return True


def _check_strength(key: object) -> None:
    if isinstance(key, rsa.RSAPublicKey):
        if not _MIN_RSA_BITS <= key.key_size <= _MAX_RSA_BITS:
            raise _unsupported(f"RSA with {key.key_size} bits")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, _CURVES):
            raise _unsupported(f"the curve {key.curve.name}")
    else:
        raise _unsupported(type(key).__name__.removesuffix("PublicKey"))


def _unsupported(what: str) -> InvalidPemError:
    return InvalidPemError(
        "KeyNotSupported",
        f"the key is {what}, which not all Kubernetes components support. "
        "Use ECDSA with P-256, P-384 or P-521, or RSA with 2048 to 8192 bits",
    )


def _extension(extensions: x509.Extensions, kind: type[ExtensionT]) -> ExtensionT | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _name(certificate: x509.Certificate) -> str:
    return f"certificate {certificate.subject.rfc4514_string() or '(without a subject)'}"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d at %H:%M UTC}"
