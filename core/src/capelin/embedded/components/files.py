"""The files that components read their secrets from: named here, never put on a command line."""

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its private key."""

    certificate: PurePath
    key: PurePath


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a TLS client needs: whom to trust and its own certificate."""

    ca: PurePath
    certificate: PurePath
    key: PurePath
