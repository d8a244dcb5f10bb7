"""The CAs and keys of a control plane, which no death of the provider may lose or change."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from capelin.api.core import Secret
from capelin.pki import read_ca, split_pem

from tests.support.control_planes import ControlPlane

AUTHORITIES = ("ca", "etcd", "proxy", "sa")


@dataclass
class AuthoritySecrets:
    """The Secrets, and everything that they contained so far."""

    mine: ControlPlane
    certificates: defaultdict[str, set[bytes]] = field(
        default_factory=lambda: defaultdict[str, set[bytes]](set)
    )
    keys: defaultdict[str, set[bytes]] = field(
        default_factory=lambda: defaultdict[str, set[bytes]](set)
    )

    @property
    def successors(self) -> Mapping[str, int]:
        """How many successors each CA and key had so far."""
        return {purpose: len(found) - 1 for purpose, found in self.certificates.items()}

    async def read(self) -> Mapping[str, Secret]:
        """The Secrets that exist."""
        found = {
            purpose: await self.mine.client.find(
                Secret, f"{self.mine.name}-{purpose}", self.mine.namespace
            )
            for purpose in AUTHORITIES
        }
        return {purpose: secret for purpose, secret in found.items() if secret is not None}

    async def check(self, successors: int = 0) -> None:
        """Check that none was lost, and that each has at most so many successors."""
        found = await self.read()
        assert found.keys() >= self.certificates.keys()
        for purpose, secret in found.items():
            certificate, key = secret.data["tls.crt"], secret.data["tls.key"]
            # Core and the bootstrap provider read it at any moment.
            assert certificate.startswith(b"-----BEGIN "), purpose
            if purpose != "sa":
                read_ca(certificate, key, datetime.now(UTC))
            self.certificates[purpose].update(split_pem(certificate))
            self.keys[purpose].add(key)
            assert len(self.certificates[purpose]) <= 1 + successors, purpose
            assert len(self.keys[purpose]) <= 1 + successors, purpose
