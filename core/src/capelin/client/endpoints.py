"""Servers that an administrator allows tenants to choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from capelin.client.destinations import Destinations

_PORTS: Final = {"https": 443, "http": 80}


class EndpointRefusedError(Exception):
    """The administrator does not allow a server."""


@dataclass(frozen=True, slots=True)
class AllowedEndpoint:
    """Servers that tenants may choose."""

    scheme: str
    host: str
    """A name. One that begins with `*` stands for all names with the rest of it."""
    port: int

    @property
    def is_pattern(self) -> bool:
        return self.host.startswith("*")

    def allows(self, endpoint: "AllowedEndpoint") -> bool:
        """Whether it is this server, or the pattern includes it."""
        if (self.scheme, self.port) != (endpoint.scheme, endpoint.port):
            return False
        if self.is_pattern:
            return endpoint.host.endswith(self.host[1:])
        return self.host == endpoint.host


def read_endpoints(text: str) -> tuple[AllowedEndpoint, ...]:
    """An option such as `https://s3.eu-central-1.amazonaws.com,https://*.example.com`.

    Raises:
        ValueError: a part is not the URL of a server.
    """
    endpoints: list[AllowedEndpoint] = []
    for part in filter(None, text.split(",")):
        endpoint = _endpoint(part)
        starless = None if endpoint is None else endpoint.host.removeprefix("*")
        if endpoint is None or starless is None or "*" in starless:
            raise ValueError(f'"{part}" is not an endpoint: write https://s3.example.com')
        if endpoint.is_pattern and (endpoint.scheme != "https" or starless[:1] not in ("", ".")):
            raise ValueError(f'"{part}" allows too much: write https://*.example.com or https://*')
        endpoints.append(endpoint)
    return tuple(endpoints)


def allowed_destinations(url: str, allowed: Sequence[AllowedEndpoint]) -> Destinations | None:
    """The addresses that connections to a server may have. None if the administrator named it.

    Args:
        url: The URL of the server, without a path.
        allowed: The servers that the administrator allows.

    Raises:
        EndpointRefusedError: the administrator does not allow the server.
    """
    requested = _endpoint(url)
    matching = [one for one in allowed if requested is not None and one.allows(requested)]
    if not matching:
        raise EndpointRefusedError(url)
    if all(one.is_pattern for one in matching):
        return Destinations.from_environ()
    return None


def _endpoint(url: str) -> AllowedEndpoint | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return None
    is_plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if not parts.hostname or "@" in parts.netloc or not is_plain:
        return None
    return AllowedEndpoint(parts.scheme, parts.hostname, port)
