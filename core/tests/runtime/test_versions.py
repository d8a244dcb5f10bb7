"""Replacements of deprecated hooks, and how long hooks are supported."""

from datetime import date

import pytest
from capelin.runtime import (
    Catalog,
    CatalogError,
    Deprecation,
    Hook,
    Request,
    Response,
    Version,
    deprecation_notice,
    end_of_support,
)
from capelin.runtime.versions import check_replacement
from hypothesis import given
from hypothesis import strategies as st

ANNOUNCED = date(2026, 8, 31)
VERSIONS = st.from_regex(r"v[1-3]((alpha|beta)[1-3])?", fullmatch=True)


class TryRequest(Request):
    """Try."""


class TryResponse(Response):
    """Tried."""


def deprecated(replaced_by: str = "v1", release: str = "1.16") -> Deprecation:
    return Deprecation(release, ANNOUNCED, replaced_by)


def catalog(*versions: str, going: dict[str, Deprecation] | None = None) -> Catalog:
    """A catalog with a hook in these versions, some of them deprecated."""
    made = Catalog()
    for version in versions:
        notice = (going or {}).get(version)

        @made.hook(f"example.com/{version}", summary="", tag="", deprecated=notice)
        class Try(Hook[TryRequest, TryResponse]):
            """Tries."""

        del Try
    return made


@pytest.mark.parametrize(
    ("version", "on", "release"),
    [
        ("v1", date(2027, 8, 31), "1.19"),
        ("v1beta1", date(2027, 2, 28), "1.18"),
        ("v1alpha1", ANNOUNCED, "1.16"),
    ],
)
def test_support_depends_on_stability(version: str, on: date, release: str) -> None:
    assert end_of_support(version, deprecated("v2")) == (on, release)


@given(VERSIONS, VERSIONS)
def test_a_replacement_is_newer_and_at_least_as_stable(version: str, replacement: str) -> None:
    stability = ("alpha", "beta", "stable")
    before, after = Version.parse(version), Version.parse(replacement)
    try:
        check_replacement(version, deprecated(replacement))
    except CatalogError:
        assert after <= before
    else:
        assert stability.index(after.track) >= stability.index(before.track)
        assert after != before


def test_a_less_stable_replacement_is_rejected() -> None:
    with pytest.raises(CatalogError, match="v1 cannot be deprecated in favour of v2beta1"):
        catalog("v1", going={"v1": deprecated("v2beta1")})


@pytest.mark.parametrize("release", ["next", "1", "1.x"])
def test_a_release_without_two_numbers_is_rejected(release: str) -> None:
    with pytest.raises(CatalogError, match="is not a release such as"):
        catalog("v1beta1", going={"v1beta1": deprecated(release=release)})


def test_a_replacement_has_to_exist() -> None:
    without = catalog("v1beta1", going={"v1beta1": deprecated()})
    with pytest.raises(CatalogError, match="in favour of v1, which this catalog does not have"):
        without.check()
    catalog("v1beta1", "v1", going={"v1beta1": deprecated()}).check()


def test_a_notice_names_the_replacement_and_the_end_of_support() -> None:
    versions = catalog("v1beta1", "v1", going={"v1beta1": deprecated()})
    assert deprecation_notice(versions.find("example.com/v1", "Try")) is None
    assert deprecation_notice(versions.find("example.com/v1beta1", "Try")) == (
        "Try example.com/v1beta1 is deprecated since release 1.16: use v1. It may be removed in"
        " release 1.18, not before 2027-02-28"
    )
