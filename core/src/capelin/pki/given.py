"""Reading the CAs and keys that users bring, with a clear refusal for each that cannot work."""

from datetime import datetime
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from capelin.pki.certificates import UNREADABLE, KeyPair
from capelin.pki.keys import PrivateKey, ServiceAccountKeys, private_pem, public_pem

Refusal = Literal[
    "CertificateMissing",
    "CertificateNotReadable",
    "SeveralCertificates",
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
_SMALLEST_RSA = 2048
ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)


class RefusedError(ValueError):
    """Something given cannot be used. `reason` fits a condition, the text says what to do."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason: Refusal = reason


def read_ca(certificate_pem: bytes | None, private_key_pem: bytes | None, now: datetime) -> KeyPair:
    """A CA that can sign, from a user's own certificate and key."""
    certificate = _certificate_authority(certificate_pem, now)
    key = _private_key(private_key_pem)
    if key.public_key() != certificate.public_key():
        raise RefusedError(
            "KeyDoesNotMatch",
            "the private key does not belong to the CA certificate (their public keys differ); "
            "give the key that this certificate was made with",
        )
    return KeyPair(_pem(certificate), private_pem(key))


def read_ca_certificate(certificate_pem: bytes | None, now: datetime) -> bytes:
    """A CA that is only trusted: its key is kept elsewhere."""
    return _pem(_certificate_authority(certificate_pem, now))


def read_service_account_keys(
    public_key_pem: bytes | None, private_key_pem: bytes | None
) -> ServiceAccountKeys:
    """A user's own service account keys; the public half is computed where it was left out."""
    key = _private_key(private_key_pem)
    public = public_pem(key.public_key())
    if not (public_key_pem or b"").strip():
        return ServiceAccountKeys(public, private_pem(key))
    try:
        given = serialization.load_pem_public_key(public_key_pem or b"")
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RefusedError(
            "KeyNotReadable",
            "the service account public key is not a public key in PEM; "
            "give a block that begins with BEGIN PUBLIC KEY",
        ) from error
    if given != key.public_key():
        raise RefusedError(
            "KeyDoesNotMatch",
            "the service account public key does not belong to its private key; "
            "give both halves of one pair, or the private key alone",
        )
    return ServiceAccountKeys(public, private_pem(key))


def _certificate_authority(pem: bytes | None, now: datetime) -> x509.Certificate:
    certificate = _one_certificate(pem)
    _check_role(certificate)
    _check_dates(certificate, now)
    try:
        _check_strength(certificate.public_key())
    except UnsupportedAlgorithm as error:
        raise _unsupported("of a kind that is unknown here") from error
    return certificate


def _one_certificate(pem: bytes | None) -> x509.Certificate:
    if pem is None or not pem.strip():
        raise RefusedError(
            "CertificateMissing", "there is no CA certificate; give one certificate in PEM"
        )
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise RefusedError(
            "CertificateNotReadable",
            "the CA certificate is not a certificate in PEM; "
            "give a block that begins with BEGIN CERTIFICATE",
        ) from error
    if len(certificates) != 1:
        raise RefusedError(
            "SeveralCertificates",
            f"there are {len(certificates)} certificates where one CA is wanted, so it is unclear "
            "which of them signs; give only the certificate that the private key belongs to",
        )
    return certificates[0]


def _check_role(certificate: x509.Certificate) -> None:
    name = _name(certificate)
    try:
        extensions = certificate.extensions
    except UNREADABLE as error:
        raise RefusedError(
            "CertificateNotReadable",
            f"{name} has extensions that cannot be read; make the certificate anew",
        ) from error
    constraints = _extension(extensions, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        raise RefusedError(
            "NotACertificateAuthority",
            f"{name} is not a CA (its basic constraints do not say CA:TRUE); "
            "give a CA certificate rather than a server's or a client's",
        )
    usage = _extension(extensions, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        raise RefusedError(
            "MustNotSignCertificates",
            f"{name} must not sign certificates (its key usage lacks keyCertSign); "
            "make it anew with keyCertSign",
        )


def _check_dates(certificate: x509.Certificate, now: datetime) -> None:
    name = _name(certificate)
    if now >= certificate.not_valid_after_utc:
        raise RefusedError(
            "Expired",
            f"{name} expired on {_day(certificate.not_valid_after_utc)}; give a CA that is valid",
        )
    if now < certificate.not_valid_before_utc:
        raise RefusedError(
            "NotYetValid",
            f"{name} is not valid before {_day(certificate.not_valid_before_utc)}; "
            "give a CA that is valid now, or set this machine's clock right",
        )


def _private_key(pem: bytes | None) -> PrivateKey:
    if pem is None or not pem.strip():
        raise RefusedError("KeyMissing", "there is no private key; give it in PEM, unencrypted")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise RefusedError(
            "KeyEncrypted",
            "the private key is encrypted and nobody here knows its password; "
            "give it unencrypted (openssl pkey -in KEY -out PLAIN)",
        ) from error
    except UnsupportedAlgorithm as error:
        raise _unsupported("of a kind that is unknown here") from error
    except ValueError as error:
        raise RefusedError(
            "KeyNotReadable",
            "the private key is not a private key in PEM; give a block that begins with "
            "BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY",
        ) from error
    _check_strength(key.public_key())
    # The check above has left only these two.
    assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)  # noqa: S101
    return key


def _check_strength(key: object) -> None:
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _SMALLEST_RSA:
            raise _unsupported(f"RSA with {key.key_size} bits")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, _CURVES):
            raise _unsupported(f"the curve {key.curve.name}")
    else:
        raise _unsupported(type(key).__name__.removesuffix("PublicKey"))


def _unsupported(what: str) -> RefusedError:
    return RefusedError(
        "KeyNotSupported",
        f"the key is {what}, which not every Kubernetes part takes; "
        "use ECDSA with P-256, P-384 or P-521, or RSA with 2048 bits or more",
    )


def _extension(extensions: x509.Extensions, kind: type[ExtensionT]) -> ExtensionT | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(certificate: x509.Certificate) -> str:
    return f"certificate {certificate.subject.rfc4514_string() or '(without a subject)'}"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d at %H:%M UTC}"
