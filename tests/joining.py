"""The bootstrap token and CA hash for `kubeadm join`."""

import hashlib
from dataclasses import dataclass, field
from secrets import token_hex

from capelin.api.core import ConfigMap, Secret
from capelin.client import Client
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A bootstrap token. Its text is the value of `kubeadm join --token`."""

    id: str = field(default_factory=lambda: token_hex(3))
    secret: str = field(default_factory=lambda: token_hex(8), repr=False)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    @property
    def manifest(self) -> Secret:
        """The Secret of the token in the API server."""
        return Secret.of(
            f"bootstrap-token-{self.id}",
            "kube-system",
            type="bootstrap.kubernetes.io/token",
            data={
                "token-id": self.id.encode(),
                "token-secret": self.secret.encode(),
                "usage-bootstrap-authentication": b"true",
                "usage-bootstrap-signing": b"true",
                "auth-extra-groups": b"system:bootstrappers:kubeadm:default-node-token",
            },
        )

    async def is_signed(self, client: Client) -> bool:
        """Whether the controller manager has signed the cluster-info ConfigMap."""
        info = await client.get(ConfigMap, "cluster-info", "kube-public")
        return f"jws-kubeconfig-{self.id}" in info.data


def ca_cert_hash(ca_pem: bytes) -> str:
    """The public key hash for `kubeadm join --discovery-token-ca-cert-hash`."""
    key = x509.load_pem_x509_certificate(ca_pem).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"
