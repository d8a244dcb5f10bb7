"""Versions of hooks: their stability, their replacements, and their time of support."""

import calendar
import re
from dataclasses import dataclass
from datetime import date

_VERSION = re.compile(r"v(?P<major>[1-9]\d*)(?:(?P<track>alpha|beta)(?P<minor>[1-9]\d*))?")
_RELEASE = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.\d+)?")
_TRACKS = ("alpha", "beta", "")
_SUPPORT = {"alpha": (0, 0), "beta": (6, 2), "stable": (12, 3)}
"""Months and releases of support after a version's deprecation, by track."""


class CatalogError(ValueError):
    """An invalid hook: registered twice, malformed, or unknown."""


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
            CatalogError: The text is not a version.
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
    """The announcement that a version of a hook will be removed, and its replacement."""

    release: str
    """The release that announced it, such as `1.16`."""
    on: date
    replaced_by: str
    """The version to use instead."""


def end_of_support(version: str, deprecation: Deprecation) -> tuple[date, str]:
    """The day and the release from which a deprecated version may be removed.

    Stable versions have support for 12 months or 3 releases, whichever is longer, and beta versions
    for 6 months or 2 releases. Alpha versions have no such period.
    """
    months, releases = _SUPPORT[Version.parse(version).track]
    major, minor = _release_numbers(deprecation.release)
    return _months_later(deprecation.on, months), f"{major}.{minor + releases}"


def check_replacement(version: str, deprecation: Deprecation) -> None:
    """Check that the replacement of a deprecated version is newer, and at least as stable.

    Raises:
        CatalogError: It is not.
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
