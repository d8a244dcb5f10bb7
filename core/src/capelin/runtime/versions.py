"""Versions of hooks: how stable they are, what may replace them, how long they are supported."""

import calendar
import re
from dataclasses import dataclass
from datetime import date

_VERSION = re.compile(r"v(?P<major>[1-9]\d*)(?:(?P<track>alpha|beta)(?P<minor>[1-9]\d*))?")
_RELEASE = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.\d+)?")
_TRACKS = ("alpha", "beta", "")
_SUPPORT = {"alpha": (0, 0), "beta": (6, 2), "stable": (12, 3)}
"""Months and releases for which a version is supported after its deprecation, by track."""


class CatalogError(ValueError):
    """A hook that cannot be: registered twice, malformed, or not known."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A Kubernetes API version, ordered as Kubernetes prefers: v1, v1beta2, v1beta1, v1alpha1."""

    stability: int
    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Read a version such as `v1alpha1`.

        Raises:
            CatalogError: it is none.
        """
        if (found := _VERSION.fullmatch(text)) is None:
            raise CatalogError(f"{text!r} is not a version such as v1, v1beta1 or v1alpha1")
        track = found["track"] or ""
        return cls(_TRACKS.index(track), int(found["major"]), int(found["minor"] or 0))

    @property
    def track(self) -> str:
        """`alpha`, `beta` or `stable`."""
        return _TRACKS[self.stability] or "stable"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """When a version of a hook was announced to go, and what to use instead."""

    release: str
    """The release that announced it, as `1.16`."""
    on: date
    replaced_by: str
    """The version that stands in for it."""


def end_of_support(version: str, deprecation: Deprecation) -> tuple[date, str]:
    """The day and the release from which a deprecated version may be removed.

    Stable versions are supported for 12 months or 3 releases, whichever is longer; beta versions
    for 6 months or 2 releases; alpha versions need no such period.
    """
    months, releases = _SUPPORT[Version.parse(version).track]
    major, minor = _release_numbers(deprecation.release)
    return _months_later(deprecation.on, months), f"{major}.{minor + releases}"


def check_replacement(version: str, deprecation: Deprecation) -> None:
    """Check that the replacement of a deprecated version is newer, and at least as stable.

    Raises:
        CatalogError: it is not.
    """
    _release_numbers(deprecation.release)
    # Versions are ordered by their stability first.
    if Version.parse(deprecation.replaced_by) <= Version.parse(version):
        raise CatalogError(
            f"{version} cannot be deprecated in favour of {deprecation.replaced_by}: the"
            f" replacement has to be newer and at least as stable"
        )


def _release_numbers(text: str) -> tuple[int, int]:
    if (found := _RELEASE.fullmatch(text)) is None:
        raise CatalogError(f"{text!r} is not a release such as 1.16")
    return int(found["major"]), int(found["minor"])


def _months_later(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(day.day, last))
