"""Where the components of a control plane find their certificates, keys and kubeconfigs. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath
from typing import Final

from capelin_embedded.components import CertificateFiles, ClientFiles

ENCRYPTION_FLAG = "encryption-provider-config"
"""The API server's flag for its configuration of encryption at rest."""
ENCRYPTION_PREFIX = "encryption-"
"""The names of files with keys begin with it."""
AUTHORITIES_PREFIX: Final = "authorities-"
"""The names of empty files that identify CAs begin with it: on pods, all files change at once."""

IDENTITY: Final = "identity"
"""In the place of a key: objects are stored as they are."""
OFF: Final = "off"
"""The name of a configuration that encrypts nothing."""


@dataclass(frozen=True, slots=True)
class AuditPolicyFile:
    """An audit policy as API servers read it."""

    content: bytes

    @property
    def name(self) -> str:
        """The name of the file. Another policy has another name, so that API servers read it."""
        return f"audit-policy-{hashlib.sha256(self.content).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True)
class EncryptionFile:
    """A configuration of encryption at rest as API servers read it."""

    configuration: str
    """Names the use of keys. Another one has another file, so that API servers restart."""
    content: bytes = field(repr=False)
    sockets: frozenset[PurePosixPath] = frozenset()
    """The sockets of the KMS plugins that it names."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{ENCRYPTION_PREFIX}{self.configuration}.json"


@dataclass(frozen=True, slots=True)
class EncryptionFiles:
    """The configurations of encryption at rest that API servers may start with now."""

    current: EncryptionFile | None = None
    """The one of new API servers."""
    previous: EncryptionFile | None = None
    """The one of API servers that are to be replaced."""
    changing: bool = False
    """Whether stored objects can have different keys."""
    rings: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By resource, the names of the keys that API servers read with."""

    @property
    def name(self) -> str:
        """The name of the configuration of new API servers."""
        return OFF if self.current is None else self.current.configuration

    @property
    def contents(self) -> dict[str, bytes]:
        """By name, the content of each file."""
        files = (self.previous, self.current)
        return {file.name: file.content for file in files if file is not None}


@dataclass(frozen=True, slots=True)
class ComponentFiles:
    """The files that command lines name: the same names in a state directory and in a pod."""

    pki: PurePath
    """The directory of certificates and keys."""
    kubeconfigs: PurePath
    """The directory of kubeconfigs."""

    def certificate(self, name: str) -> PurePath:
        """A certificate and its key, in one file so that both change at once."""
        return self.pki / f"{name}.pem"

    def ca(self, name: str) -> PurePath:
        """The certificate of a CA."""
        return self.pki / f"{name}-ca.crt"

    @property
    def service_account_key(self) -> PurePath:
        """The key that signs service account tokens."""
        return self.pki / "service-account.key"

    @property
    def service_account_public_key(self) -> PurePath:
        """The key that verifies service account tokens."""
        return self.pki / "service-account.pub"

    def kubeconfig(self, certificate: str) -> PurePath:
        """The kubeconfig of a component."""
        return self.kubeconfigs / f"{certificate}.kubeconfig"

    def pair(self, certificate: str) -> CertificateFiles:
        """A certificate and its key, for the command line of a component."""
        path = self.certificate(certificate)
        return CertificateFiles(path, path)

    def client(self, certificate: str, ca: str) -> ClientFiles:
        """A client certificate, its key and the server's CA, for a command line."""
        path = self.certificate(certificate)
        return ClientFiles(self.ca(ca), path, path)

    def component_kubeconfig(self, certificate: str, server: str) -> bytes:
        """A kubeconfig that names files, so that the component reads renewed certificates."""
        files = self.client(certificate, "ca")
        user = {"client-certificate": str(files.certificate), "client-key": str(files.key)}
        cluster = {"server": server, "certificate-authority": str(files.ca)}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "own", "cluster": cluster}],
                "users": [{"name": certificate, "user": user}],
                "contexts": [{"name": "own", "context": {"cluster": "own", "user": certificate}}],
                "current-context": "own",
            }
        ).encode()
