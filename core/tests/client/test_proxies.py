import pytest
from capelin.client.transport import proxy_for

PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


def test_the_proxy_of_the_scheme_is_used() -> None:
    environ = PROXY | {"HTTP_PROXY": "http://other:3128"}
    assert proxy_for("https://api.example:6443", environ) == "http://proxy:3128"
    assert proxy_for("http://api.example:8080", environ) == "http://other:3128"
    assert proxy_for("https://api.example:6443", {}) is None


def test_lower_case_variables_and_addresses_without_scheme_work() -> None:
    assert proxy_for("https://api.example", {"https_proxy": "proxy:3128"}) == "http://proxy:3128"


@pytest.mark.parametrize(
    "address", ["https://localhost:6443", "https://127.64.0.3:6443", "https://[::1]:6443"]
)
def test_this_machine_is_reached_without_a_proxy(address: str) -> None:
    assert proxy_for(address, PROXY) is None


@pytest.mark.parametrize(
    ("exceptions", "address"),
    [
        ("*", "https://api.example"),
        ("api.example", "https://api.example"),
        ("example", "https://api.example"),
        (".example", "https://api.example"),
        ("*.example", "https://api.example"),
        ("other, API.example", "https://api.example"),
        ("api.example:6443", "https://api.example:6443"),
        ("10.0.0.0/8", "https://10.2.3.4:6443"),
        ("10.2.3.4", "https://10.2.3.4:6443"),
        ("fd00::/8", "https://[fd00::1]:6443"),
        ("fd00::1", "https://[fd00::1]:6443"),
    ],
)
def test_addresses_in_no_proxy_use_no_proxy(exceptions: str, address: str) -> None:
    assert proxy_for(address, PROXY | {"NO_PROXY": exceptions}) is None


@pytest.mark.parametrize(
    ("exceptions", "address"),
    [
        ("", "https://api.example"),
        ("ample", "https://api.example"),
        ("api.example:443", "https://api.example:6443"),
        ("10.0.0.0/8", "https://11.2.3.4:6443"),
        ("0.2.3.4", "https://10.2.3.4:6443"),
        ("10.0.0.0/nonsense", "https://10.2.3.4:6443"),
    ],
)
def test_other_addresses_use_the_proxy(exceptions: str, address: str) -> None:
    assert proxy_for(address, PROXY | {"NO_PROXY": exceptions}) == "http://proxy:3128"
