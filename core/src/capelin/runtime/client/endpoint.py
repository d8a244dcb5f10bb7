"""The endpoint of a hook server: URL and CA, from an ExtensionConfig."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from capelin.api.capi import ExtensionClientConfig, ServiceReference
from capelin.runtime.client.errors import EndpointError

_LITERAL = "/:@!$&'()*+,;="
"""Characters that are literal in a path, in addition to letters and digits (RFC 3986)."""

_MAY_BE_SECRET = re.compile(r"^.*@|[?#].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A hook server."""

    host: str
    """The name in its certificate."""
    port: int | None = None
    """443 if unset."""
    prefix: str = "/"
    """The prefix of all its paths."""
    ca: bytes | None = None
    """The CA to trust, as PEM. Default: the system's roots."""
    through: str | None = None
    """`HOST:PORT` to connect to instead, for example of a port-forward."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL, for people."""
        return f"https://{self.authority}{'' if self.prefix == '/' else self.prefix}"

    def path(self, hook_path: str) -> str:
        """A hook's path on this server."""
        return posixpath.normpath(posixpath.join(self.prefix, hook_path.lstrip("/")))


def endpoint_of(client_config: ExtensionClientConfig) -> Endpoint:
    """The endpoint of an ExtensionConfig.

    Raises:
        EndpointError: The configuration is invalid.
    """
    if (client_config.url is None) == (client_config.service is None):
        raise EndpointError("clientConfig needs either a url or a service")
    if client_config.service is not None:
        return _of_service(client_config.service, client_config.ca_bundle or None)
    return endpoint_of_url(client_config.url or "", client_config.ca_bundle or None)


def endpoint_of_url(url: str, ca: bytes | None = None) -> Endpoint:
    """The endpoint at a URL.

    Raises:
        EndpointError: Cluster API would reject it.
    """
    shown = _MAY_BE_SECRET.sub("", url)
    try:
        parts, port = _split(url)
    except ValueError:
        raise EndpointError(f"{shown!r} is not a URL: use https://host:port/prefix") from None
    if parts.scheme != "https" or not parts.hostname:
        raise EndpointError(f"{shown!r} must start with https:// and a host: calls need TLS")
    if parts.username is not None or parts.query or parts.fragment:
        raise EndpointError(
            "the URL of an extension must have no user, query or fragment: remove them"
        )
    return Endpoint(parts.hostname, port, _prefix(parts.path, literal=_LITERAL + "%"), ca)


def _split(url: str) -> tuple[SplitResult, int | None]:
    parts = urlsplit(url)
    # An invalid name would fail later, in the resolver, with another error.
    (parts.hostname or "").encode("idna")
    if "\\" in parts.netloc:
        raise ValueError(url)
    return parts, parts.port


def _of_service(service: ServiceReference, ca: bytes | None) -> Endpoint:
    if not service.name or not service.namespace:
        raise EndpointError("clientConfig.service needs a name and a namespace")
    host = f"{service.name}.{service.namespace}.svc"
    return Endpoint(host, service.port, _prefix(service.path or ""), ca)


def _prefix(path: str, *, literal: str = _LITERAL) -> str:
    """A path with one leading slash and without characters that would end it."""
    return "/" + quote(path.lstrip("/"), safe=literal)
