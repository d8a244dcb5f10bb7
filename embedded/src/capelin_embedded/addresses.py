"""Loopback addresses derived from identities, the machine's own addresses, and free ports."""

import asyncio
import fcntl
import hashlib
import random
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

NETWORK = IPv4Network("127.64.0.0/10")
"""The range of our loopback addresses, away from 127.0.0.1 and the addresses of other programs."""

_ATTEMPTS = 64
# Below NodePorts, and below the ports of outgoing connections.
_PORTS = range(16384, 30000)
_SIOCGIFADDR = 0x8915


def address_of(identity: str, attempt: int = 0) -> str:
    """The loopback address of an identity. Each attempt gives another one, always the same."""
    digest = hashlib.sha256(f"{attempt}/{identity}".encode()).digest()
    # Skip the first and the last address: some programs take them for network and broadcast.
    offset = 1 + int.from_bytes(digest[:8]) % (NETWORK.num_addresses - 2)
    return str(IPv4Address(int(NETWORK.network_address) + offset))


def free_address(identity: str, *, ports: Iterable[int] = (), taken: Iterable[str] = ()) -> str:
    """The first address of an identity that is not in use and has free ports."""
    needed, excluded = tuple(ports), frozenset(taken)
    for attempt in range(_ATTEMPTS):
        address = address_of(identity, attempt)
        if address not in excluded and all(is_free(address, port) for port in needed):
            return address
    raise OSError(
        f"none of {_ATTEMPTS} loopback addresses in {NETWORK} has its ports "
        f"{', '.join(map(str, needed))} free. Stop programs that use these ports on all addresses"
    )


def is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Like servers, so that ports in TIME_WAIT count as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_port(address: str, preferred: int = 0) -> int:
    """The preferred port if it is free, or another free one.

    The kernel gives such ports to no outgoing connection, which could keep a server from its port
    after a restart until the connection ends.
    """
    if preferred and is_free(address, preferred):
        return preferred
    for port in random.sample(_PORTS, len(_PORTS)):
        if is_free(address, port):
            return port
    raise OSError(f"{address} has no free port from {_PORTS[0]} to {_PORTS[-1]}")


async def is_listening(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


def source_towards(host: str, port: int) -> str | None:
    """This machine's source address of connections to a host, or None without a route.

    Sends nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def own_addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        addresses = (_interface_address(probe, name) for _, name in socket.if_nameindex())
        return sorted({address for address in addresses if address is not None})


def _interface_address(probe: socket.socket, interface: str) -> str | None:
    # struct ifreq: 16 bytes of name, then a sockaddr_in with its address at 4.
    request = interface.encode()[:15].ljust(40, b"\0")
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
