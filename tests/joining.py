"""What a machine joins a control plane with: a bootstrap token, and the hash that pins the CA."""

import hashlib
from dataclasses import dataclass, field
from secrets import token_hex

from capelin.api.core import ConfigMap, Secret
from capelin.client import Client
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A token of `kubeadm join`; its text is what `--token` takes."""

    id: str = field(default_factory=lambda: token_hex(3))
    secret: str = field(default_factory=lambda: token_hex(8), repr=False)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    @property
    def manifest(self) -> Secret:
        """The Secret with which an API server knows the token."""
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
        """Whether the controller manager has signed the ConfigMap that joining begins with."""
        info = await client.get(ConfigMap, "cluster-info", "kube-public")
        return f"jws-kubeconfig-{self.id}" in info.data


def ca_cert_hash(ca_pem: bytes) -> str:
    """What `kubeadm join --discovery-token-ca-cert-hash` pins a CA by: its public key."""
    key = x509.load_pem_x509_certificate(ca_pem).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"
