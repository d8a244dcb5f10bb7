"""A server and a user of it, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from capelin.client.errors import ConfigError

Material = bytes | Path
"""PEM data, or the file that holds it and may be replaced while we run."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where an API server is, and how to know that it is the right one."""

    address: str
    """`https://host:port`, with a path if there is one."""
    ca: Material | None = field(default=None, repr=False)
    """The certificates to trust; the system's when none are given."""
    verify: bool = True
    tls_server_name: str | None = None
    """The name in the server's certificate, where it is not the address."""
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_address(self.address):
            raise ConfigError(
                f'"{self.address}" is not the address of an API server: '
                f"it has to look like https://host:port"
            )
        if self.ca is not None and not self.verify:
            raise ConfigError(
                f"{self.address} has a certificate authority and skips verification too: "
                f"remove certificate-authority or insecure-skip-tls-verify"
            )
        if self.proxy and not _is_address(self.proxy):
            raise ConfigError(
                f"the proxy for {self.address} cannot be used: "
                f"its address has to start with http:// or https://"
            )


def _is_address(said: str) -> bool:
    try:
        parts = urlsplit(said)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that hands out credentials, as `client.authentication.k8s.io` describes it."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    provide_cluster_info: bool = False
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Somebody else in whose name every request is made."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class User:
    """Who we are: nobody in particular when nothing is set."""

    certificate: Material | None = field(default=None, repr=False)
    key: Material | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """A file whose token goes before `token`, and may be replaced while we run."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    exec: ExecPlugin | None = None
    impersonate: Impersonation | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a client certificate and its key belong together: one is missing")
