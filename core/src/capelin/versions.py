"""Kubernetes versions: parsing and ordering."""

import re
from dataclasses import dataclass
from functools import total_ordering

_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(
    rf"v?(\d{{1,9}})\.(\d{{1,9}})\.(\d{{1,9}})(?:-({_IDENTIFIERS}))?(?:\+({_IDENTIFIERS}))?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A semantic version, compared as Cluster API compares it: build metadata counts.

    The standard gives versions that differ only in their build no order. For Cluster API they
    differ, and a change from one to the other is a rollout. They are ordered here too, so that
    sorted lists are stable.
    """

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Parse a version with or without its `v`.

        Raises:
            ValueError: The text is not a version.
        """
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ValueError(
                f'"{text}" is not a Kubernetes version. Write it as vMAJOR.MINOR.PATCH: v1.36.3'
            )
        major, minor, patch, prerelease, build = match.groups()
        return cls(
            int(major),
            int(minor),
            int(patch),
            tuple(prerelease.split(".")) if prerelease else (),
            tuple(build.split(".")) if build else (),
        )

    def __str__(self) -> str:
        prerelease = f"-{'.'.join(self.prerelease)}" if self.prerelease else ""
        build = f"+{'.'.join(self.build)}" if self.build else ""
        return f"v{self.major}.{self.minor}.{self.patch}{prerelease}{build}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and _key(self) == _key(other)

    def __lt__(self, other: "Version") -> bool:
        return _key(self) < _key(other)

    def __hash__(self) -> int:
        return hash(_key(self))

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, which the rules of version skew are about."""
        return self.major, self.minor

    def precedes(self, other: "Version") -> bool:
        """Whether this is older by the order of the standard, which ignores build metadata."""
        return _precedence(self) < _precedence(other)


def _precedence(version: Version) -> tuple[object, ...]:
    # A version without a pre-release comes after all of its pre-releases.
    return (
        version.major,
        version.minor,
        version.patch,
        not version.prerelease,
        _ordered(version.prerelease),
    )


def _key(version: Version) -> tuple[object, ...]:
    return _precedence(version), _ordered(version.build)


def _ordered(identifiers: tuple[str, ...]) -> tuple[tuple[bool, int, str], ...]:
    """Numbers sort by value and before words. An identifier list sorts after its own prefix."""
    return tuple(
        (False, int(text), "") if text.isdecimal() else (True, 0, text) for text in identifiers
    )
