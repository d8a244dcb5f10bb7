"""Where an extension is: from what an ExtensionConfig says to a URL and whom to trust there."""

import posixpath
from dataclasses import dataclass
from urllib.parse import urlsplit

from capelin.api.views.capi import ExtensionClientConfig, ServiceReference
from capelin.runtime.calling.errors import AddressError


@dataclass(frozen=True, slots=True)
class Address:
    """A server of hooks."""

    host: str
    """What its certificate has to name."""
    port: int | None = None
    """443 when nothing is said."""
    prefix: str = "/"
    """What all of its paths begin with."""
    ca: bytes | None = None
    """Whom to trust, as PEM; the system's roots when nothing is said."""
    through: str | None = None
    """`HOST:PORT` to connect to instead, for a service that is reached through a tunnel."""

    @property
    def authority(self) -> str:
        """Host and port, as they stand in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole, for people."""
        return f"https://{self.authority}{'' if self.prefix == '/' else self.prefix}"

    def path(self, hook_path: str) -> str:
        """A hook's path on this server."""
        return posixpath.normpath(posixpath.join(self.prefix, hook_path.lstrip("/")))


def address_of(said: ExtensionClientConfig) -> Address:
    """The server that an ExtensionConfig means.

    Raises:
        AddressError: it says nothing that could be called.
    """
    if (said.url is None) == (said.service is None):
        raise AddressError("clientConfig needs either a url or a service")
    if said.service is not None:
        return _of_service(said.service, said.ca_bundle or None)
    return address_of_url(said.url or "", said.ca_bundle or None)


def address_of_url(url: str, ca: bytes | None = None) -> Address:
    """The server at a URL.

    Raises:
        AddressError: it is not one that Cluster API would take.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressError(f"{url!r} is no URL; write it as https://host:port/prefix") from None
    if parts.scheme != "https" or not parts.hostname:
        raise AddressError(f"{url!r} has to begin with https:// and a host: calls need TLS")
    if parts.username is not None or parts.query or parts.fragment:
        raise AddressError(
            "the URL of an extension has neither user nor query nor fragment; remove them"
        )
    return Address(parts.hostname, port, parts.path or "/", ca)


def _of_service(service: ServiceReference, ca: bytes | None) -> Address:
    if not service.name or not service.namespace:
        raise AddressError("clientConfig.service needs a name and a namespace")
    host = f"{service.name}.{service.namespace}.svc"
    return Address(host, service.port, service.path or "/", ca)
