"""The proxy for an address, from the environment."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from capelin.hosts import is_loopback


def proxy_for(address: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for `address` from `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, like in Go."""
    parts = urlsplit(address)
    proxy = _variable(environ, f"{parts.scheme}_proxy")
    host = parts.hostname or ""
    if not proxy or is_loopback(host):
        return None
    exceptions = [entry.strip().lower() for entry in _variable(environ, "no_proxy").split(",")]
    if any(_matches(exception, host, parts.port) for exception in exceptions if exception):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _matches(exception: str, host: str, port: int | None) -> bool:
    if exception == "*":
        return True
    address = _ip_address(host)
    if address is not None and "/" in exception:
        try:
            return address in ipaddress.ip_network(exception, strict=False)
        except ValueError:
            return False
    name, _, exception_port = exception.partition(":")
    if exception_port.isdecimal() and int(exception_port) != port:
        return False
    name = exception if address is not None and address.version == 6 else name
    name = name.removeprefix("*")
    return host == name.removeprefix(".") or (
        address is None and host.endswith(name if name.startswith(".") else f".{name}")
    )


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
