"""Where an extension is: from what an ExtensionConfig says to a URL and whom to trust there."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from capelin.api.views.capi import ExtensionClientConfig, ServiceReference
from capelin.runtime.calling.errors import AddressError

_LITERAL = "/:@!$&'()*+,;="
"""What stands for itself in a path, beside letters, digits and the like (RFC 3986)."""

_MAY_BE_SECRET = re.compile(r"^.*@|[?#].*", re.DOTALL)


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
    shown = _MAY_BE_SECRET.sub("", url)
    try:
        parts, port = _split(url)
    except ValueError:
        raise AddressError(f"{shown!r} is no URL; write it as https://host:port/prefix") from None
    if parts.scheme != "https" or not parts.hostname:
        raise AddressError(f"{shown!r} has to begin with https:// and a host: calls need TLS")
    if parts.username is not None or parts.query or parts.fragment:
        raise AddressError(
            "the URL of an extension has neither user nor query nor fragment; remove them"
        )
    return Address(parts.hostname, port, _prefix(parts.path, literal=_LITERAL + "%"), ca)


def _split(url: str) -> tuple[SplitResult, int | None]:
    parts = urlsplit(url)
    # What cannot be a name would be looked up all the same, and fail there in a way of its own.
    (parts.hostname or "").encode("idna")
    if "\\" in parts.netloc:
        raise ValueError(url)
    return parts, parts.port


def _of_service(service: ServiceReference, ca: bytes | None) -> Address:
    if not service.name or not service.namespace:
        raise AddressError("clientConfig.service needs a name and a namespace")
    host = f"{service.name}.{service.namespace}.svc"
    return Address(host, service.port, _prefix(service.path or ""), ca)


def _prefix(path: str, *, literal: str = _LITERAL) -> str:
    """A path that begins with one slash, and has nothing in it that would end it."""
    return "/" + quote(path.lstrip("/"), safe=literal)
