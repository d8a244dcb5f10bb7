"""Versions of Kubernetes: reading them, comparing them, and which may follow or join which."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering

_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(
    rf"v?(\d{{1,9}})\.(\d{{1,9}})\.(\d{{1,9}})(?:-({_IDENTIFIERS}))?(?:\+({_IDENTIFIERS}))?",
    re.ASCII,
)

KUBELETS_MAY_TRAIL_BY = 3
"""How many minor versions a kubelet may be older than its API server."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A semantic version. As Cluster API sees it, what stands after `+` counts as well.

    The standard gives versions that differ only in their build no order. Cluster API reads two
    such as different, and so must roll one out after the other; they are ordered here too, so
    that lists of them do not change by themselves.
    """

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Version":
        """A version with or without its `v`.

        Raises:
            ValueError: it is none.
        """
        found = _VERSION.fullmatch(text)
        if found is None:
            raise ValueError(
                f'"{text}" is not a version of Kubernetes; write it as vMAJOR.MINOR.PATCH, v1.34.4'
            )
        major, minor, patch, prerelease, build = found.groups()
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
        """Major and minor: what skew is about."""
        return self.major, self.minor

    def precedes(self, other: "Version") -> bool:
        """Whether this is older whatever was built from it: an order of the standard's own."""
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
    """Numbers by value and before words, words by their characters; the longer list is greater."""
    return tuple(
        (False, int(one), "") if one.isdecimal() else (True, 0, one) for one in identifiers
    )


def upgrade_problem(current: str, wanted: str) -> str | None:
    """Why a control plane cannot go from one version to another; nothing when it can."""
    here, there = Version.read(current), Version.read(wanted)
    if there.precedes(here):
        return f"{there} is older than {here}, and Kubernetes cannot go back; give {here} or newer"
    if there.major != here.major:
        return f"nobody knows how to go from {here} to {there}; stay with v{here.major}"
    if there.minor - here.minor > 1:
        return (
            f"{there} is {there.minor - here.minor} minor versions after {here}, and Kubernetes "
            f"goes up one at a time; go to v{here.major}.{here.minor + 1} first"
        )
    return None


def kubelet_problem(kubelet: str, api_server: str) -> str | None:
    """Why a kubelet cannot join an API server of a version; nothing when it can."""
    node, server = Version.read(kubelet), Version.read(api_server)
    if node.release > server.release:
        return (
            f"kubelet {node} is newer than its API server {server}; upgrade the control plane first"
        )
    if node.major != server.major or server.minor - node.minor > KUBELETS_MAY_TRAIL_BY:
        return (
            f"kubelet {node} is more than {KUBELETS_MAY_TRAIL_BY} minor versions older than its "
            f"API server {server}; upgrade the node first"
        )
    return None


def count_versions(running: Iterable[str]) -> dict[str, int]:
    """How many replicas run which version, the oldest first, as `status.versions` lists them.

    The first is what `status.version` says. Rule `control-plane/version`.
    """
    counted = Counter(map(Version.read, running))
    return {str(version): counted[version] for version in sorted(counted)}


def is_upgrading(wanted: str, running: Iterable[str]) -> bool:
    """Whether core sees an upgrade going on: a running version that is not yet the wanted one.

    A replica that is newer than wanted counts as done, as it does for core; another build of the
    same version does not.
    """
    want = Version.read(wanted)
    return any(
        version.precedes(want) or (not want.precedes(version) and _rebuilt(version, want))
        for version in map(Version.read, running)
    )


def _rebuilt(old: Version, new: Version) -> bool:
    """Whether the build of `new` is greater than, or simply other than, that of `old`."""
    for before, after in zip(old.build, new.build, strict=False):
        if before == after:
            continue
        if before.isdecimal() and after.isdecimal():
            if int(before) == int(after):
                continue
            return int(after) > int(before)
        return before.isdecimal() or not after.isdecimal()
    return len(new.build) > len(old.build)
