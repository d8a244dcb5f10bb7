import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.client.auth import tls_context
from capelin.pki import KeyPair, issue, new_ca
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.now(UTC)
ROOT = new_ca("root", now=NOW)


def intermediate() -> KeyPair:
    """A CA signed by another CA, as companies distribute them."""
    root_key = serialization.load_pem_private_key(ROOT.private_key_pem, password=None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder(
            x509.load_pem_x509_certificate(ROOT.certificate_pem).subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "intermediate")]),
            key.public_key(),
            1,
            NOW - timedelta(hours=1),
            NOW + timedelta(days=1),
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def shake_hands(trusted: bytes, signer: KeyPair, folder: Path) -> None:
    """Connect in memory to a server whose certificate `signer` has signed."""
    leaf = issue(signer, common_name="server", usages=("server",), dns_names=["server"], now=NOW)
    path = folder / "server.pem"
    path.write_bytes(leaf.certificate_pem + leaf.private_key_pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = tls_context(trusted, None, None).wrap_bio(
        to_client, to_server, server_hostname="server"
    )
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_a_trusted_ca_may_be_an_intermediate_ca(tmp_path: Path) -> None:
    ca = intermediate()
    shake_hands(ca.certificate_pem, ca, tmp_path)


def test_a_server_certificate_of_another_ca_fails(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ROOT.certificate_pem, new_ca("root", now=NOW), tmp_path)
