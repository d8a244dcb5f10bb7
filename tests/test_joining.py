"""Bootstrap tokens and CA hashes match those of kubeadm."""

import re

from tests.joining import BootstrapToken, ca_cert_hash

CA = b"""-----BEGIN CERTIFICATE-----
MIIBgTCCASegAwIBAgIUTIORBpb4eGEk4bR7XBuPvZgzrJwwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjIxOTEzMjZaGA8yMTI2MTAy
OTE5MTMyNlowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABFlRSyrt0Gw5Q1pD7liwdlqpYWaGTl4jiI4kiYxaQgRdOIBfRSRw
8MafVEEfYIIVxbI6t8fLhFXRXzfazv+5l86jUzBRMB0GA1UdDgQWBBQ89CCm/Fvj
gJwgN+5qOPrSJWyEoTAfBgNVHSMEGDAWgBQ89CCm/FvjgJwgN+5qOPrSJWyEoTAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCICwRWzvHbOVAohEhQOif
OXVTCHJCRAjMM1JekloWPVMTAiEA26GtxVreVJ4z1xGpQ74oWDPpECy3pvTC+8QZ
L0Ql794=
-----END CERTIFICATE-----
"""
# openssl x509 -pubkey -noout -in CA | openssl pkey -pubin -outform der | sha256sum
HASH = "3e0a36d4b37a24a949ce58a75a23f4364224990cf88d108de87c1535d99fb6bf"


def test_a_ca_is_pinned_by_its_public_key() -> None:
    assert ca_cert_hash(CA) == f"sha256:{HASH}"


def test_tokens_are_unique_and_valid_for_kubeadm() -> None:
    token = BootstrapToken()
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", str(token))
    assert str(token) != str(BootstrapToken())
    data = token.manifest.data
    assert data["token-id"] + b"." + data["token-secret"] == str(token).encode()
    assert token.secret not in repr(token)
