"""Which hosts are this machine."""

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address, also one that only maps an IPv4 one.

    The kernel treats both forms alike, so this accepts no other machine. 6to4 and NAT64 addresses
    are routed, and are not loopback addresses.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
