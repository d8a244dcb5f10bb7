import pytest
from capelin.client import proxy_for
from capelin.controller import Address
from capelin.hosts import is_loopback


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((host, True) for host in ("localhost", "127.0.0.1", "127.64.0.9", "::1")),
        ("::ffff:127.0.0.1", True),
        *((host, False) for host in ("", "example.com", "10.0.0.1", "::", "::ffff:10.0.0.1")),
        # 6to4 and NAT64 forms of 127.0.0.1 are routed.
        *((host, False) for host in ("2002:7f00:1::", "64:ff9b::7f00:1")),
    ],
)
def test_mapped_loopback_addresses_count_as_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    assert Address(host, 8080).is_loopback is local
    url = f"https://[{host}]:6443" if ":" in host else f"https://{host or 'there'}:6443"
    assert (proxy_for(url, {"HTTPS_PROXY": "http://proxy:3128"}) is None) is local
