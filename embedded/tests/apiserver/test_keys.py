from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from capelin.pki import InvalidPemError
from capelin_embedded.apiserver.keys import CAS, KeyFiles, certificates
from cryptography import x509

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LEAVES = certificates("127.64.0.9", "10.96.0.0/16")


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    keys = KeyFiles(tmp_path / "pki")
    keys.ensure(LEAVES, NOW)
    return keys


def contents(keys: KeyFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in keys.folder.iterdir()}


def changed(before: dict[str, bytes], keys: KeyFiles) -> set[str]:
    return {name for name, content in contents(keys).items() if content != before.get(name)}


def test_ensure_creates_all_files_as_private_files(keys: KeyFiles) -> None:
    pairs = [*CAS, *(leaf.file for leaf in LEAVES)]
    assert {*contents(keys)} == {
        *(f"{name}.{kind}" for name in pairs for kind in ("crt", "key")),
        "service-account.key",
        "service-account.pub",
    }
    assert {path.stat().st_mode & 0o777 for path in keys.folder.iterdir()} == {0o600}


def test_ensure_keeps_valid_files(keys: KeyFiles) -> None:
    before = contents(keys)
    keys.ensure(LEAVES, NOW + timedelta(days=30))
    assert changed(before, keys) == set()


def test_ensure_renews_leaves_at_half_their_validity_and_no_ca(keys: KeyFiles) -> None:
    before = contents(keys)
    keys.ensure(LEAVES, NOW + timedelta(days=200))
    assert changed(before, keys) == {
        f"{leaf.file}.{kind}" for leaf in LEAVES for kind in ("crt", "key")
    }


@pytest.mark.parametrize("kind", ["crt", "key"])
def test_ensure_reissues_a_leaf_with_a_missing_file(keys: KeyFiles, kind: str) -> None:
    before = contents(keys)
    (keys.folder / f"admin.{kind}").unlink()
    keys.ensure(LEAVES, NOW)
    assert changed(before, keys) == {"admin.crt", "admin.key"}


def test_ensure_reissues_certificates_for_a_new_address(keys: KeyFiles) -> None:
    before = contents(keys)
    keys.ensure(certificates("127.64.0.10", "10.96.0.0/16"), NOW)
    assert {name.partition(".")[0] for name in changed(before, keys)} == {
        "apiserver",
        "etcd",
        "controller-manager",
    }


def test_the_api_server_certificate_names_its_address_and_service(keys: KeyFiles) -> None:
    certificate = x509.load_pem_x509_certificate(keys.read("apiserver").certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [
        IPv4Address("127.64.0.9"),
        IPv4Address("10.96.0.1"),
    ]
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_ensure_rejects_an_expired_ca(keys: KeyFiles) -> None:
    with pytest.raises(InvalidPemError, match="expired"):
        keys.ensure(LEAVES, NOW + timedelta(days=4000))


def test_ensure_fails_if_the_certificate_of_a_ca_is_missing(keys: KeyFiles) -> None:
    (keys.folder / "ca.crt").unlink()
    with pytest.raises(FileNotFoundError):
        keys.ensure(LEAVES, NOW)
