"""Addresses that tenants may make a manager connect to."""

import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp

from capelin.client.errors import AddressRefusedError, ConfigError

VARIABLE: Final = "CAPELIN_ALLOWED_NETWORKS"
"""Loopback and link-local networks that addresses from tenants may be in, separated by commas."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
# Clouds give credentials to callers of these addresses, which are not link-local.
_METADATA_SERVICES: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle Cloud
            "fd00:c1::a9fe:a9fe",  # Oracle Cloud
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google Cloud
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Destinations:
    """Addresses that tenants may choose: not this machine's, and not link-local ones.

    A manager can reach more than a tenant: services on its own machine or in its own pod, and the
    metadata service of the cloud. So it checks the connections that tenants request after name
    resolution, and does not follow redirects.
    """

    networks: tuple[Network, ...] = ()
    """Exceptions: loopback and link-local networks that are allowed."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """With the exceptions of `CAPELIN_ALLOWED_NETWORKS`.

        Raises:
            ConfigError: The variable does not list networks.
        """
        listed = (os.environ if environ is None else environ).get(VARIABLE, "")
        try:
            parts = filter(None, map(str.strip, listed.split(",")))
            return cls(tuple(map(ipaddress.ip_network, parts)))
        except ValueError as error:
            raise ConfigError(
                f"{VARIABLE} has to list networks such as 127.0.0.0/8: {error}"
            ) from None

    def allows(self, address: str) -> bool:
        """Whether connections to an IP address are allowed."""
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self.networks) or not any(
            _is_local(form) for form in _forms(parsed)
        )

    def allows_host(self, host: str) -> bool:
        """Whether connections to a host are allowed, as far as its name shows."""
        try:
            return self.allows(host.strip("[]"))
        except ValueError:
            return True


def open_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket that detects within a minute that the other machine has disappeared."""
    opened = socket.socket(*info[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return opened


def guarded_connector(
    destinations: Destinations | None,
    *,
    tls: ssl.SSLContext | bool = True,
    idle_seconds: float = 15.0,
) -> aiohttp.TCPConnector:
    """A connector that opens connections only to these destinations, or to all if `None`.

    It checks each address after name resolution, right before it connects. Callers have to pass
    `allow_redirects=False`, or check the target of a redirect.
    """

    def opened(info: tuple[Any, ...]) -> socket.socket:
        if destinations is not None and not destinations.allows(str(info[4][0])):
            raise AddressRefusedError
        return open_socket(info)

    return aiohttp.TCPConnector(
        limit=0, ssl=tls, keepalive_timeout=idle_seconds, socket_factory=opened
    )


def _is_local(address: _Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in _METADATA_SERVICES
    )


def _forms(address: _Address) -> list[_Address]:
    """The address, and the IPv4 addresses that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    inner = (
        address.ipv4_mapped,
        address.sixtofour,
        translated if any(address in network for network in _NAT64) else None,
    )
    return [address, *(form for form in inner if form is not None)]
