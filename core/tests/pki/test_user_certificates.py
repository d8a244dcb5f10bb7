"""A valid CA of a user is accepted. An invalid one fails with a reason."""

import base64
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from capelin.pki import (
    InvalidPemError,
    KeyPair,
    issue,
    new_ca,
    new_service_account_keys,
    read_ca,
    read_service_account_keys,
    split_pem,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CA = new_ca("corporate", now=NOW, validity=timedelta(days=10))
OTHER = new_ca("other", now=NOW)
KEY = serialization.load_pem_private_key(CA.private_key_pem, password=None)
assert isinstance(KEY, ec.EllipticCurvePrivateKey)


def own_ca(
    key: CertificateIssuerPrivateKeyTypes,
    *,
    name: x509.Name | None = None,
    authority: bool | None = True,
    signs: bool | None = True,
) -> KeyPair:
    """A CA like those of other tools."""
    if name is None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, NOW - timedelta(1), NOW + timedelta(1)
    )
    if authority is not None:
        builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
    if signs is not None:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs,
            crl_sign=signs,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    certificate = builder.sign(key, None if is_ed25519(key) else hashes.SHA256())
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def is_ed25519(key: object) -> bool:
    return isinstance(key, ed25519.Ed25519PrivateKey)


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    "key",
    [
        p256(),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["p256", "p384", "p521", "rsa"],
)
def test_a_ca_of_another_tool_can_sign(key: CertificateIssuerPrivateKeyTypes) -> None:
    user_ca = own_ca(key)
    ca = read_ca(user_ca.certificate_pem, user_ca.private_key_pem, NOW)
    leaf = issue(ca, common_name="x", usages=("client",), now=NOW)
    x509.load_pem_x509_certificate(leaf.certificate_pem).verify_directly_issued_by(
        x509.load_pem_x509_certificate(user_ca.certificate_pem)
    )


def test_our_own_ca_survives_a_round_trip() -> None:
    assert read_ca(CA.certificate_pem, CA.private_key_pem, NOW) == CA


def test_the_key_selects_the_signer_of_a_bundle() -> None:
    for bundle in (
        CA.certificate_pem + OTHER.certificate_pem,
        OTHER.certificate_pem + CA.certificate_pem,
    ):
        assert read_ca(bundle, CA.private_key_pem, NOW) == CA
        assert set(split_pem(bundle)) == {CA.certificate_pem, OTHER.certificate_pem}


def test_the_private_key_selects_its_public_key() -> None:
    mine, other = new_service_account_keys(), new_service_account_keys()
    for bundle in (
        mine.public_key_pem + other.public_key_pem,
        other.public_key_pem + mine.public_key_pem,
    ):
        assert read_service_account_keys(bundle, mine.private_key_pem) == mine


def test_a_ca_without_key_usage_may_sign() -> None:
    user_ca = own_ca(p256(), signs=None)
    assert read_ca(user_ca.certificate_pem, user_ca.private_key_pem, NOW)


def test_a_ca_is_valid_from_its_first_to_its_last_second() -> None:
    for now in (NOW - timedelta(minutes=5), NOW + 10 * DAY - timedelta(seconds=1)):
        assert read_ca(CA.certificate_pem, CA.private_key_pem, now) == CA


def test_read_ca_ignores_text_around_the_blocks() -> None:
    certificate = b"Bag Attributes: corporate root\n" + CA.certificate_pem + b"\n\n"
    key = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    assert read_ca(certificate, CA.private_key_pem, NOW) == CA
    assert read_ca(CA.certificate_pem, key + CA.private_key_pem, NOW) == CA


def encrypted(key_format: serialization.PrivateFormat) -> bytes:
    return KEY.private_bytes(
        serialization.Encoding.PEM, key_format, serialization.BestAvailableEncryption(b"secret")
    )


LEAF = issue(CA, common_name="leaf", usages=("server",), now=NOW)
NOT_A_CA = own_ca(p256(), authority=False)
PLAIN = own_ca(p256(), authority=None)
NO_SIGN = own_ca(p256(), signs=False)
ED25519 = own_ca(ed25519.Ed25519PrivateKey.generate())
WEAK = own_ca(rsa.generate_private_key(65537, 1024))  # noqa: S505 - the test expects a rejection
KOBLITZ = own_ca(ec.generate_private_key(ec.SECP256K1()))
DAY = timedelta(days=1)
EC_KEY = bytes.fromhex("2a8648ce3d0201")
UNKNOWN_KEY = bytes.fromhex("2a8648ce3d020f")
SUBJECT_KEY_ID, AUTHORITY_KEY_ID = bytes.fromhex("0603551d0e"), bytes.fromhex("0603551d23")


def doctored(pem: bytes, old: bytes, new: bytes) -> bytes:
    """A PEM block with some bytes replaced."""
    begin, *body, end = pem.splitlines(keepends=True)
    content = base64.b64decode(b"".join(body))
    assert old in content
    return begin + base64.encodebytes(content.replace(old, new)) + end


CERTIFICATES = {
    "missing": (None, NOW, "CertificateMissing", "the CA certificate is missing. "),
    "empty": (b" \n", NOW, "CertificateMissing", "the CA certificate is missing. "),
    "text": (b"hello", NOW, "CertificateNotReadable", "is not a certificate in PEM. "),
    "binary": (bytes(range(256)), NOW, "CertificateNotReadable", "is not a certificate in PEM. "),
    "damaged": (
        CA.certificate_pem[:200] + b"A" + CA.certificate_pem[201:-60],
        NOW,
        "CertificateNotReadable",
        "is not a certificate in PEM. ",
    ),
    "a key": (CA.private_key_pem, NOW, "CertificateNotReadable", "is not a certificate in PEM. "),
    "bundle of others": (
        OTHER.certificate_pem + OTHER.certificate_pem,
        NOW,
        "KeyDoesNotMatch",
        "the private key does not belong to the CA certificate ",
    ),
    "bundle with an expired signer": (
        OTHER.certificate_pem + CA.certificate_pem,
        NOW + 10 * DAY,
        "Expired",
        "certificate CN=corporate expired on 2026-03-11 at 12:00 UTC. ",
    ),
    "leaf": (
        LEAF.certificate_pem,
        NOW,
        "NotACertificateAuthority",
        "certificate CN=leaf is not a CA (its basic constraints have no CA:TRUE). ",
    ),
    "no authority": (
        NOT_A_CA.certificate_pem,
        NOW,
        "NotACertificateAuthority",
        "certificate CN=own is not a CA ",
    ),
    "no constraints": (
        PLAIN.certificate_pem,
        NOW,
        "NotACertificateAuthority",
        "certificate CN=own is not a CA ",
    ),
    "no keyCertSign": (
        NO_SIGN.certificate_pem,
        NOW,
        "MustNotSignCertificates",
        "certificate CN=own must not sign certificates (its key usage lacks keyCertSign). ",
    ),
    "expired": (
        CA.certificate_pem,
        NOW + 10 * DAY,
        "Expired",
        "certificate CN=corporate expired on 2026-03-11 at 12:00 UTC. ",
    ),
    "a second too early": (
        CA.certificate_pem,
        NOW - timedelta(days=366, minutes=5, seconds=1),
        "NotYetValid",
        "certificate CN=corporate is not valid before 2025-02-28 at 11:55 UTC. ",
    ),
    "nameless": (
        own_ca(p256(), name=x509.Name([])).certificate_pem,
        NOW + DAY,
        "Expired",
        "certificate (without a subject) expired on 2026-03-02 at 12:00 UTC. ",
    ),
    "not yet": (
        CA.certificate_pem,
        NOW - 400 * DAY,
        "NotYetValid",
        "certificate CN=corporate is not valid before 2025-02-28 at 11:55 UTC. ",
    ),
    "ed25519": (ED25519.certificate_pem, NOW, "KeyNotSupported", "the key is Ed25519, "),
    "weak": (WEAK.certificate_pem, NOW, "KeyNotSupported", "the key is RSA with 1024 bits, "),
    "unknown": (
        doctored(CA.certificate_pem, EC_KEY, UNKNOWN_KEY),
        NOW,
        "KeyNotSupported",
        "the key is of an unknown type, ",
    ),
    "twice the same extension": (
        doctored(CA.certificate_pem, AUTHORITY_KEY_ID, SUBJECT_KEY_ID),
        NOW,
        "CertificateNotReadable",
        "certificate CN=corporate has unreadable extensions. ",
    ),
    "curve": (KOBLITZ.certificate_pem, NOW, "KeyNotSupported", "the key is the curve secp256k1, "),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_an_unusable_certificate_fails_with_its_reason(case: str) -> None:
    pem, now, reason, words = CERTIFICATES[case]
    with pytest.raises(InvalidPemError) as refused:
        read_ca(pem, CA.private_key_pem, now)
    assert refused.value.reason == reason
    assert words in str(refused.value)


KEYS = {
    "missing": (None, "KeyMissing", "the private key is missing. "),
    "empty": (b"\n", "KeyMissing", "the private key is missing. "),
    "other": (OTHER.private_key_pem, "KeyDoesNotMatch", "does not belong to the CA certificate "),
    "certificate": (CA.certificate_pem, "KeyNotReadable", "is not a private key in PEM. "),
    "text": (b"hello", "KeyNotReadable", "is not a private key in PEM. "),
    "damaged": (CA.private_key_pem[:80], "KeyNotReadable", "is not a private key in PEM. "),
    "encrypted, traditional": (
        encrypted(serialization.PrivateFormat.TraditionalOpenSSL),
        "KeyEncrypted",
        "the private key is encrypted ",
    ),
    "encrypted, PKCS#8": (
        encrypted(serialization.PrivateFormat.PKCS8),
        "KeyEncrypted",
        "the private key is encrypted ",
    ),
    "ed25519": (ED25519.private_key_pem, "KeyNotSupported", "the key is Ed25519, "),
    "unknown": (
        doctored(own_ca(p256()).private_key_pem, EC_KEY, UNKNOWN_KEY),
        "KeyNotSupported",
        "the key is of an unknown type, ",
    ),
    "weak": (WEAK.private_key_pem, "KeyNotSupported", "the key is RSA with 1024 bits, "),
}


def rsa_key(bits: int) -> bytes:
    """A key whose numbers do not belong together. A real one of this size takes minutes."""
    numbers = [0, 2**bits - 1, 65537, 2**bits - 3, *[2 ** (bits // 2) - 1] * 5]
    sequence = b"".join(element(2, it.to_bytes(it.bit_length() // 8 + 1)) for it in numbers)
    lines = base64.encodebytes(element(0x30, sequence))
    return b"-----BEGIN RSA PRIVATE KEY-----\n" + lines + b"-----END RSA PRIVATE KEY-----\n"


def element(tag: int, content: bytes) -> bytes:
    """An element in DER."""
    size = len(content)
    length = size.to_bytes((size.bit_length() + 7) // 8 or 1)
    return bytes([tag, *([0x80 | len(length)] if size > 127 else []), *length]) + content


@pytest.mark.parametrize(
    ("bits", "reason", "words"),
    [
        (4096, "KeyNotReadable", "numbers of the private RSA key do not belong together"),
        (16_384, "KeyNotSupported", "the key is RSA with 16384 bits, "),
        (65_536, "KeyNotSupported", "bytes long, "),
        (1_000_000, "KeyNotSupported", "bytes long, "),
    ],
)
def test_a_long_key_fails_at_once(bits: int, reason: str, words: str) -> None:
    pem = rsa_key(bits)
    start = time.thread_time()
    with pytest.raises(InvalidPemError) as refused:
        read_ca(CA.certificate_pem, pem, NOW)
    assert time.thread_time() - start < 0.1
    assert refused.value.reason == reason
    assert words in str(refused.value)


def test_a_block_without_an_end_does_not_count() -> None:
    begin, block = b"-----BEGIN CERTIFICATE-----\n", CA.certificate_pem
    assert split_pem(begin * 3 + block + begin) == (block,)


@pytest.mark.parametrize("case", KEYS)
def test_an_unusable_key_fails_with_its_reason(case: str) -> None:
    pem, reason, words = KEYS[case]
    with pytest.raises(InvalidPemError) as refused:
        read_ca(CA.certificate_pem, pem, NOW)
    assert refused.value.reason == reason
    assert words in str(refused.value)


@given(st.binary(max_size=400), st.integers(0, 600))
def test_arbitrary_bytes_give_only_the_ca_or_an_error(noise: bytes, at: int) -> None:
    for pem in (noise, CA.private_key_pem[:at] + noise + CA.private_key_pem[at:]):
        assert outcome(lambda pem=pem: read_ca(CA.certificate_pem, pem, NOW)) in (CA, "rejected")
    for pem in (noise, CA.certificate_pem[:at] + noise + CA.certificate_pem[at:]):
        assert outcome(lambda pem=pem: read_ca(pem, CA.private_key_pem, NOW)) in (CA, "rejected")


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except InvalidPemError:
        return "rejected"


def test_read_service_account_keys_accepts_keys_of_a_user() -> None:
    keys = new_service_account_keys("rsa-2048")
    assert read_service_account_keys(keys.public_key_pem, keys.private_key_pem) == keys


@pytest.mark.parametrize("public", [None, b"", b"\n"])
def test_a_missing_public_key_is_computed(public: bytes | None) -> None:
    keys = new_service_account_keys()
    assert read_service_account_keys(public, keys.private_key_pem) == keys


def test_keys_of_different_pairs_fail() -> None:
    mine, other = new_service_account_keys(), new_service_account_keys()
    with pytest.raises(InvalidPemError, match="does not belong to its private key") as refused:
        read_service_account_keys(other.public_key_pem, mine.private_key_pem)
    assert refused.value.reason == "KeyDoesNotMatch"


def test_an_unreadable_service_account_public_key_fails() -> None:
    keys = new_service_account_keys()
    with pytest.raises(InvalidPemError, match="BEGIN PUBLIC KEY") as refused:
        read_service_account_keys(b"hello", keys.private_key_pem)
    assert refused.value.reason == "KeyNotReadable"


def test_errors_do_not_contain_the_key() -> None:
    body = OTHER.private_key_pem.splitlines()[1].decode()
    with pytest.raises(InvalidPemError) as refused:
        read_ca(CA.certificate_pem, OTHER.private_key_pem, NOW)
    assert body not in str(refused.value)


def test_a_ca_issued_while_the_clock_was_ahead_is_valid() -> None:
    ca = new_ca("kubernetes", now=NOW + timedelta(days=300))
    read_ca(ca.certificate_pem, ca.private_key_pem, NOW)
