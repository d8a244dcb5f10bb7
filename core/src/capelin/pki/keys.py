"""Private keys: making them, writing them as PEM, and the pair for service account tokens."""

from dataclasses import dataclass, field
from typing import Literal

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

Algorithm = Literal["ecdsa-p256", "rsa-2048"]
"""ECDSA is a hundred times faster to make; RSA is for whatever insists on it."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""The kinds of key that every Kubernetes part can use."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class ServiceAccountKeys:
    """The key that signs service account tokens, and its public half that checks them."""

    public_key_pem: bytes
    private_key_pem: bytes = field(repr=False)


def new_service_account_keys(algorithm: Algorithm = "ecdsa-p256") -> ServiceAccountKeys:
    """A fresh pair for `--service-account-signing-key-file` and `--service-account-key-file`."""
    key = generate(algorithm)
    return ServiceAccountKeys(public_pem(key.public_key()), private_pem(key))


def generate(algorithm: Algorithm) -> PrivateKey:
    """A fresh private key."""
    if algorithm == "rsa-2048":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: PrivateKey) -> bytes:
    """A private key as `RSA PRIVATE KEY` or `EC PRIVATE KEY`, which kubeadm and CAPI write too."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def public_pem(key: PublicKey) -> bytes:
    """A public key as `PUBLIC KEY`."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
