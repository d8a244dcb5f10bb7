"""An API server and a user of it, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from capelin.client.errors import ConfigError

PemSource = bytes | Path
"""PEM data, or the path of a file with it, which is read again after changes."""


@dataclass(frozen=True, slots=True)
class Server:
    """An API server: its address and how to verify its certificate."""

    address: str
    """`https://host:port`, with a path if there is one."""
    ca: PemSource | None = field(default=None, repr=False)
    """The certificates to trust, or `None` for those of the system."""
    verify: bool = True
    tls_server_name: str | None = None
    """The name to expect in the server's certificate, if it is not the host of the address."""
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_address(self.address):
            raise ConfigError(
                f'"{self.address}" is not the address of an API server: '
                f"it must look like https://host:port"
            )
        if self.ca is not None and not self.verify:
            raise ConfigError(
                f"{self.address} has both a certificate authority and insecure-skip-tls-verify: "
                f"remove one of them"
            )
        if self.proxy and not _is_address(self.proxy):
            raise ConfigError(
                f"the proxy for {self.address} cannot be used: "
                f"its address must start with http:// or https://"
            )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # The path of a request is appended. After a ? or # it would have no effect.
        is_plain = not any(character in text for character in "?#\\") and text.isprintable()
        is_http = parts.scheme in {"http", "https"}
        return is_http and is_plain and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (`client.authentication.k8s.io`)."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    provide_cluster_info: bool = False
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user that every request impersonates."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class User:
    """The credentials of a client. Anonymous if nothing is set."""

    certificate: PemSource | None = field(default=None, repr=False)
    key: PemSource | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """A file with the token, which takes precedence over `token` and is read again on changes."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    exec: ExecPlugin | None = None
    impersonate: Impersonation | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                "a client certificate and its key are needed together: one is missing"
            )
