"""Requests that the server of the page rejects."""

import pytest
from capelin_cli.ui.access import SESSION, Access, Head, refusal

ACCESS = Access(Access.at(8080).hosts, key="k" * 43, link_token="l" * 43)
HOST = "127.0.0.1:8080"
DATA = "/api/v1alpha1/changes"


def head(path: str = DATA, method: str = "GET", **headers: str | list[str] | None) -> Head:
    """A request of the page, with other headers in place of its own."""
    own = {"host": HOST, "authorization": f"Bearer {ACCESS.key}", "sec-fetch-site": "same-origin"}
    merged = {**own, **{name.replace("_", "-"): value for name, value in headers.items()}}
    listed = {
        name: value if isinstance(value, list) else [value]
        for name, value in merged.items()
        if value is not None
    }
    return Head(method, path, listed)


def status_of(request: Head) -> int | None:
    found = refusal(request, ACCESS)
    return found.status if found else None


@pytest.mark.parametrize(
    "request_",
    [
        head(),
        head(host="localhost:8080"),
        head(origin="http://127.0.0.1:8080"),
        head(method="POST", content_length="0"),
        head("/", authorization=None, sec_fetch_site="none"),
        head("/", authorization=None, sec_fetch_site="cross-site"),
        head(SESSION, "POST", authorization=f"bearer {ACCESS.link_token}"),
    ],
)
def test_requests_of_the_page_are_accepted(request_: Head) -> None:
    assert refusal(request_, ACCESS) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8080", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8080.evil.example", "", None],
)
@pytest.mark.parametrize("path", ["/", DATA, SESSION])
def test_another_name_of_this_machine_is_rejected(host: str | None, path: str) -> None:
    assert status_of(head(path, host=host)) == 421


def test_two_names_are_rejected() -> None:
    assert status_of(head(host=[HOST, "evil.example"])) == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://127.0.0.1:8080", ""]
)
@pytest.mark.parametrize("path", ["/", DATA, SESSION])
def test_another_page_is_rejected(origin: str, path: str) -> None:
    assert status_of(head(path, origin=origin)) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_data_is_for_the_page_itself(site: str) -> None:
    assert status_of(head(sec_fetch_site=site)) == 403


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        ACCESS.key,
        f"Basic {ACCESS.key}",
        f"Bearer {ACCESS.key}x",
        f"Bearer {ACCESS.key[:-1]}",
        f"Bearer {ACCESS.link_token}",
        "Bearer \xff",
        [f"Bearer {ACCESS.key}", f"Bearer {ACCESS.key}"],
    ],
)
def test_data_needs_the_key(authorization: str | list[str] | None) -> None:
    assert status_of(head(authorization=authorization)) == 401


def test_the_key_opens_no_session() -> None:
    assert status_of(head(SESSION, "POST")) == 401


def test_a_link_works_once() -> None:
    access = Access.at(8080)
    request = head(SESSION, "POST", authorization=f"Bearer {access.link_token}")
    assert refusal(request, access) is None
    access.renew_link()
    assert refusal(request, access) is not None


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_rejected(method: str) -> None:
    assert status_of(head(method=method)) == 405


def test_files_are_only_read() -> None:
    assert status_of(head("/", "POST")) == 405


@pytest.mark.parametrize(
    "headers", [{"content_length": "1"}, {"content_length": "x"}, {"transfer_encoding": "chunked"}]
)
def test_bodies_are_rejected(headers: dict[str, str]) -> None:
    assert status_of(head(method="POST", **headers)) == 413


def test_secrets_are_long_and_never_the_same() -> None:
    one, other = Access.at(1), Access.at(1)
    secrets = {one.key, one.link_token, other.key, other.link_token}
    assert len(secrets) == 4
    assert min(map(len, secrets)) >= 43
