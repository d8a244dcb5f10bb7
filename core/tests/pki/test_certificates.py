"""OpenSSL and `cryptography` verify our certificates."""

import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from capelin.pki import (
    Algorithm,
    KeyPair,
    Usage,
    issue,
    new_ca,
    new_request,
    new_service_account_keys,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ALGORITHMS: tuple[Algorithm, ...] = ("ecdsa-p256", "rsa-2048")
CA = new_ca("kubernetes", now=NOW)


def certificate(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate_pem)


def openssl_verify(
    folder: Path, ca: KeyPair, leaf: KeyPair, purpose: str, at: datetime
) -> subprocess.CompletedProcess[str]:
    (folder / "ca.pem").write_bytes(ca.certificate_pem)
    (folder / "leaf.pem").write_bytes(leaf.certificate_pem)
    return subprocess.run(
        [
            *("openssl", "verify", "-x509_strict", "-check_ss_sig", "-purpose", purpose),
            *("-attime", str(int(at.timestamp())), "-CAfile", "ca.pem", "leaf.pem"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def server_verifies(ca: KeyPair, leaf: KeyPair, name: str, at: datetime) -> bool:
    verifier = (
        PolicyBuilder()
        .store(Store([certificate(ca)]))
        .time(at)
        .build_server_verifier(x509.DNSName(name))
    )
    try:
        verifier.verify(certificate(leaf), [])
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("leaf_algorithm", ALGORITHMS)
def test_purposes_of_leaf(algorithm: Algorithm, leaf_algorithm: Algorithm, tmp_path: Path) -> None:
    ca = new_ca("kubernetes", now=NOW, algorithm=algorithm)
    verdicts: dict[tuple[Usage, ...], dict[str, bool]] = {}
    cases: tuple[tuple[Usage, ...], ...] = (("server",), ("client",), ("client", "server"))
    for usages in cases:
        leaf = issue(
            ca,
            common_name="kube-apiserver",
            usages=usages,
            dns_names=["kubernetes"],
            now=NOW,
            algorithm=leaf_algorithm,
        )
        verdicts[usages] = {
            purpose: openssl_verify(tmp_path, ca, leaf, purpose, NOW).returncode == 0
            for purpose in ("sslserver", "sslclient")
        }
    assert verdicts == {
        ("server",): {"sslserver": True, "sslclient": False},
        ("client",): {"sslserver": False, "sslclient": True},
        ("client", "server"): {"sslserver": True, "sslclient": True},
    }


def test_a_leaf_of_another_ca_with_the_same_name_is_invalid(tmp_path: Path) -> None:
    leaf = issue(CA, common_name="etcd", usages=("server",), dns_names=["etcd"], now=NOW)
    other = new_ca("kubernetes", now=NOW)
    assert openssl_verify(tmp_path, other, leaf, "sslserver", NOW).returncode != 0
    assert not server_verifies(other, leaf, "etcd", NOW)
    assert server_verifies(CA, leaf, "etcd", NOW)


@given(moment=st.integers(-7 * 24 * 3600, 14 * 24 * 3600))
def test_a_leaf_is_valid_from_shortly_before_its_issue_to_its_end(moment: int) -> None:
    at = NOW.replace(microsecond=0) + timedelta(seconds=moment)
    verdict = server_verifies(CA, WEEK_LEAF, "etcd", at)
    assert verdict == (-300 <= moment <= 7 * 24 * 3600)


WEEK_LEAF = issue(
    CA,
    common_name="etcd",
    usages=("server",),
    dns_names=["etcd"],
    now=NOW,
    validity=timedelta(days=7),
)


@given(ca_days=st.integers(1, 5000), leaf_days=st.integers(1, 5000), later=st.integers(0, 5000))
def test_a_leaf_never_outlives_its_ca(ca_days: int, leaf_days: int, later: int) -> None:
    ca = new_ca("ca", now=NOW, validity=timedelta(days=ca_days))
    now = NOW + timedelta(days=min(later, ca_days - 1))
    leaf = issue(
        ca, common_name="x", usages=("client",), now=now, validity=timedelta(days=leaf_days)
    )
    assert certificate(leaf).not_valid_after_utc == min(
        now.replace(microsecond=0) + timedelta(days=leaf_days),
        certificate(ca).not_valid_after_utc,
    )


def test_an_expired_ca_issues_nothing() -> None:
    ca = new_ca("kubernetes", now=NOW, validity=timedelta(days=1))
    end = certificate(ca).not_valid_after_utc
    assert issue(ca, common_name="admin", usages=("client",), now=end - timedelta(seconds=1))
    with pytest.raises(
        ValueError,
        match=r"for admin: the CA CN=kubernetes expired on 2026-03-02\. ",
    ):
        issue(ca, common_name="admin", usages=("client",), now=end)


def test_a_ca_may_sign_certificates_and_lasts_ten_years() -> None:
    ca = certificate(CA)
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca) == (True, True)
    assert (usage.critical, usage.value.key_cert_sign) == (True, True)
    assert ca.issuer == ca.subject
    assert ca.not_valid_before_utc == datetime(2025, 2, 28, 11, 55, tzinfo=UTC)
    assert ca.not_valid_after_utc == datetime(2036, 2, 27, 12, 0, tzinfo=UTC)


def test_a_leaf_has_its_subject_and_unique_names() -> None:
    leaf = issue(
        CA,
        common_name="system:node:a",
        organizations=["system:nodes", "extra"],
        usages=("client",),
        dns_names=["a", "*.a.svc", "a"],
        addresses=["127.64.0.1", IPv4Address("127.64.0.1"), "::1"],
        now=NOW,
    )
    parsed = certificate(leaf)
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert parsed.subject.rfc4514_string() == "CN=system:node:a,O=extra,O=system:nodes"
    assert names.get_values_for_type(x509.DNSName) == ["a", "*.a.svc"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.64.0.1", "::1"]


def test_key_ids_point_from_leaf_to_ca() -> None:
    leaf = certificate(issue(CA, common_name="x", usages=("client",), now=NOW))
    ca_key = certificate(CA).extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    own = leaf.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert authority.key_identifier == ca_key.digest
    assert own.digest != ca_key.digest


def test_defaults_are_p256_sha256_and_one_year() -> None:
    leaf = issue(CA, common_name="x", usages=("client",), now=NOW)
    for pair in (CA, leaf):
        assert pair.private_key_pem.startswith(b"-----BEGIN EC PRIVATE KEY-----\n")
        digest = certificate(pair).signature_hash_algorithm
        assert digest is not None
        assert digest.name == "sha256"
    assert certificate(leaf).not_valid_after_utc == datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
    assert new_service_account_keys().private_key_pem.startswith(b"-----BEGIN EC PRIVATE KEY")


@pytest.mark.parametrize(("algorithm", "enciphers"), [("ecdsa-p256", False), ("rsa-2048", True)])
def test_only_rsa_leaves_encipher_keys(algorithm: Algorithm, enciphers: bool) -> None:
    leaf = issue(CA, common_name="x", usages=("client",), now=NOW, algorithm=algorithm)
    extensions = certificate(leaf).extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.digital_signature) == (True, True)
    assert (usage.value.key_encipherment, usage.value.key_cert_sign) == (enciphers, False)
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, False)
    if algorithm == "rsa-2048":
        key = certificate(leaf).public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        assert key.key_size == 2048


def test_an_rsa_ca_signs_with_sha256() -> None:
    ca = new_ca("ca", now=NOW, algorithm="rsa-2048")
    leaf = certificate(issue(ca, common_name="x", usages=("client",), now=NOW))
    assert isinstance(leaf.signature_hash_algorithm, hashes.SHA256)


def test_serial_numbers_never_repeat() -> None:
    leaves = [issue(CA, common_name="x", usages=("client",), now=NOW) for _ in range(100)]
    assert len({certificate(leaf).serial_number for leaf in leaves}) == 100


@pytest.mark.parametrize(
    ("algorithm", "kind", "begins"),
    [
        ("ecdsa-p256", ec.EllipticCurvePrivateKey, b"-----BEGIN EC PRIVATE KEY-----\n"),
        ("rsa-2048", rsa.RSAPrivateKey, b"-----BEGIN RSA PRIVATE KEY-----\n"),
    ],
)
def test_algorithm_of_the_key(algorithm: Algorithm, kind: type, begins: bytes) -> None:
    pair = new_ca("ca", now=NOW, algorithm=algorithm)
    key = serialization.load_pem_private_key(pair.private_key_pem, password=None)
    assert isinstance(key, kind)
    assert pair.private_key_pem.startswith(begins)
    assert key.public_key() == certificate(pair).public_key()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_service_account_keys_belong_together(algorithm: Algorithm) -> None:
    keys = new_service_account_keys(algorithm)
    private = serialization.load_pem_private_key(keys.private_key_pem, password=None)
    assert serialization.load_pem_public_key(keys.public_key_pem) == private.public_key()
    assert keys.public_key_pem.startswith(b"-----BEGIN PUBLIC KEY-----\n")


def test_repr_of_keys_contains_no_private_key() -> None:
    keys = new_service_account_keys()
    for shown in (repr(CA), str(CA), f"{CA}", repr(keys), repr([CA])):
        assert "PRIVATE" not in shown
    assert "BEGIN CERTIFICATE" in repr(CA)
    assert "BEGIN PUBLIC KEY" in repr(keys)


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_digest_fits_the_key_of_the_ca(curve: ec.EllipticCurve, tmp_path: Path) -> None:
    command = (
        "openssl req -x509 -nodes -newkey ec -keyout key.pem -out cert.pem -subj /CN=own"
        f" -days 9999 -addext keyUsage=keyCertSign -pkeyopt ec_paramgen_curve:{curve.name}"
    )
    subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
    ca = KeyPair((tmp_path / "cert.pem").read_bytes(), (tmp_path / "key.pem").read_bytes())
    now = datetime.now(UTC)
    leaf = issue(ca, common_name="x", usages=("server",), dns_names=["x"], now=now)
    digest = certificate(leaf).signature_hash_algorithm
    assert digest is not None
    assert digest.digest_size * 8 == {384: 384, 521: 512}[curve.key_size]
    assert openssl_verify(tmp_path, ca, leaf, "sslserver", now).returncode == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"common_name": ""}, "common name '' has 0 characters, but X.509 allows 1 to 64"),
        ({"common_name": "x" * 65}, "has 65 characters, but X.509 allows 1 to 64"),
        ({"usages": ()}, "a certificate for x needs a usage: server, client or both"),
        ({"validity": timedelta()}, "the validity of a certificate must be positive, not 0:00:00"),
        ({"addresses": ["127.0.0"]}, "'127.0.0' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_issue_rejects_invalid_arguments(wrong: dict[str, object], words: str) -> None:
    valid: dict[str, object] = {"common_name": "x", "usages": ("client",), "now": NOW}
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        issue(CA, **(valid | wrong))  # pyright: ignore[reportArgumentType]


def test_a_request_names_the_user_and_the_groups() -> None:
    pem, key = new_request("alice", ["dev", "ops"])
    request = x509.load_pem_x509_csr(pem)
    assert request.is_signature_valid
    private = serialization.load_pem_private_key(key, password=None)
    assert request.public_key() == private.public_key()
    groups = request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [group.value for group in groups] == ["dev", "ops"]
    (name,) = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "alice"
